// The API's own documentation, drawn from /openapi.json; examples run against this server.

import { byId, call, json, make } from "./server.js";
import { apiWords as words } from "./words.js";

const isWide = matchMedia("(min-width: 60rem)").matches;
const VERDICTS = ["honoured", "ignored", "refused"];
const METHODS = ["get", "post", "put", "patch", "delete"];
const PROTOCOLS = ["OpenAI", "Anthropic", "Gemini", "Ollama", "llama.cpp", "Other servers", "Operation"];

/** A text whose parts in backticks are code. */
const rendered = (text) => text.split("`").map((part, i) => (i % 2 ? make("code", {}, part) : part));

function resolve(document, schema) {
  for (let i = 0; schema?.$ref && i < 20; i++) {
    schema = schema.$ref.slice(2).split("/").reduce((at, name) => at?.[name.replaceAll("~1", "/")], document);
  }
  return schema ?? {};
}

const typeOf = (schema) => [schema.type ?? schema.anyOf?.map((s) => s.type).join(" or ") ?? ""].flat().filter(Boolean).join(" or ");

function fields(document, schema) {
  const { properties = {}, required = [] } = resolve(document, schema);
  const rows = Object.entries(properties).map(([name, property]) => {
    const field = resolve(document, property);
    const verdict = field["x-verdict"] ?? property["x-verdict"] ?? "honoured";
    return [VERDICTS.indexOf(verdict), make("tr", {}, make("td", {}, make("code", {}, name)), make("td", {}, typeOf(field)),
      make("td", { class: verdict }, words.verdict(verdict, required.includes(name))),
      make("td", {}, ...rendered(field.description ?? property.description ?? "")))];
  });
  if (!rows.length) return null;
  rows.sort((a, b) => a[0] - b[0]);
  return make("div", { class: "scroll table", tabindex: 0, role: "region", "aria-label": words.fields }, make("table", {},
    make("thead", {}, make("tr", {}, ...words.columns.map((t) => make("th", {}, t)))),
    make("tbody", {}, ...rows.map(([, row]) => row))));
}

const MANAGES = /^\/api\/(copy|create|delete|pull|push)|^\/models|^\/admin/; // whose examples must not name a model that is there

/** Path and example with a model that is served here, where they name one that is not. */
function withModel(path, method, body) {
  const wanted = /embed/i.test(path) ? ["embedding", "embeddings"] : ["completion"];
  const able = served.find(({ meta }) => wanted.some((name) => meta?.capabilities?.includes(name))) ?? served[0];
  if (!able || method === "delete" || MANAGES.test(path)) return [path, body];
  const isNamed = typeof body?.model === "string" && !served.some(({ id }) => id === body.model);
  return [path.replace(/(?<=\/models\/)\{name\}/, () => encodeURI(able.id)), isNamed ? { ...body, model: able.id } : body];
}

function example(path, method, operation, content) {
  if (!firstReply(operation)[0]?.startsWith("2")) return null; // it takes no plain requests
  const [target, text] = withModel(path, method, content?.example ?? Object.values(content?.examples ?? {})[0]?.value);
  const body = text === undefined ? null : make("textarea", { class: "code", rows: 8, spellcheck: "false", "aria-label": words.body });
  if (body) body.value = JSON.stringify(text, null, 2);
  if (method !== "get" && !body) return null;
  const output = make("pre", { tabindex: 0, hidden: true }, make("code"));
  const address = make("input", { class: "code", value: target, "aria-label": words.address, size: 40 });
  const run = make("button", { type: "button", class: "primary", onclick: async () => {
    output.hidden = false;
    const code = output.firstChild;
    const [missing] = /\{[^}]*\}/.exec(address.value) ?? [];
    if (missing) {
      code.textContent = words.missing(missing);
      address.focus();
      address.setSelectionRange(address.value.indexOf(missing), address.value.indexOf(missing) + missing.length);
      return;
    }
    run.disabled = true;
    code.textContent = "";
    try {
      const answer = await call(address.value, body ? { method: method.toUpperCase(), body: body.value } : {});
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      for (;;) {
        const { value, done } = await reader.read();
        if (done || code.textContent.length > 100_000) break;
        code.textContent += value;
      }
      reader.cancel().catch(() => {});
      if (/json/.test(answer.headers.get("content-type"))) {
        try {
          code.textContent = JSON.stringify(JSON.parse(code.textContent), null, 2);
        } catch { /* more than one value */ }
      }
    } catch (error) {
      code.textContent = error.message;
    }
    run.disabled = false;
  } }, words.run);
  return make("details", {}, make("summary", {}, words.tryIt), make("p", { class: "row" }, address, run), body, output);
}

/** Status and response of a request that succeeds. */
const firstReply = (operation) => Object.entries(operation.responses).find(([code]) => code !== "default") ?? [];

