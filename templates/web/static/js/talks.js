// The list of conversations: search, open, delete, take along.

import { Conversation, imported } from "./conversation.js";
import { everything, fileName, markdown } from "./export.js";
import { download, page, status, statusWith } from "./page.js";
import { keepPrompts } from "./prompts.js";
import { byId, make } from "./server.js";
import { forget, load, save, stored } from "./store.js";

const AROUND = 30; // characters shown on each side of what was found

/** Where a conversation has the words, all of them in one turn or in the title: {turn, excerpt}; null where it has not. */
export function find(data, words) {
  const has = (text) => words.every((word) => text.toLowerCase().includes(word));
  const turn = Object.values(data.turns).find(({ role, content, files }) =>
    role && has(`${content ?? ""} ${(files ?? []).map(({ name }) => name).join(" ")}`));
  if (!turn) return has(data.title) ? { turn: null, excerpt: null } : null;
  const at = turn.content.toLowerCase().indexOf(words[0]);
  if (at < 0) return { turn, excerpt: null };
  const from = Math.max(0, at - AROUND);
  const end = at + words[0].length;
  return { turn, excerpt: [
    (from ? "…" : "") + turn.content.slice(from, at), turn.content.slice(at, end),
    turn.content.slice(end, end + AROUND) + (turn.content.length > end + AROUND ? "…" : ""),
  ] };
}

export class Talks {
  /** `open` shows a conversation, and a turn of it where one was looked for. */
  constructor(open) {
    this.open = open;
    byId("find-talk").addEventListener("input", () => this.draw());
    byId("export-talk").addEventListener("click", () => download(fileName(page.talk, "json"), "application/json", JSON.stringify(page.talk, null, 1)));
    byId("export-markdown").addEventListener("click", () => download(fileName(page.talk, "md"), "text/markdown", markdown(page.talk)));
    byId("export-all").addEventListener("click", async () => download("llamasrv-conversations.json", "application/json", await everything()));
    byId("import-talk").addEventListener("click", () => byId("import-file").click());
    byId("import-file").addEventListener("change", () => {
      const files = [...byId("import-file").files];
      byId("import-file").value = "";
      this.#import(files);
    });
  }

  draw() {
    const words = byId("find-talk").value.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = [];
    for (const data of stored()) {
      const found = words.length ? find(data, words) : { turn: null, excerpt: null };
      if (found) rows.push(this.#row(data, found));
    }
    byId("talk-list").replaceChildren(...rows);
    byId("found").textContent = words.length ? `${rows.length} found` : "";
  }

  /** Opens the conversation `step` places on in the list. */
  async step(step) {
    const all = stored();
    const at = all.findIndex(({ id }) => id === page.talk.id);
    const next = all[at < 0 ? 0 : at + step];
    if (next && next.id !== page.talk.id) this.open(new Conversation(await load(next.id)));
  }

  #row(data, { turn, excerpt }) {
    const [before, match, after] = excerpt ?? [];
    return make("li", {},
      make("button", { type: "button", class: "quiet title", "aria-current": data.id === page.talk.id ? "true" : null,
        onclick: async () => this.open(data.id === page.talk.id ? page.talk : new Conversation(await load(data.id)), turn?.id) },
      make("span", {}, data.title), excerpt ? make("small", {}, before, make("mark", {}, match), after) : null),
      make("button", { type: "button", class: "quiet delete", "aria-label": `Delete ${data.title}`, onclick: () => this.#delete(data) }, "×"));
  }

  async #delete(data) {
    const whole = data.id === page.talk.id ? page.talk : new Conversation(await load(data.id));
    const gone = forget(data.id);
    if (whole === page.talk) this.open(new Conversation({ settings: whole.settings }));
    else this.draw();
    statusWith(`“${data.title}” was deleted.`, "Undo", async () => {
      await gone;
      await save(whole);
      this.open(whole);
    });
  }

  async #import(files) {
    const made = [];
    try {
      for (const file of files) {
        const text = await file.text();
        made.push(...imported(text));
        keepPrompts([JSON.parse(text).prompts ?? []].flat());
      }
    } catch {
      return status("This file is no conversation.");
    }
    const kept = await Promise.all(made.map(save));
    if (made.length) this.open(made[0]);
    return status(kept.every(Boolean) ? (made.length > 1 ? `${made.length} conversations are here.` : "") : "This browser keeps no more: export what matters.");
  }
}
