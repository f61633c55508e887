// The playground: wires conversation, settings and stream to the page.

import { Attachments, watch } from "./attachments.js";
import { Conversation, forget, imported, stored } from "./conversation.js";
import { highlight } from "./markdown.js";
import { Sampling } from "./sampling.js";
import { mistakes, read } from "./schema.js";
import { byId, json, make } from "./server.js";
import { snippets } from "./snippets.js";
import { answer } from "./stream.js";
import { draw, fill } from "./turns.js";

const EXAMPLE_TOOLS = [{ type: "function", function: {
  name: "get_weather", description: "Current weather of a city",
  parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
} }];
const EXAMPLE_SCHEMA = {
  type: "object", properties: { name: { type: "string" }, age: { type: "integer" } },
  required: ["name", "age"], additionalProperties: false,
};

let talk = new Conversation(stored()[0]);
let running = null; // AbortController of the answer that is being written

const sampling = new Sampling(byId("sliders"), keep);
const messages = byId("messages");
const attachments = new Attachments(byId("pictures"), { tell: status, write: (text) => {
  const field = byId("prompt");
  field.value = field.value ? `${field.value.trimEnd()}\n\n${text}` : text;
} });

// ---------------------------------------------------------------- settings

function settings() {
  return {
    system: byId("system").value, sampling: sampling.chosen, thinking: byId("thinking").value, tools: byId("tools").value,
    schema: byId("schema").value, schemaOn: byId("schema-on").checked, model: byId("model").value,
  };
}

function useSettings({ system = "", sampling: chosen = {}, thinking = "", tools = "", schema = "", schemaOn = false } = {}) {
  byId("system").value = system;
  sampling.use(chosen);
  byId("thinking").value = thinking;
  byId("tools").value = tools;
  byId("schema").value = schema;
  byId("schema-on").checked = schemaOn;
  checkTools();
  checkSchema();
}

function keep() {
  talk.settings = settings();
  if (talk.path().length && !talk.save()) status("This browser keeps no more: export what matters.");
  drawTalks();
}

function checkTools() {
  const [value, problem] = read(byId("tools").value);
  const wrong = problem ?? (value === undefined || (Array.isArray(value) && value.every((tool) => tool?.function?.name))
    ? null : "expected a list of {type: function, function: {name, parameters}}");
  byId("tools-status").textContent = wrong ?? (value?.length ? `${value.length} defined` : "");
  byId("tools").setAttribute("aria-invalid", String(Boolean(wrong)));
  return wrong ? undefined : value;
}

function checkSchema() {
  const [value, problem] = read(byId("schema").value);
  const wrong = problem ?? (value === undefined || typeof value === "boolean" || (typeof value === "object" && value && !Array.isArray(value))
    ? null : "expected a schema");
  byId("schema-status").textContent = wrong ?? (byId("schema-on").checked && value === undefined ? "Write a schema first." : "");
  byId("schema").setAttribute("aria-invalid", String(Boolean(wrong)));
  return wrong ? undefined : value;
}

async function validateAnswer(text, finished) {
  const schema = byId("schema-on").checked ? checkSchema() : undefined;
  if (schema === undefined) return;
  const wrong = await mistakes(schema, text);
  byId("schema-status").textContent = wrong ? (finished ? `The answer does not fit: ${wrong}` : "The answer is being written…") : "The answer fits the schema.";
}

function request(end) {
  const { system, sampling: chosen, thinking } = settings();
  const body = {
    model: byId("model").value, messages: talk.messages(system, end), stream: true, stream_options: { include_usage: true }, ...chosen,
  };
  const tools = checkTools();
  if (tools?.length) body.tools = tools;
  const schema = byId("schema-on").checked ? checkSchema() : undefined;
  if (schema !== undefined) body.response_format = { type: "json_schema", json_schema: { name: "answer", strict: true, schema } };
  if (thinking) body.chat_template_kwargs = { enable_thinking: thinking === "true" };
  return body;
}

// ---------------------------------------------------------------- the conversation

function status(text) {
  byId("status").textContent = text;
}

function place(turn) {
  const parent = talk.parentOf(turn);
  return { at: parent.children.indexOf(turn.id), of: parent.children.length };
}

