// Answers are written: by one model, or by two side by side. Knows the conversation at hand.

import { newId } from "./conversation.js";
import { page, status } from "./page.js";
import { json, make } from "./server.js";
import { save } from "./store.js";
import { answer } from "./stream.js";
import { draw, fill, waiting } from "./turns.js";
import { words } from "./words.js";

const LOOK = 1500; // milliseconds without news after which the model may be loading

export class Answers {
  /** `transcript` shows them; `models()`: whom to ask; `request(model, end)`: what; `act`: for the buttons of turns; `place(turn)`: among its branches;
   * `drawn` is called when all have ended, with the first turn; `writing` with whether answers are being written. */
  constructor({ transcript, models, request, validate, act, place, drawn, writing }) {
    Object.assign(this, { transcript, models, request, validate, act, place, drawn, writing });
  }

  /** Answers what stands under `parent`. */
  async begin(parent) {
    if (page.running) return;
    const talk = page.talk;
    const models = this.models();
    const pair = models.length > 1 ? newId() : undefined;
    const turns = models.map((model) => talk.add(parent, {
      role: "assistant", content: "", model, stream: newId(), ...(pair ? { pair } : {}),
    }));
    talk.show(turns[0]);
    save(talk); // the streams' names, by which they are found after a reload
    await this.#run(talk, turns, turns.map((turn) => this.request(turn.model, turns[0])));
  }

  /** Goes on with answers that were being written when the page was left. */
  async resume(turns) {
    if (!page.running) await this.#run(page.talk, turns, turns.map(() => null));
  }

  async #run(talk, turns, bodies) {
    for (const { id } of turns) this.transcript.cut(id);
    const boxes = turns.map((turn) => draw(turn, this.place(turn), this.act, true));
    this.transcript.append(turns.length > 1 ? make("div", { class: "pair" }, ...boxes) : boxes[0]);
    const running = page.running = new AbortController();
    this.writing(true);
    status(words.waiting);
    await Promise.all(turns.map((turn, i) => this.#write(turn, boxes[i], bodies[i], running)));
    page.running = null;
    this.writing(false);
    status(running.signal.aborted ? words.stopped : "");
    for (const turn of turns) delete turn.stream;
    for (const turn of turns) if (!turn.content && !turn.reasoning && !turn.calls && !turn.error) talk.remove(turn);
    if (talk === page.talk) this.drawn(turns[0]);
    else save(talk);
  }

  async #write(turn, box, body, running) {
    let due = 0;
    let timer = null;
    const show = () => {
      const { isAtEnd } = this.transcript; // a reader at the end stays at the end
      fill(box, turn, true);
      if (isAtEnd) this.transcript.toEnd();
    };
    const paint = () => {
      timer = null;
      const started = performance.now();
      show();
      this.validate(turn.content, false);
      due = performance.now() + Math.max(30, 4 * (performance.now() - started)); // long answers are painted less often
    };
    let heard = false;
    const waits = (text, share) => {
      heard = true;
      status(text);
      waiting(box, text, share);
    };
    const look = setInterval(async () => {
      const told = heard ? null : await loading(turn.model);
      if (told && !heard) {
        status(told.text);
        waiting(box, told.text, told.share);
      }
    }, LOOK);
    try {
      await answer(body, turn, { waits, changed: () => {
        heard = true;
        waiting(box, "", null);
        status(words.writing);
        timer ??= setTimeout(paint, Math.max(0, due - performance.now()));
      } }, running.signal);
    } catch (error) {
      if (running.signal.aborted) turn.finish = "stopped";
      else turn.error = error.message;
    }
    heard = true;
    clearInterval(look);
    clearTimeout(timer);
    waiting(box, "", null);
    show();
  }
}

/** What is told of a model that is being loaded; null where it is not. */
async function loading(model) {
  try {
    const { data } = await json("/v1/models");
    const state = data.find(({ id }) => id === model)?.status;
    return state?.value === "loading" ? { text: words.loading(state.progress ?? 0), share: state.progress ?? null } : null;
  } catch {
    return null;
  }
}
