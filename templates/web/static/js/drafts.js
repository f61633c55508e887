// Messages that were begun and not sent, by conversation. In this browser alone, and bounded.

const KEY = "llamasrv:drafts";
const MOST = 50;
const LONGEST = 100_000; // characters

function all() {
  try {
    return new Map(JSON.parse(localStorage.getItem(KEY) ?? "[]"));
  } catch {
    return new Map();
  }
}

/** What was begun there; conversations without a message share one. */
export const draftOf = (talk) => all().get(nameOf(talk)) ?? "";

const nameOf = (talk) => talk.turns.root.children.length ? talk.id : "new";

export function keepDraft(talk, text) {
  const drafts = all();
  drafts.delete(nameOf(talk));
  if (text.trim() && text.length <= LONGEST) drafts.set(nameOf(talk), text);
  try {
    localStorage.setItem(KEY, JSON.stringify([...drafts].slice(-MOST)));
  } catch { /* the browser's storage is full */ }
}
