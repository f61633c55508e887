// The server's tools and those of its MCP servers: tick boxes, and consent for what the model calls.

import { page, status } from "./page.js";
import { byId, json, make } from "./server.js";
import { words } from "./words.js";

const KEY = "llamasrv:consent";
const MOST_ROUNDS = 25; // calls in a row without a word of the person; then the next one is asked for again

function kept() {
  try {
    return JSON.parse(localStorage.getItem(KEY) ?? "{}");
  } catch {
    return {};
  }
}

export class ServerTools {
  /** `changed` is called when another tool was ticked; `sendResults(turn, results)` goes on with them ({content, files});
   * `writing` with whether tools are running. */
  constructor({ changed, sendResults, writing }) {
    Object.assign(this, { changed, sendResults, writing });
    this.all = new Map(); // by name
    this.wanted = []; // names that are ticked, those of another server among them
    this.asked = null; // the turn whose calls are being decided
    this.box = null; // the question
    this.live = new WeakSet(); // turns that were written here: in an imported conversation, calls may be anybody's
  }

  /** Asks the server which tools it runs for this visitor, if any. */
  async begin({ tools }) {
    if (!tools) return;
    for (const tool of await json("/tools")) this.all.set(tool.tool, tool);
    byId("server-tools").hidden = !this.all.size;
    this.#draw();
  }

  use(names = []) {
    this.wanted = names.filter((name) => typeof name === "string");
    this.#draw();
  }

  /** The definitions of those that are ticked. */
  get definitions() {
    return this.wanted.filter((name) => this.all.has(name)).map((name) => this.all.get(name).definition);
  }

  /** Runs what `turn` calls, if all of it are ticked tools; asks first, unless it was said what always or never holds. */
  async consider(turn) {
    const { talk } = page;
    if (!turn?.calls?.length || turn.answered || turn.byHand || turn.finish !== "tool_calls" || talk.pairOf(turn).length > 1 || page.running) return;
    if (this.asked === turn && this.box?.isConnected) return; // the question stands already
    if (!turn.calls.every(({ name }) => this.wanted.includes(name) && this.all.has(name))) return;
    this.asked = turn;
    const stands = () => this.asked === turn && page.talk === talk && talk.turns[turn.id] === turn && !turn.answered && !page.running;
    const consents = this.live.has(turn) && rounds(talk) <= MOST_ROUNDS ? kept() : {};
    const verdicts = [];
    for (const call of turn.calls) {
      const consent = consents[call.name];
      verdicts.push(["always", "never"].includes(consent) ? consent : await this.#ask(turn, call));
      if (!stands()) return;
    }
    const running = page.running = new AbortController();
    this.writing(true);
    const results = [];
    try {
      for (const [i, call] of turn.calls.entries()) {
        status(words.runningTool(this.#title(call.name)));
        results.push(verdicts[i] === "never" ? { content: words.toolDenied } : await run(call, running.signal));
      }
    } catch {
      turn.byHand = true; // stopped: the form for results stands in the turn
      status(words.stopped);
    }
    page.running = null;
    this.asked = null;
    this.writing(false);
    if (page.talk === talk && results.length === turn.calls.length) {
      status("");
      this.sendResults(turn, results);
    }
  }

  /** What is done with a call: "once", "always" or "never". The buttons stand in the turn, before the form for results. */
  #ask(turn, call) {
    return new Promise((resolve) => {
      const decide = (verdict) => {
        if (verdict !== "once") this.#keep(call.name, verdict);
        box.remove();
        resolve(verdict);
      };
      const button = (verdict, kind) => make("button", { type: "button", class: kind, onclick: () => decide(verdict) }, words.consent[verdict]);
      const box = this.box = make("section", { class: "consent", "aria-label": words.mayRun(this.#title(call.name)) },
        make("p", {}, words.mayRun(this.#title(call.name)), this.all.get(call.name).permissions?.write ? make("strong", {}, ` ${words.toolWrites}`) : null),
        make("p", { class: "row" }, button("once", "primary"), button("always"), button("never")));
      const place = document.querySelector(`[data-turn="${CSS.escape(turn.id)}"] footer`);
      if (place) place.before(box);
    });
  }

  #title = (name) => this.all.get(name)?.display_name || name;

  #keep(name, verdict) {
    localStorage.setItem(KEY, JSON.stringify({ ...kept(), [name]: verdict }));
    this.#draw();
  }

  #draw() {
    const consents = kept();
    const list = byId("server-tool-list");
    const { activeElement: at } = document; // the drawing must not take the focus away
    const [tool, tag] = list.contains(at) ? [at.closest("li").dataset.tool, at.tagName] : [];
    list.replaceChildren(...[...this.all.values()].map(({ tool: name, definition }) => {
      const on = this.wanted.includes(name);
      const box = make("input", { type: "checkbox", value: name, checked: on, onchange: () => {
        this.wanted = box.checked ? [...this.wanted, name] : this.wanted.filter((one) => one !== name);
        this.#draw();
        this.changed();
      } });
      const choice = make("select", { "aria-label": words.consentFor(this.#title(name)), onchange: () => this.#keep(name, choice.value) },
        ...["ask", "always", "never"].map((verdict) => make("option", { value: verdict, selected: (consents[name] ?? "ask") === verdict }, words.consents[verdict])));
      return make("li", { "data-tool": name }, make("label", { class: "check", title: definition.function.description }, box, this.#title(name)), on ? choice : null);
    }));
    if (tool) list.querySelector(`[data-tool="${CSS.escape(tool)}"] ${tag}`)?.focus();
  }
}

/** How many answers with calls there are since the person's last message. */
function rounds(talk) {
  let count = 0;
  for (const turn of talk.path()) count = turn.role === "user" ? 0 : count + (turn.calls?.length ? 1 : 0);
  return count;
}

async function run({ name, arguments: text }, signal) {
  let params;
  try {
    params = JSON.parse(text || "{}");
  } catch {
    return { content: words.toolFailed(words.notJson) };
  }
  try {
    const reply = await json("/tools", { method: "POST", body: JSON.stringify({ tool: name, params }), signal });
    if (reply.error && reply.plain_text_response === undefined) return { content: words.toolFailed(String(reply.error)) };
    const { imageFile } = await import("./results.js");
    const files = (reply.images ?? []).map(({ mimeType, data }) => imageFile(mimeType, data)).filter(Boolean);
    const content = reply.plain_text_response ?? JSON.stringify(reply);
    return files.length ? { content: content || words.toolPictures, files } : { content };
  } catch (error) {
    if (signal.aborted) throw error;
    return { content: words.toolFailed(error.message) }; // the model may try something else
  }
}
