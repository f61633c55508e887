// Formulas: $…$, $$…$$, \(…\) and \[…\] in what a model wrote. KaTeX is loaded with the first one; what it cannot read
// stays as it was written.

const INLINE = [
  /^\$\$([^$]+?)\$\$/, // amid a line
  /^\$((?:[^\s$\\]|\\[^\n])(?:(?:[^$\\\n]|\\[^\n])*(?:[^\s$\\]|\\[^\n]))?)\$(?!\d)/, // "$5 and $6" is money
  /^\\\(((?:[^\\]|\\(?!\))){1,2000}?)\\\)/,
];
const BLOCK = [/^ {0,3}\$\$([\s\S]{1,5000}?)\$\$ *(?:\n|$)/, /^ {0,3}\\\[([\s\S]{1,5000}?)\\\] *(?:\n|$)/];
const MOST = 5000; // characters of a formula

const escaped = (text) => text.replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);

function token(name, forms, source) {
  for (const form of forms) {
    const match = form.exec(source);
    if (match && match[1].trim()) return { type: name, raw: match[0], tex: match[1].trim() };
  }
  return undefined;
}

/** For marked: a formula becomes code of a class of its own, which is what is seen until it is typeset. */
export const TOKENS = [
  {
    name: "mathBlock", level: "block",
    start: (source) => /\n {0,3}(?:\$\$|\\\[)/.exec(source)?.index,
    tokenizer: (source) => token("mathBlock", BLOCK, source),
    renderer: ({ tex }) => `<p><code class="math-block">${escaped(tex)}</code></p>\n`,
  },
  {
    name: "mathInline", level: "inline",
    start: (source) => /\$|\\\(/.exec(source)?.index,
    tokenizer: (source) => token("mathInline", INLINE, source),
    renderer: ({ raw, tex }) => `<code class="${raw.startsWith("$$") ? "math-block" : "math"}">${escaped(tex)}</code>`,
  },
];

/** A formula that is wider than its place can be scrolled by keyboard. Its width is known once it is on the page. */
const wide = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    if (target.scrollWidth > target.clientWidth) target.tabIndex = 0;
    else target.removeAttribute("tabindex");
  }
});

let katex = null;
let loading = null;

function load() {
  loading ??= Promise.all([import("../vendor/katex/katex.js"), new Promise((resolve) => {
    const sheet = document.createElement("link");
    sheet.rel = "stylesheet";
    sheet.href = new URL("../vendor/katex/katex.css", import.meta.url).href;
    sheet.addEventListener("load", resolve);
    sheet.addEventListener("error", resolve);
    document.head.append(sheet);
  })]).then(() => {
    katex = window.katex;
  });
  return loading;
}

/** Typesets the formulas in `root`, those that have been loaded by then later. */
export function typeset(root) {
  const found = [...root.querySelectorAll("code.math, code.math-block")];
  if (!found.length) return;
  if (katex) found.forEach(draw);
  else load().then(() => found.forEach(draw), () => {});
}

function draw(code) {
  const tex = code.textContent;
  if (tex.length > MOST) return;
  const display = code.classList.contains("math-block");
  const box = document.createElement("span");
  try {
    // Nothing is trusted: no links, images or attributes of the author's. Sizes and expansions are bounded.
    katex.render(tex, box, { displayMode: display, throwOnError: true, trust: false, strict: "ignore", maxSize: 40, maxExpand: 500 });
  } catch {
    return;
  }
  box.className = display ? "formula block" : "formula";
  code.replaceWith(box);
  if (display) wide.observe(box);
}
