// What a model wrote, to show: Markdown to HTML, cleaned before it touches the page, code in colours.
// Nothing of it is ever executed, and nothing is fetched for it: no scripts, styles, forms, frames or images.

import { marked } from "../vendor/marked.js";
import "../vendor/purify.js"; // window.DOMPurify
import { TOKENS, typeset } from "./math.js";
import { copy } from "./page.js";
import { make } from "./server.js";
import { words } from "./words.js";

const LANGUAGES = {
  python: "python", py: "python", javascript: "javascript", js: "javascript", jsx: "javascript", typescript: "typescript",
  ts: "typescript", tsx: "typescript", json: "json", bash: "bash", sh: "bash", shell: "bash", console: "bash", html: "xml",
  xml: "xml", svg: "xml", css: "css", c: "c", h: "c", cpp: "cpp", "c++": "cpp", java: "java", go: "go", rust: "rust",
  rs: "rust", sql: "sql", yaml: "yaml", yml: "yaml", diff: "diff", markdown: "markdown", md: "markdown",
};

const CLEAN = {
  ALLOWED_TAGS: [
    "a", "b", "blockquote", "br", "code", "del", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "i", "li", "ol", "p",
    "pre", "s", "strong", "sub", "sup", "table", "tbody", "td", "th", "thead", "tr", "ul",
  ],
  ALLOWED_ATTR: ["href", "align", "start", "class"],
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};

/** Raw HTML is text like any other: only Markdown has a meaning. */
marked.use({
  gfm: true,
  breaks: true,
  extensions: TOKENS,
  renderer: {
    html: ({ text }) => text.replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`),
    image: ({ text, title }) => (text || title || "").replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`),
  },
});

/** Puts the text into the element. With `finished`, code gets its colours and a button that copies it. */
export function show(element, text, finished) {
  const fragment = window.DOMPurify.sanitize(marked.parse(text), CLEAN);
  for (const link of fragment.querySelectorAll("a")) {
    link.target = "_blank";
    link.rel = "noopener noreferrer nofollow";
  }
  if (finished) for (const code of fragment.querySelectorAll("pre > code")) dress(code);
  element.replaceChildren(fragment);
  typeset(element);
}

function dress(code) {
  const text = code.textContent;
  const named = [...code.classList].find((name) => name.startsWith("language-"))?.slice(9).toLowerCase();
  code.parentElement.tabIndex = 0;
  code.parentElement.prepend(make("button", {
    type: "button", class: "copy", onclick: (event) => copy(text, event.currentTarget),
  }, words.copy));
  if (text.length < 50_000) highlight(code, text, LANGUAGES[named]);
}

let core = null;
const known = new Map();

/** Colours, once the language has been loaded; the text stays as it is where that fails. */
export async function highlight(code, text, language) {
  if (!language) return;
  core ??= import("../vendor/highlight/core.js").then((module) => module.default);
  const highlighter = await core;
  if (!known.has(language)) {
    known.set(language, import(`../vendor/highlight/${language}.js`).then((grammar) => {
      highlighter.registerLanguage(language, grammar.default);
    }));
  }
  await known.get(language);
  if (code.textContent !== text) return; // it shows another text by now
  const html = highlighter.highlight(text, { language, ignoreIllegals: true }).value;
  code.replaceChildren(window.DOMPurify.sanitize(html, {
    ALLOWED_TAGS: ["span"], ALLOWED_ATTR: ["class"], RETURN_DOM_FRAGMENT: true,
  }));
}
