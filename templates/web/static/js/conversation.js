// Conversations as trees: an edited or regenerated turn is a branch beside the old one. Knows no page and no storage.

import { asFile, parts } from "./attachments.js";
import { words } from "./words.js";

const UNNAMED = words.unnamed;

export class Conversation {
  constructor(data = {}) {
    this.id = data.id ?? newId();
    this.title = data.title ?? UNNAMED;
    this.named = data.named === true; // by someone or by the model; else the title is how the first message begins
    this.changed = data.changed ?? Date.now();
    this.turns = data.turns ?? {}; // id -> turn; the first ones hang on "root"
    this.turns.root ??= { children: [], selected: 0 };
    this.next = data.next ?? 1;
    this.settings = data.settings ?? {};
    for (const turn of Object.values(this.turns)) {
      if (!turn.pictures) continue; // how earlier versions kept them
      turn.files = turn.pictures.map((url) => asFile(url));
      delete turn.pictures;
    }
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
    if (turn.role === "user" && this.title === UNNAMED) this.title = turn.content.slice(0, 60) || turn.files?.[0]?.name || this.title;
    return made;
  }

  parentOf(turn) {
    return this.turns[turn.parent];
  }

  /** The answers that were given to the same turn at the same time, this one included. */
  pairOf(turn) {
    return turn.pair ? this.parentOf(turn).children.map((id) => this.turns[id]).filter(({ pair }) => pair === turn.pair) : [turn];
  }

  /** Show the branch beside this one, `step` places on. */
  turnTo(turn, step) {
    const parent = this.parentOf(turn);
    parent.selected = Math.min(parent.children.length - 1, Math.max(0, parent.selected + step));
  }

  /** Show this turn, and all that led to it. */
  show(turn) {
    for (let at = turn; at?.parent; at = this.parentOf(at)) this.parentOf(at).selected = this.parentOf(at).children.indexOf(at.id);
  }

  remove(turn) {
    const parent = this.parentOf(turn);
    parent.children = parent.children.filter((id) => id !== turn.id);
    parent.selected = Math.max(0, Math.min(parent.selected, parent.children.length - 1));
    delete this.turns[turn.id];
  }

  /** Removes a turn and all that follows on it. {count, undo}: how many those are, and what puts them back. */
  prune(turn) {
    const parent = this.parentOf(turn);
    const { children, selected } = parent;
    const gone = [];
    for (const open = [turn.id]; open.length;) {
      const one = this.turns[open.pop()];
      if (!one || gone.includes(one)) continue; // a file from elsewhere may go in circles
      gone.push(one);
      open.push(...one.children);
    }
    this.remove(turn);
    for (const one of gone) delete this.turns[one.id];
    const undo = () => {
      for (const one of gone) this.turns[one.id] = one;
      Object.assign(parent, { children, selected });
    };
    return { count: gone.length, undo };
  }

  /** Takes in what another version of this conversation has and this one has not, as branches. Whether there was any. */
  merge(other) {
    const same = (one, two) => ["role", "content", "model", "callId"].every((name) => one[name] === two[name])
      && JSON.stringify(one.calls ?? []) === JSON.stringify(two.calls ?? []);
    const seen = new Set(); // a file from elsewhere may go in circles
    let count = 0;
    for (const open = [[this.turns.root, other.turns.root]]; open.length;) {
      const [here, there] = open.pop();
      if (seen.has(there)) continue;
      seen.add(there);
      for (const id of there.children) {
        const turn = other.turns[id];
        let twin = here.children.map((child) => this.turns[child]).find((one) => same(one, turn));
        if (!twin) {
          const { selected } = here;
          twin = this.add(here, turn);
          if (here.children.length > 1) here.selected = selected;
          count += 1;
        }
        open.push([twin, turn]);
      }
    }
    if (other.named && !this.named) Object.assign(this, { title: other.title, named: true });
    this.changed = Math.max(this.changed, other.changed);
    return count > 0 || Object.keys(this.turns).length > Object.keys(other.turns).length;
  }

  /** What is sent: the shown turns as OpenAI messages, up to and without `end`. `sees`: with the pictures of tools. */
  messages(system, end, sees) {
    const out = system ? [{ role: "system", content: system }] : [];
    for (const turn of this.path()) {
      if (turn === end) break;
      if (turn.summary) {
        out.splice(system ? 1 : 0, out.length, { role: "user", content: `${words.summaryPrompt}\n\n${turn.content}` });
        continue;
      }
      if (turn.role === "tool") out.push({ role: "tool", tool_call_id: turn.callId, content: parts(turn.content, sees ? turn.files ?? [] : []) });
      else if (turn.role === "user") pushUser(out, parts(turn.content, turn.files ?? []));
      else out.push({
        role: "assistant", content: turn.content || (turn.calls?.length ? null : ""),
        ...(turn.calls?.length ? { tool_calls: turn.calls.map(({ id, name, arguments: text }) => ({ id, type: "function", function: { name, arguments: text } })) } : {}),
      });
    }
    return out;
  }
}

/** Templates want turns that alternate: after a summary, the message goes into the same turn. */
function pushUser(out, content) {
  const last = out.at(-1);
  if (last?.role !== "user") return out.push({ role: "user", content });
  const text = (part) => typeof part === "string" ? [{ type: "text", text: part }] : part;
  last.content = typeof content === "string" ? `${last.content}\n\n${content}` : [...text(last.content), ...text(content)];
  return out.length;
}

export const newId = () => crypto.randomUUID?.() ?? String(Math.random()).slice(2);

/** Conversations from an exported file: one, or all. Raises where it is neither. */
export function imported(text) {
  const data = JSON.parse(text);
  const all = Array.isArray(data?.conversations) ? data.conversations : [data];
  if (!all.every(isSound)) throw new Error(words.notConversation);
  return all.map((one) => new Conversation({ ...one, id: undefined }));
}

export function isSound(data) {
  const turns = data?.turns;
  if (!turns?.root || typeof data.title !== "string") return false;
  return Object.values(turns).every((turn) =>
    Array.isArray(turn.children) && turn.children.every((id) => Object.hasOwn(turns, id)) && Number.isInteger(turn.selected)
    && (turn === turns.root || (["user", "assistant", "tool"].includes(turn.role) && typeof turn.content === "string"
      && Object.hasOwn(turns, turn.parent) && (turn.files ?? []).every((file) => /^data:/.test(file?.url)))));
}
