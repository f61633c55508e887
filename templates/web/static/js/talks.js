// The list of conversations: by day, with search, rename, delete; and taking them along.

import { Conversation, imported } from "./conversation.js";
import { icon } from "./icons.js";
import { download, page, status } from "./page.js";
import { keepPrompts } from "./prompts.js";
import { byId, make } from "./server.js";
import { forget, load, save, stored } from "./store.js";
import { offerUndo } from "./toast.js";
import { words } from "./words.js";

const AROUND = 30; // characters shown on each side of what was found
const LONGEST_TITLE = 200; // characters

/** Where a conversation has the words, all of them in one turn or in the title: {turn, excerpt}; null where it has not. */
export function find(data, wanted) {
  const has = (text) => wanted.every((word) => text.toLowerCase().includes(word));
  const turn = Object.values(data.turns).find(({ role, content, files }) =>
    role && has(`${content ?? ""} ${(files ?? []).map(({ name }) => name).join(" ")}`));
  if (!turn) return has(data.title) ? { turn: null, excerpt: null } : null;
  const at = turn.content.toLowerCase().indexOf(wanted[0]);
  if (at < 0) return { turn, excerpt: null };
  const from = Math.max(0, at - AROUND);
  const end = at + wanted[0].length;
  return { turn, excerpt: [
    (from ? "…" : "") + turn.content.slice(from, at), turn.content.slice(at, end),
    turn.content.slice(end, end + AROUND) + (turn.content.length > end + AROUND ? "…" : ""),
  ] };
}

/** The heading under which a conversation that was changed then stands. */
function dayOf(changed) {
  const midnight = new Date().setHours(0, 0, 0, 0);
  const days = Math.ceil((midnight - changed) / 86_400_000);
  return days <= 0 ? words.today : days === 1 ? words.yesterday : days <= 7 ? words.lastWeek : words.earlier;
}

export class Talks {
  /** `open` shows a conversation, and a turn of it where one was looked for. */
  constructor(open) {
    this.open = open;
    byId("find-talk").addEventListener("input", () => this.draw());
    const exporting = (id, type, file) => byId(id).addEventListener("click", async () => {
      const [name, text] = await file(await import("./export.js"));
      download(name, type, text);
    });
    exporting("export-talk", "application/json", ({ fileName }) => [fileName(page.talk, "json"), JSON.stringify(page.talk, null, 1)]);
    exporting("export-markdown", "text/markdown", ({ fileName, markdown }) => [fileName(page.talk, "md"), markdown(page.talk)]);
    exporting("export-all", "application/json", async ({ everything }) => ["llamasrv-conversations.json", await everything()]);
    byId("import-talk").addEventListener("click", () => byId("import-file").click());
    byId("import-file").addEventListener("change", () => {
      const files = [...byId("import-file").files];
      byId("import-file").value = "";
      this.#import(files);
    });
  }

  draw() {
    const wanted = byId("find-talk").value.toLowerCase().split(/\s+/).filter(Boolean);
    const days = new Map();
    let count = 0;
    for (const data of stored()) {
      const found = wanted.length ? find(data, wanted) : { turn: null, excerpt: null };
      if (!found) continue;
      const day = dayOf(data.changed);
      if (!days.has(day)) days.set(day, []);
      days.get(day).push(this.#row(data, found));
      count += 1;
    }
    byId("talk-list").replaceChildren(...[...days].flatMap(([day, rows]) => [make("h2", {}, day), make("ul", {}, ...rows)]));
    byId("found").textContent = wanted.length ? words.found(count) : "";
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
    const button = (name, label, onclick) => make("button", { type: "button", class: "quiet round", "aria-label": label, title: label, onclick }, icon(name));
    const row = make("li", {},
      make("button", { type: "button", class: "quiet title", "data-talk": data.id, "aria-current": data.id === page.talk.id ? "true" : null,
        onclick: async () => this.open(await this.#whole(data), turn?.id) },
      make("span", {}, data.title), excerpt ? make("small", {}, before, make("mark", {}, match), after) : null),
      button("edit", words.rename(data.title), () => this.#rename(data, row)),
      button("delete", words.deleteTalk(data.title), () => this.#delete(data)));
    return row;
  }

  #whole = async (data) => data.id === page.talk.id ? page.talk : new Conversation(await load(data.id));

  #rename(data, row) {
    const field = make("input", { "aria-label": words.name, maxlength: LONGEST_TITLE, value: data.title });
    let left = false;
    const leave = async (kept, byKey = false) => {
      if (left) return;
      left = true;
      const title = field.value.trim();
      if (kept && title && title !== data.title) {
        const talk = await this.#whole(data);
        Object.assign(talk, { title, named: true });
        await save(talk);
      }
      this.draw();
      if (byKey) byId("talk-list").querySelector(`[data-talk="${CSS.escape(data.id)}"]`)?.focus();
    };
    field.addEventListener("keydown", (event) => {
      if (event.isComposing || !["Enter", "Escape"].includes(event.key)) return;
      event.preventDefault();
      event.stopPropagation();
      leave(event.key === "Enter", true);
    });
    field.addEventListener("blur", () => leave(true));
    row.replaceChildren(field);
    field.focus();
    field.select();
  }

  async #delete(data) {
    const whole = await this.#whole(data);
    const gone = forget(data.id);
    if (whole === page.talk) this.open(new Conversation({ settings: whole.settings }));
    else this.draw();
    offerUndo(words.deletedTalk(data.title), async () => {
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
      return status(words.notConversation);
    }
    const kept = await Promise.all(made.map(save));
    if (made.length) this.open(made[0]);
    return status(kept.every(Boolean) ? (made.length > 1 ? words.imported(made.length) : "") : words.storageFull);
  }
}