function drawAll() {
  messages.replaceChildren(...talk.path().map((turn) => draw(turn, place(turn), act, false)));
  messages.scrollTop = messages.scrollHeight;
}

function drawTalks() {
  const list = byId("talk-list");
  list.replaceChildren(...stored().map((kept) => make("li", {},
    make("button", { type: "button", class: "quiet title", "aria-current": kept.id === talk.id ? "true" : null, onclick: () => open(new Conversation(kept)) }, kept.title),
    make("button", { type: "button", class: "quiet", "aria-label": `Delete ${kept.title}`, onclick: () => {
      forget(kept.id);
      if (kept.id === talk.id) open(new Conversation());
      else drawTalks();
    } }, "×"),
  )));
}

function open(other) {
  running?.abort();
  talk = other;
  useSettings(talk.settings);
  if (talk.settings.model && [...byId("model").options].some((o) => o.value === talk.settings.model)) {
    byId("model").value = talk.settings.model;
  }
  drawAll();
  drawTalks();
}

async function generate(parent) {
  if (running) return;
  const turn = talk.add(parent, { role: "assistant", content: "" });
  const box = draw(turn, place(turn), act, true);
  const body = request(turn);
  messages.append(box);
  running = new AbortController();
  byId("stop").hidden = false;
  byId("send").disabled = true;
  status("Waiting for the first token…");
  let due = 0;
  let timer = null;
  const paint = () => {
    timer = null;
    const started = performance.now();
    const atEnd = messages.scrollHeight - messages.scrollTop - messages.clientHeight < 80;
    fill(box, turn, true);
    validateAnswer(turn.content, false);
    if (atEnd) messages.scrollTop = messages.scrollHeight;
    due = performance.now() + Math.max(30, 4 * (performance.now() - started)); // long answers are painted less often
  };
  const at = talk;
  try {
    await answer(body, turn, () => {
      status("Writing…");
      timer ??= setTimeout(paint, Math.max(0, due - performance.now()));
    }, running.signal);
    status("");
  } catch (error) {
    if (running.signal.aborted) {
      turn.finish = "stopped";
      status("Stopped.");
    } else {
      turn.error = error.message;
      status("");
    }
  }
  clearTimeout(timer);
  running = null;
  byId("stop").hidden = true;
  byId("send").disabled = false;
  if (!turn.content && !turn.reasoning && !turn.calls && !turn.error) at.remove(turn);
  at.save();
  if (at !== talk) return;
  keep();
  drawAll();
  validateAnswer(turn.content, true);
}

const act = {
  branch(turn, step) {
    talk.turnTo(turn, step);
    keep();
    drawAll();
  },
  again(turn) {
    if (running) return;
    const parent = talk.parentOf(turn);
    messages.querySelector(`[data-turn="${turn.id}"]`)?.remove();
    generate(parent);
  },
  edit(turn) {
    if (running) return;
    const box = messages.querySelector(`[data-turn="${turn.id}"] .text`);
    const field = make("textarea", { rows: 3, "aria-label": "Edit this turn" });
    field.value = turn.content;
    const form = make("form", { class: "edit", onsubmit: (event) => {
      event.preventDefault();
      const made = talk.add(talk.parentOf(turn), { role: "user", content: field.value, pictures: turn.pictures });
      drawAll();
      generate(made);
    } }, field, make("p", { class: "row" }, make("button", { class: "primary" }, "Send"),
      make("button", { type: "button", onclick: drawAll }, "Cancel")));
    box.replaceChildren(form);
    field.focus();
  },
  sendResults(turn, results) {
    if (running) return;
    turn.answered = true;
    let last = turn;
    turn.calls.forEach((call, i) => {
      last = talk.add(last, { role: "tool", callId: call.id, content: results[i] });
    });
    drawAll();
    generate(last);
  },
};

// ---------------------------------------------------------------- events

byId("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  const field = byId("prompt");
  if (running || (!field.value.trim() && !attachments.urls.length)) return;
  const turn = talk.add(talk.last(), { role: "user", content: field.value, ...(attachments.urls.length ? { pictures: attachments.urls } : {}) });
  field.value = "";
  attachments.set([]);
  keep();
  drawAll();
  generate(turn);
});

