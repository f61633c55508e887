// How full the model's context is, and what can be done about it: a summary takes the place of what was said.

import { openDialog, page, status } from "./page.js";
import { byId, json } from "./server.js";
import { anthropicBody } from "./snippets.js";
import { percent, words } from "./words.js";

const NEAR = 0.8; // share from which on it is shown as nearly full
const LONGEST = 1000; // tokens of a summary

/** The tokens of what is shown, as the server counted them with the last answer; null where it has not. */
function used(talk) {
  const path = talk.path();
  const from = path.findLastIndex(({ summary }) => summary);
  const last = path.slice(from + 1).findLast(({ stats }) => stats?.prompt != null);
  return last ? last.stats.prompt + (last.stats.tokens ?? 0) : null;
}

export class Context {
  /** `model()`: what the server tells of it; `request()`: the conversation as it would be sent; `goOn(turn)` puts a
   * summary under it, `beginAnew(turn, title)` into a new one. */
  constructor({ model, request, goOn, beginAnew }) {
    Object.assign(this, { model, request });
    byId("context").addEventListener("click", () => openDialog("context-dialog"));
    byId("summarise").addEventListener("click", () => this.#summarise(goOn));
    byId("begin-anew").addEventListener("click", () => this.#summarise((turn) => beginAnew(turn, words.continuedTitle(page.talk.title))));
  }

  draw() {
    const size = this.model()?.context_length;
    const tokens = used(page.talk);
    const button = byId("context");
    button.hidden = !size || tokens === null;
    if (button.hidden) return;
    const share = Math.min(1, tokens / size);
    button.querySelector("meter").value = share;
    button.querySelector("span").textContent = percent(share);
    button.setAttribute("aria-label", words.contextLabel(share));
    button.title = words.contextUsed(tokens, size);
    button.classList.toggle("near", share >= NEAR);
    byId("context-used").textContent = words.contextUsed(tokens, size);
  }

  async #summarise(put) {
    byId("context-dialog").close();
    if (page.running) return;
    const { talk } = page;
    const running = page.running = new AbortController();
    status(words.summarising);
    try {
      const body = { ...anthropicBody(this.request()), max_tokens: LONGEST, compaction: { type: "summarize" } };
      const { content } = await json("/v1/messages", { method: "POST", body: JSON.stringify(body), signal: running.signal });
      status("");
      page.running = null;
      if (talk === page.talk) put({ role: "user", summary: true, content: content[0].content });
    } catch (error) {
      status(running.signal.aborted ? words.stopped : error.message);
    } finally {
      page.running = null;
    }
  }
}