/** What it answers to its example; where there is no text of that, its status and form. */
function exampleReply(operation) {
  const [status, response] = firstReply(operation);
  const [kind, { example: reply }] = Object.entries(response?.content ?? {}).find(([, one]) => one.example !== undefined) ?? [null, {}];
  if (reply === undefined) return make("p", { class: "faint" }, words.replies(status, Object.keys(response?.content ?? {})));
  const text = typeof reply === "string" ? reply : JSON.stringify(reply, null, 2);
  return make("details", {}, make("summary", {}, words.exampleReply),
    make("p", { class: "faint" }, words.shortened(status, kind)), make("pre", { tabindex: 0 }, make("code", {}, text)));
}

/** One operation, folded; its fields and example are drawn when someone opens it. */
function endpoint(document, path, method, operation, id) {
  const content = operation.requestBody?.content?.["application/json"];
  const box = make("details", { class: "endpoint", id }, make("summary", {},
    make("h3", {}, make("span", { class: `method ${method}` }, `${method.toUpperCase()} `), path),
    make("span", { class: "faint" }, ...rendered(operation.summary ?? operation.description ?? ""))));
  box.addEventListener("toggle", () => {
    const parts = [content ? fields(document, content.schema) : null, exampleReply(operation), example(path, method, operation, content)].filter(Boolean);
    box.append(...(parts.length ? parts : [make("p", { class: "faint" }, words.noBody)]));
  }, { once: true });
  return box;
}

/** The path under which most clients know it: the one with a version. */
const preference = (path) => (path.startsWith("/v1") ? 0 : path.startsWith("/api/") ? 1 : 2);

async function begin() {
  const [document, models] = await Promise.all([json("/openapi.json"), json("/v1/models").catch(() => ({}))]);
  served = models.data ?? [];
  const first = new Map(); // method and operation -> the path that stands for all of its paths
  const sorted = Object.entries(document.paths).sort(([a], [b]) => preference(a) - preference(b));
  const operations = [];
  for (const [path, item] of sorted) {
    for (const method of METHODS) {
      if (!item[method]) continue;
      const { operationId, ...same } = item[method];
      const key = `${method} ${JSON.stringify(same)}`;
      operations.push({ path, method, operation: item[method], alias: path !== (first.get(key) ?? path) });
      if (!first.has(key)) first.set(key, path);
    }
  }
  const place = ({ operation }) => PROTOCOLS.indexOf(operation.tags?.[0] ?? PROTOCOLS.at(-1));
  operations.sort((a, b) => place(a) - place(b) || a.alias - b.alias || (a.path < b.path ? -1 : a.path > b.path ? 1 : 0));
  for (const [i, { path, method, operation, alias }] of operations.entries()) {
    const id = `endpoint-${i}`;
    const box = endpoint(document, path, method, operation, id);
    const link = make("li", {}, make("a", { href: `#${id}`, onclick: () => (box.open = true) }, make("span", { class: `method ${method}` }, method.toUpperCase()), make("span", {}, ...path.split(/(?=\/)/).flatMap((part) => [part, make("wbr")]))));
    entries.push({ box, link, alias, protocol: operation.tags?.[0], text: `${method} ${path} ${operation.summary ?? ""}`.toLowerCase() });
  }
  for (const protocol of PROTOCOLS) {
    const own = entries.filter((entry) => entry.protocol === protocol);
    if (!own.length) continue;
    const list = make("ul", {}, ...own.map(({ link }) => link));
    const section = make("section", { "aria-label": protocol }, make("h2", {}, protocol), make("p", { class: "faint" }, words.protocols[protocol]), ...own.map(({ box }) => box));
    const index = make("details", { open: protocol === PROTOCOLS[0] && isWide }, make("summary", {}, protocol), list);
    groups.push({ section, index, own });
  }
  byId("paths").append(...groups.map(({ section }) => section));
  byId("endpoints").append(...groups.map(({ index }) => index));
  show();
  const wanted = location.hash && byId(location.hash.slice(1));
  if (wanted) {
    wanted.open = true;
    wanted.scrollIntoView();
  }
}

let served = []; // models, for the examples
const entries = []; // {box, link, alias, protocol, text}
const groups = []; // of a protocol: {section, index, own entries}

function show() {
  const wanted = byId("find").value.toLowerCase().trim();
  let count = 0;
  for (const { box, link, alias, text } of entries) {
    const shown = text.includes(wanted) && (!alias || byId("aliases").checked);
    box.hidden = link.hidden = !shown;
    count += shown;
  }
  for (const { section, index, own } of groups) {
    section.hidden = index.hidden = own.every(({ box }) => box.hidden);
    if (wanted) index.open = true;
  }
  byId("status").textContent = words.count(count);
}

byId("find").addEventListener("input", show);
byId("aliases").addEventListener("change", show);

begin().catch((error) => (byId("status").textContent = error.message));
