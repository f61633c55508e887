// The API's own documentation, drawn from /openapi.json; examples run against this server.

import { byId, call, json, make } from "./server.js";

const VERDICTS = ["honoured", "ignored", "refused"];

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
      make("td", { class: verdict }, verdict + (required.includes(name) ? ", required" : "")),
      make("td", {}, field.description ?? property.description ?? ""))];
  });
  if (!rows.length) return null;
  rows.sort((a, b) => a[0] - b[0]);
  return make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Fields" }, make("table", {},
    make("thead", {}, make("tr", {}, ...["Field", "Type", "Here", "Meaning"].map((t) => make("th", {}, t)))),
    make("tbody", {}, ...rows.map(([, row]) => row))));
}

function example(path, method, operation, content) {
  const text = content?.example ?? Object.values(content?.examples ?? {})[0]?.value;
  const body = text === undefined ? null : make("textarea", { class: "code", rows: 8, spellcheck: "false", "aria-label": "Body" });
  if (body) body.value = JSON.stringify(text, null, 2);
  if (method !== "get" && !body) return null;
  const output = make("pre", { tabindex: 0, hidden: true }, make("code"));
  const address = make("input", { class: "code", value: path, "aria-label": "Address", size: 40 });
  const run = make("button", { type: "button", class: "primary", onclick: async () => {
    run.disabled = true;
    output.hidden = false;
    const code = output.firstChild;
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
  } }, "Run");
  return make("details", {}, make("summary", {}, "Try it"), make("p", { class: "row" }, address, run), body, output);
}

function endpoint(document, path, method, operation, id) {
  const content = operation.requestBody?.content?.["application/json"];
  return make("section", { class: "endpoint", id, "aria-labelledby": `${id}-title` },
    make("h2", { id: `${id}-title` }, make("span", { class: "method" }, `${method.toUpperCase()} `), path),
    make("p", {}, operation.summary ?? operation.description ?? ""),
    content ? fields(document, content.schema) : null, example(path, method, operation, content));
}

async function begin() {
  const document = await json("/openapi.json");
  let count = 0;
  for (const [path, item] of Object.entries(document.paths)) {
    for (const method of ["get", "post", "put", "delete"]) {
      if (!item[method]) continue;
      const id = `endpoint-${count++}`;
      byId("paths").append(endpoint(document, path, method, item[method], id));
      byId("endpoints").append(make("li", {}, make("a", { href: `#${id}` }, `${method.toUpperCase()} ${path}`)));
    }
  }
  byId("status").textContent = `${count} operations.`;
  if (location.hash) byId(location.hash.slice(1))?.scrollIntoView();
}

byId("find").addEventListener("input", () => {
  const wanted = byId("find").value.toLowerCase();
  for (const item of byId("endpoints").children) {
    item.hidden = !item.textContent.toLowerCase().includes(wanted);
    byId(item.firstChild.hash.slice(1)).hidden = item.hidden;
  }
});

begin().catch((error) => (byId("status").textContent = error.message));
