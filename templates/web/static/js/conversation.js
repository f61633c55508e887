// Conversations as trees: an edited or regenerated turn is a branch beside the old one. Kept in this browser alone.

import { parts } from "./attachments.js";

const PREFIX = "llamasrv:talk:";

export class Conversation {
  constructor(data = {}) {
    this.id = data.id ?? crypto.randomUUID?.() ?? String(Math.random()).slice(2);
    this.title = data.title ?? "New conversation";
    this.changed = data.changed ?? Date.now();
    this.turns = data.turns ?? {}; // id -> turn; the first ones hang on "root"
    this.turns.root ??= { children: [], selected: 0 };
    this.next = data.next ?? 1;
    this.settings = data.settings ?? {};
  }

  /** The turns that are shown, first to last. */
  path() {
    const out = [];
    let turn = this.turns.root;
    const most = Object.keys(this.turns).length; // a file from elsewhere may go in circles
    while (turn?.children.length && out.length < most) {
      turn = this.turns[turn.children[turn.selected]];
      if (turn) out.push(turn);
    }
    return out;
  }

  last() {
    return this.path().at(-1) ?? this.turns.root;
  }

  /** A new turn under `parent`, which is shown from now on. */
  add(parent, turn) {
    const made = { ...turn, id: String(this.next++), parent: parent.id ?? "root", children: [], selected: 0 };
    this.turns[made.id] = made;
    parent.selected = parent.children.push(made.id) - 1;
    if (turn.role === "user" && this.title === "New conversation") this.title = turn.content.slice(0, 60) || this.title;
    return made;
  }

  parentOf(turn) {
    return this.turns[turn.parent];
  }

  /** Show the branch beside this one, `step` places on. */
  turnTo(turn, step) {
    const parent = this.parentOf(turn);
    parent.selected = Math.min(parent.children.length - 1, Math.max(0, parent.selected + step));
  }

  remove(turn) {
    const parent = this.parentOf(turn);
    parent.children = parent.children.filter((id) => id !== turn.id);
    parent.selected = Math.max(0, Math.min(parent.selected, parent.children.length - 1));
    delete this.turns[turn.id];
  }

  /** What is sent: the shown turns as OpenAI messages, up to and without `end`. */
  messages(system, end) {
    const out = system ? [{ role: "system", content: system }] : [];
    for (const turn of this.path()) {
      if (turn === end) break;
      if (turn.role === "tool") out.push({ role: "tool", tool_call_id: turn.callId, content: turn.content });
      else if (turn.role === "user") out.push({ role: "user", content: withPictures(turn) });
      else out.push({
        role: "assistant", content: turn.content || (turn.calls?.length ? null : ""),
        ...(turn.calls?.length ? { tool_calls: turn.calls.map(({ id, name, arguments: text }) => ({ id, type: "function", function: { name, arguments: text } })) } : {}),
      });
    }
    return out;
  }

  save() {
    this.changed = Date.now();
    const text = JSON.stringify(this);
    for (;;) {
      try {
        localStorage.setItem(PREFIX + this.id, text);
        return true;
      } catch {
        const oldest = stored().filter((talk) => talk.id !== this.id).at(-1);
        if (!oldest) return false;
        forget(oldest.id);
      }
    }
  }
}

function withPictures(turn) {
  if (!turn.pictures?.length) return turn.content;
  return [...(turn.content ? [{ type: "text", text: turn.content }] : []), ...parts(turn.pictures)];
}

/** All that are kept, the latest first. */
export function stored() {
  const out = [];
  for (let i = 0; i < localStorage.length; i++) {
    const name = localStorage.key(i);
    if (!name.startsWith(PREFIX)) continue;
    try {
      out.push(JSON.parse(localStorage.getItem(name)));
    } catch { /* not ours */ }
  }
  return out.sort((a, b) => b.changed - a.changed);
}

export function forget(id) {
  localStorage.removeItem(PREFIX + id);
}

/** A conversation from an exported file. Raises where it is none. */
export function imported(text) {
  const data = JSON.parse(text);
  const turns = data?.turns;
  const sound = turns?.root && Object.values(turns).every((turn) =>
    Array.isArray(turn.children) && turn.children.every((id) => Object.hasOwn(turns, id)) && Number.isInteger(turn.selected));
  if (!sound || typeof data.title !== "string") throw new Error("This file is no conversation.");
  const said = Object.values(turns).filter((turn) => turn !== turns.root);
  if (!said.every((turn) => ["user", "assistant", "tool"].includes(turn.role) && typeof turn.content === "string")) {
    throw new Error("This file is no conversation.");
  }
  return new Conversation({ ...data, id: undefined });
}