byId("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    byId("composer").requestSubmit();
  }
});

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !document.querySelector("dialog[open]")) running?.abort();
});

byId("stop").addEventListener("click", () => running?.abort());
byId("new-talk").addEventListener("click", () => {
  open(new Conversation({ settings: settings() }));
  byId("prompt").focus();
});
byId("reset-sampling").addEventListener("click", () => {
  sampling.use({});
  keep();
});
byId("tools-example").addEventListener("click", () => {
  byId("tools").value = JSON.stringify(EXAMPLE_TOOLS, null, 2);
  checkTools();
  keep();
});
byId("schema-example").addEventListener("click", () => {
  byId("schema").value = JSON.stringify(EXAMPLE_SCHEMA, null, 2);
  byId("schema-on").checked = true;
  checkSchema();
  keep();
});
byId("tools").addEventListener("input", checkTools);
byId("schema").addEventListener("input", checkSchema);
for (const id of ["system", "thinking", "tools", "schema", "schema-on"]) byId(id).addEventListener("change", () => {
  checkSchema();
  keep();
});
byId("model").addEventListener("change", () => {
  keep();
  useModel();
});

byId("export-talk").addEventListener("click", () => {
  const link = make("a", { href: URL.createObjectURL(new Blob([JSON.stringify(talk, null, 1)], { type: "application/json" })),
    download: `${talk.title.replace(/[^\w -]/g, "").trim() || "conversation"}.json` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
});
byId("import-talk").addEventListener("click", () => byId("import-file").click());
byId("import-file").addEventListener("change", async () => {
  const [file] = byId("import-file").files;
  byId("import-file").value = "";
  if (!file) return;
  try {
    const made = imported(await file.text());
    made.save();
    open(made);
  } catch {
    status("This file is no conversation.");
  }
});

// ---------------------------------------------------------------- attachments

watch(byId("main"), byId("prompt"), attachments);
byId("attach-button").addEventListener("click", () => byId("attach-file").click());
byId("attach-file").addEventListener("change", async () => {
  const files = [...byId("attach-file").files];
  byId("attach-file").value = "";
  await attachments.add(files);
});

// ---------------------------------------------------------------- code

function showCode(which) {
  const last = talk.path().at(-1);
  const body = request(last?.role === "assistant" ? last : undefined); // the request that the last answer came from
  if (!body.messages.some((m) => m.role === "user")) body.messages.push({ role: "user", content: byId("prompt").value || "Hello" });
  const all = snippets(location.origin, body, Boolean(sessionStorage.getItem("llamasrv:key")));
  const [, language, text] = all[which];
  byId("code-tabs").replaceChildren(...all.map(([name], i) => make("button", {
    type: "button", role: "tab", "aria-selected": String(i === which), onclick: () => showCode(i),
  }, name)));
  byId("code-text").textContent = text;
  highlight(byId("code-text"), text, language);
  if (!byId("code-dialog").open) byId("code-dialog").showModal();
}

byId("show-code").addEventListener("click", () => showCode(0));
byId("code-close").addEventListener("click", () => byId("code-dialog").close());
byId("code-copy").addEventListener("click", () => navigator.clipboard?.writeText(byId("code-text").textContent));

// ---------------------------------------------------------------- models

async function useModel() {
  const name = byId("model").value;
  if (!name) return;
  try {
    const props = await json(`/props?model=${encodeURIComponent(name)}`);
    sampling.useDefaults(props.default_generation_settings.params);
    byId("attach-file").accept = attachments.use(props.modalities);
  } catch { /* the sliders then begin where they are */ }
}

async function begin() {
  useSettings(talk.settings);
  drawAll();
  drawTalks();
  try {
    const { data } = await json("/v1/models");
    byId("model").replaceChildren(...data.map(({ id }) => make("option", { value: id }, id)));
    if (talk.settings.model && data.some(({ id }) => id === talk.settings.model)) byId("model").value = talk.settings.model;
    await useModel();
  } catch (error) {
    status(error.message);
  }
  document.body.dataset.ready = "yes";
}

begin();
