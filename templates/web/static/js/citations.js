// What an answer quotes from an attached document, and the document's name where it stands, become links to the place.
// Only what stands in the document word for word is linked.

import { openDialog } from "./page.js";
import { byId, json, make } from "./server.js";
import { words } from "./words.js";

const QUOTED = /["“„«]([^"“”„«»]{15,2000})["”“»]/;
const SHORTEST_NAME = 5; // characters
const AROUND = 20_000; // characters shown on each side of a quotation
const PDF = /^application\/pdf|\.pdf$/i;
const PAGE = /^\[page (\d+) of \d+\]\n/gm; // how the server begins each page
const EDGE = "\u2e22\u2e22\u2e23\u2e23"; // stands before and after the document in the prompt that is read here

const texts = new WeakMap(); // file -> {text, pages: [{from, number}]}; null where it cannot be read

const isPdf = ({ type, name }) => PDF.test(type) || PDF.test(name);

/** The text of a document, where it is known by now. */
function textOf(file) {
  if (!texts.has(file)) {
    if (isPdf(file)) return null;
    try {
      const data = atob(file.url.slice(file.url.indexOf(",") + 1));
      texts.set(file, { text: new TextDecoder().decode(Uint8Array.from(data, (c) => c.charCodeAt(0))), pages: [] });
    } catch {
      texts.set(file, null);
    }
  }
  return texts.get(file);
}

const reading = new WeakMap(); // PDF -> promise

/** Has the server read a PDF for `model`, as it does when the PDF is sent. */
function read(file, model) {
  if (!reading.has(file)) {
    const edge = { type: "text", text: EDGE };
    const content = [edge, { type: "file", file: { file_data: file.url } }, edge];
    reading.set(file, json("/apply-template", { method: "POST", body: JSON.stringify({ model, messages: [{ role: "user", content }] }) }).then(
      ({ prompt }) => texts.set(file, paged(prompt.slice(prompt.indexOf(EDGE) + EDGE.length, prompt.lastIndexOf(EDGE)))),
      () => texts.set(file, null),
    ));
  }
  return reading.get(file);
}

/** The text of a document without the numbers of its pages, and where these begin. */
function paged(told) {
  const whole = told.trim().normalize("NFKC");
  const pages = [];
  let text = "";
  let at = 0;
  for (const match of whole.matchAll(PAGE)) {
    text += whole.slice(at, match.index);
    at = match.index + match[0].length;
    pages.push({ from: text.length, number: Number(match[1]) });
  }
  return { text: text + whole.slice(at), pages };
}

const escaped = (text) => text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
const letter = (one) => (/['‘’]/.test(one) ? "['‘’]" : escaped(one));

/** Where a document has these words, however its lines are broken: {file, from, to}; null where none has. */
function find(quotation, files) {
  const said = quotation.normalize("NFKC").trim().replace(/[.,;:!?…]+$/, "").split(/\s+/);
  const wanted = new RegExp(said.map((word) => [...word].map(letter).join("(?:-\\n)?")).join("\\s+"), "i");
  for (const file of files) {
    const match = wanted.exec(textOf(file)?.text ?? "");
    if (match) return { file, from: match.index, to: match.index + match[0].length };
  }
  return null;
}

/** The name of a document, and the page of it where there are several. */
function whereIs({ file, from, to }) {
  const name = file.name || words.document;
  const page = to ? textOf(file).pages.findLast((one) => one.from <= from) : null;
  return page ? words.pageOf(name, page.number) : name;
}

/** Shows the document at that place; a PDF that is only named is read now. */
async function openAt(place) {
  const { file, from, to, model } = place;
  if (isPdf(file)) await read(file, model);
  const text = textOf(file)?.text ?? words.unreadable;
  const mark = make("mark", {}, text.slice(from, to));
  byId("cited-title").textContent = whereIs(place);
  byId("cited-text").replaceChildren(from > AROUND ? "…" : "", text.slice(Math.max(0, from - AROUND), from), mark,
    text.slice(to, to + AROUND), text.length > to + AROUND ? "…" : "");
  openDialog("cited-dialog");
  mark.scrollIntoView({ block: "center" });
}

function link(text, place) {
  if (!isPdf(place.file) && !textOf(place.file)) return make("a", { class: "citation", href: place.file.url, download: place.file.name }, text);
  return make("a", { class: "citation", href: "#cited-dialog", title: words.inDocument(whereIs(place)), onclick: (event) => {
    event.preventDefault();
    openAt(place);
  } }, text);
}

/** Links what `element` quotes from these files, and their names. PDFs are read by the server for `model`, whose answer it
 * is, and only if there is a quotation. */
export function cite(element, files, model) {
  if (!files.length) return;
  linkIn(element, files, model);
  const unread = files.filter((file) => isPdf(file) && !texts.has(file));
  if (!unread.length || !QUOTED.test(element.textContent)) return;
  Promise.all(unread.map((file) => read(file, model))).then(() => linkIn(element, files, model));
}

function linkIn(element, files, model) {
  const named = files.filter(({ name }) => name.length >= SHORTEST_NAME);
  const pattern = new RegExp([QUOTED.source, ...(named.length ? [named.map(({ name }) => escaped(name)).join("|")] : [])].join("|"), "g");
  const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT, (node) =>
    (node.parentElement.closest("a, pre, .formula, .math") ? NodeFilter.FILTER_REJECT : NodeFilter.FILTER_ACCEPT));
  const nodes = [];
  while (walker.nextNode()) nodes.push(walker.currentNode);
  for (const node of nodes) {
    const whole = node.data;
    const pieces = [];
    let at = 0;
    for (const match of whole.matchAll(pattern)) {
      const file = match[1] === undefined ? named.find(({ name }) => name === match[0]) : null;
      const place = file ? { file, from: 0, to: 0 } : find(match[1], files);
      if (!place) continue;
      pieces.push(whole.slice(at, match.index), link(match[0], { ...place, model }));
      at = match.index + match[0].length;
    }
    if (pieces.length) node.replaceWith(...pieces, whole.slice(at));
  }
}
