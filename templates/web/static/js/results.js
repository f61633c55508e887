// What a tool gave back, shown as what it is: rows as a table, pictures, a diff in colours, other JSON indented; else the
// text. Tools read what strangers wrote: every word of it is a text node, and nothing of it is fetched.

import { asFile, picture } from "./attachments.js";
import { highlight } from "./markdown.js";
import { make } from "./server.js";
import { words } from "./words.js";

const MOST_READ = 2_000_000; // characters of JSON that are read; a longer result stays text
const MOST_COLUMNS = 20;
const MOST_CELL = 400; // characters of a cell
const ROWS = 50; // rows that are shown at once
const MOST_LINES = 5000; // lines of a diff in colours
const PICTURE = /^image\/(?:png|jpe?g|gif|webp|avif|bmp)$/i; // not SVG, which is a document
const BASE64 = /^[A-Za-z0-9+/]+={0,2}$/;
const HUNK = /^@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@/m;

/** Puts the result `text` of a tool into `element`. */
export function showResult(element, text) {
  const nodes = drawn(text);
  element.classList.toggle("plain", !nodes);
  element.replaceChildren(...(nodes ?? [text]));
}

/** The elements that stand for `text`; null where it is text and nothing else. */
function drawn(text) {
  if (HUNK.test(text)) return [diff(text)];
  if (text.length > MOST_READ || !/^\s*[[{]/.test(text)) return null;
  let value;
  try {
    value = JSON.parse(text);
  } catch {
    return null;
  }
  const parts = partsOf(value);
  if (parts) return parts.flatMap((part) => drawnPart(part));
  return [table(value) ?? indented(value)];
}

// ---------------------------------------------------------------- content parts

const KINDS = ["text", "image", "image_url", "input_image"];

/** The content parts of a result, as MCP servers (`image`) and OpenAI's clients (`image_url`) write them; null where it is
 * none. */
function partsOf(value) {
  const list = Array.isArray(value) ? value : value?.content;
  return Array.isArray(list) && list.length && list.every((part) => KINDS.includes(part?.type)) ? list : null;
}

function drawnPart(part) {
  if (part.type === "text") {
    const box = make("div", {});
    showResult(box, String(part.text ?? ""));
    return [box];
  }
  const file = part.type === "image" ? imageFile(part.mimeType, part.data) : imageOf(part.image_url?.url ?? part.image_url);
  return [file ? picture(file) : make("p", { class: "faint" }, words.notShown(String(part.mimeType ?? part.type)))];
}

/** The picture of an MCP server's part; null where it is not one that browsers show. */
export function imageFile(type, data) {
  if (typeof type !== "string" || typeof data !== "string" || !PICTURE.test(type) || !BASE64.test(data)) return null;
  return asFile(`data:${type};base64,${data}`);
}

function imageOf(url) {
  const [, type, data] = /^data:([^;,]+);base64,(.*)$/s.exec(typeof url === "string" ? url : "") ?? [];
  return imageFile(type, data);
}

// ---------------------------------------------------------------- tables

const isRow = (row) => typeof row === "object" && row !== null && !Array.isArray(row);

/** A list of objects as a table, alone or as the only list in an object; null where it is none. */
function table(value) {
  const rows = Array.isArray(value) ? value : null;
  if (!rows) return isRow(value) ? tableIn(value) : null;
  if (!rows.length || !rows.every(isRow)) return null;
  const columns = [...new Set(rows.flatMap(Object.keys))];
  if (!columns.length || columns.length > MOST_COLUMNS) return null;
  const head = make("tr", {}, ...columns.map((name) => make("th", { scope: "col" }, name)));
  const body = make("tbody", {}, ...rows.slice(0, ROWS).map((row) => drawnRow(row, columns)));
  const box = make("div", { class: "scroll result", tabindex: 0, role: "region", "aria-label": words.resultTable },
    make("table", {}, make("thead", {}, head), body));
  if (rows.length <= ROWS) return box;
  const more = make("button", { type: "button", onclick: () => {
    body.append(...rows.slice(ROWS).map((row) => drawnRow(row, columns)));
    more.remove();
    box.focus();
  } }, words.allRows(rows.length));
  return make("div", {}, box, more);
}

/** Of an object like {"total": 2, "rows": [{}, {}]}: the table, with the rest before it. */
function tableIn(value) {
  const lists = Object.entries(value).filter(([, one]) => Array.isArray(one));
  const inner = lists.length === 1 ? table(lists[0][1]) : null;
  if (!inner) return null;
  const { [lists[0][0]]: _, ...rest } = value;
  return make("div", {}, Object.keys(rest).length ? indented(rest) : null, inner);
}

function drawnRow(row, columns) {
  return make("tr", {}, ...columns.map((name) => {
    const value = Object.hasOwn(row, name) ? row[name] : null;
    const text = value === null ? "" : typeof value === "string" ? value : typeof value === "number" ? String(value) : JSON.stringify(value);
    const short = text.length > MOST_CELL ? `${text.slice(0, MOST_CELL)}…` : text;
    return make("td", { class: typeof value === "number" ? "number" : null }, short);
  }));
}

function indented(value) {
  const text = JSON.stringify(value, null, 2);
  const code = make("code", {}, text);
  if (text.length < 50_000) highlight(code, text, "json");
  return make("pre", { class: "result", tabindex: 0 }, code);
}

// ---------------------------------------------------------------- diffs

const HEAD = /^(?:diff |index |--- |\+\+\+ |(?:new|deleted) file |rename |similarity )/;

/** Kinds of the lines of a diff. A hunk's head says how many lines it has: "--- x" in it is a line that was removed. */
function kinds() {
  let removed = 0;
  let added = 0; // lines that the hunk still has
  return (line) => {
    const hunk = HUNK.exec(line);
    if (removed <= 0 && added <= 0) {
      if (!hunk) return HEAD.test(line) ? "head" : null;
      [removed, added] = [hunk[1] ?? 1, hunk[2] ?? 1].map(Number);
      return "hunk";
    }
    const kind = { "+": "added", "-": "removed", "\\": "head" }[line[0]] ?? null;
    if (kind !== "added" && kind !== "head") removed--;
    if (kind !== "removed" && kind !== "head") added--;
    return kind;
  };
}

function diff(text) {
  const lines = text.replace(/\n$/, "").split("\n");
  const kind = kinds();
  const spans = lines.slice(0, MOST_LINES).map((line) => make("span", { class: kind(line) }, `${line}\n`));
  return make("pre", { class: "result diff", tabindex: 0, "aria-label": words.changes },
    make("code", {}, ...spans, lines.slice(MOST_LINES).join("\n") || null));
}
