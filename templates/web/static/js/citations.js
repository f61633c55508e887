// What an answer quotes from an attached document, and the document's name where it stands, become links to the place.
// Only what stands in the document word for word is linked.

import { isImage, isSound } from "./attachments.js";
import { openDialog } from "./page.js";
import { byId, make } from "./server.js";
import { words } from "./words.js";

const QUOTED = /["“„«]([^"“”„«»]{15,2000})["”“»]/;
const SHORTEST_NAME = 5; // characters
const AROUND = 20_000; // characters shown on each side of a quotation
const NO_TEXT = /^application\/pdf|\.pdf$/i;

const texts = new WeakMap(); // of files

export const isDocument = (file) => !isImage(file) && !isSound(file);

/** The text of a document; null of one that only the server can read. */
function textOf(file) {
  if (NO_TEXT.test(file.type) || NO_TEXT.test(file.name)) return null;
  if (!texts.has(file)) {
    try {
      const data = atob(file.url.slice(file.url.indexOf(",") + 1));
      texts.set(file, new TextDecoder().decode(Uint8Array.from(data, (c) => c.charCodeAt(0))));
    } catch {
      texts.set(file, null);
    }
  }
  return texts.get(file);
}

const escaped = (text) => text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");

/** Where a document has these words, however its lines are broken: {file, from, to}; null where none has. */
function find(quotation, files) {
  const wanted = new RegExp(quotation.trim().replace(/[.,;:!?…]+$/, "").split(/\s+/).map(escaped).join("\\s+"), "i");
  for (const file of files) {
    const match = wanted.exec(textOf(file) ?? "");
    if (match) return { file, from: match.index, to: match.index + match[0].length };
  }
  return null;
}

function openAt({ file, from, to }) {
  const text = textOf(file);
  const mark = make("mark", {}, text.slice(from, to));
  byId("cited-title").textContent = file.name || words.document;
  byId("cited-text").replaceChildren(from > AROUND ? "…" : "", text.slice(Math.max(0, from - AROUND), from), mark,
    text.slice(to, to + AROUND), text.length > to + AROUND ? "…" : "");
  openDialog("cited-dialog");
  mark.scrollIntoView({ block: "center" });
}

function link(text, place) {
  if (textOf(place.file) === null) return make("a", { class: "citation", href: place.file.url, download: place.file.name }, text);
  return make("a", { class: "citation", href: "#cited-dialog", title: words.inDocument(place.file.name || words.document), onclick: (event) => {
    event.preventDefault();
    openAt(place);
  } }, text);
}

/** Links what `element` quotes from these files, and their names. */
export function cite(element, files) {
  if (!files.length) return;
  const named = files.filter(({ name }) => name.length >= SHORTEST_NAME);
  const pattern = new RegExp([QUOTED.source, ...(named.length ? [named.map(({ name }) => escaped(name)).join("|")] : [])].join("|"), "g");
  const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT, (node) =>
    (node.parentElement.closest("a, pre, .formula, .math") ? NodeFilter.FILTER_REJECT : NodeFilter.FILTER_ACCEPT));
  const nodes = [];
  while (walker.nextNode()) nodes.push(walker.currentNode);
  for (const node of nodes) {
    const whole = node.data;
    const parts = [];
    let at = 0;
    for (const match of whole.matchAll(pattern)) {
      const file = match[1] === undefined ? named.find(({ name }) => name === match[0]) : null;
      const place = file ? { file, from: 0, to: 0 } : find(match[1], files);
      if (!place) continue;
      parts.push(whole.slice(at, match.index), link(match[0], place));
      at = match.index + match[0].length;
    }
    if (parts.length) node.replaceWith(...parts, whole.slice(at));
  }
}
