// Answers read aloud by a speech model that is served: a few sentences at a time, so that the first are heard soon.

import { status } from "./page.js";
import { byId, call, json, make } from "./server.js";
import { words } from "./words.js";

const PIECE = 300; // characters of one request; the first is shorter
const KEY = "llamasrv:voice";

/** A text in pieces that end with a sentence, where it has sentences. */
export function pieces(text) {
  const out = [];
  let piece = "";
  for (const sentence of text.replace(/\s+/g, " ").match(/[^.!?。！？]+[.!?。！？]*\s*|[.!?。！？]+\s*/g) ?? []) {
    if (piece && piece.length + sentence.length > (out.length ? PIECE : PIECE / 3)) {
      out.push(piece);
      piece = "";
    }
    piece += sentence;
  }
  return [...out, piece].flatMap((one) => one.match(/.{1,4000}/gsu) ?? []).filter((one) => /[\p{L}\p{N}]/u.test(one));
}

export class Speaker {
  /** `model` speaks. */
  constructor(model) {
    this.model = model;
    this.running = null; // AbortController of what is being read
    this.button = null;
  }

  /** Asks the server for its voices; from then on there are buttons. */
  async begin() {
    const { voices } = await json(`/v1/audio/voices?model=${encodeURIComponent(this.model)}`);
    const names = voices.map(({ id }) => id);
    const choice = byId("voice");
    choice.append(...names.map((name) => make("option", { value: name }, name)));
    if (names.includes(localStorage.getItem(KEY))) choice.value = localStorage.getItem(KEY);
    choice.addEventListener("change", () => localStorage.setItem(KEY, choice.value));
    byId("voice-row").hidden = !names.length;
    document.body.classList.add("speaks");
  }

  /** Reads the text aloud; with the same button again, stops. */
  async speak(text, button) {
    const again = this.button === button;
    this.stop();
    if (again) return;
    const running = this.running = new AbortController();
    this.button = button;
    button.setAttribute("aria-pressed", "true");
    try {
      let next = null;
      const all = pieces(text);
      for (const [i, piece] of all.entries()) {
        const sound = await (next ?? this.#sound(piece, running.signal));
        next = i + 1 < all.length ? this.#sound(all[i + 1], running.signal) : null;
        next?.catch(() => {}); // told when it is its turn
        await play(sound, running.signal);
      }
    } catch (error) {
      if (!running.signal.aborted) status(error.message);
    }
    if (this.running === running) this.stop();
  }

  stop() {
    this.running?.abort();
    this.button?.setAttribute("aria-pressed", "false");
    this.running = this.button = null;
  }

  async #sound(input, signal) {
    const voice = byId("voice").value;
    const body = { model: this.model, input, response_format: "wav", ...(voice ? { voice } : {}) };
    return (await call("/v1/audio/speech", { method: "POST", body: JSON.stringify(body), signal })).blob();
  }
}

/** Until it has been heard, or the signal says that it should not be. */
function play(sound, signal) {
  const address = URL.createObjectURL(sound);
  const audio = new Audio(address);
  const done = new Promise((resolve, reject) => {
    audio.addEventListener("ended", resolve);
    audio.addEventListener("error", () => reject(new Error(words.noSound)));
    signal.addEventListener("abort", () => {
      audio.pause();
      reject(new Error(words.stopped));
    }, { once: true });
    audio.play().catch(reject);
  });
  return done.finally(() => URL.revokeObjectURL(address));
}
