// The page of models: what is there and what can be done with it.

import { bytes, number } from "./figures.js";
import { beginHub } from "./hub.js";
import { redraw } from "./redraw.js";
import { byId, call, events, json, make } from "./server.js";
import { offerUndo } from "./toast.js";
import { askForVariant } from "./variant.js";
import { modelWords as words, percent } from "./words.js";

const LOOK = 2000; // milliseconds between looks while something changes
const NAMES = 3; // that are shown of a model's further ones
const RETRY = 5000; // milliseconds until the stream of events is asked for again

let models = [];
let manage = false;
const leaving = new Set(); // models whose deletion can still be taken back
const pulls = new Map(); // name -> {completed, total, error, done}
const paused = new Set(); // names of pulls that someone paused here
let next = null;

async function act(path, options) {
  byId("status").textContent = "";
  try {
    await call(path, options);
    await refresh();
  } catch (error) {
    byId("status").textContent = error.message;
  }
}

const post = (path, model) => act(path, { method: "POST", body: JSON.stringify({ model }) });

function remove(model) {
  leaving.add(model.id);
  draw();
  const back = () => {
    leaving.delete(model.id);
    draw();
  };
  offerUndo(words.deleted(model.id), back, async () => {
    await act(`/models?model=${encodeURIComponent(model.id)}`, { method: "DELETE", keepalive: true });
    back();
  });
}

/** What is known of a model without loading it, in words. */
function facts({ meta = {}, context_length: context, max_model_len: length, source, measured }) {
  const writes = (meta.capabilities ?? []).includes("completion");
  return [
    meta.ftype, meta.n_params ? words.parameters(number(meta.n_params)) : null, meta.size ? bytes(meta.size) : null,
    context || length ? words.context(number(context || length)) : null, source ? words.source(source) : null,
    measured ? words.measured(measured) : writes ? words.notMeasured : null,
  ].filter(Boolean);
}

function row(model) {
  const state = model.status?.value ?? "unloaded";
  const share = model.status?.progress;
  const button = (label, run, primary) => make("button", { type: "button", class: primary ? "primary" : null, "aria-label": `${label} ${model.id}`, onclick: run }, label);
  const buttons = [];
  if (state === "loaded") buttons.push(make("a", { class: "button", href: `/?model=${encodeURIComponent(model.id)}`, "aria-label": `${words.chat} ${model.id}` }, words.chat));
  if (manage && state === "loaded") buttons.push(button(words.unload, () => post("/models/unload", model.id)));
  if (manage && ["unloaded", "failed"].includes(state)) buttons.push(button(words.load, () => post("/models/load", model.id), true));
  if (manage && !["loading", "failed"].includes(state)) buttons.push(button(words.variant, () => askForVariant(model, act)));
  if (manage && model.can_remove) buttons.push(button(words.delete, () => remove(model)));
  return make("li", { class: "card", "data-model": model.id, "data-key": model.id },
    make("div", { class: "card-text" },
      make("h2", {}, model.id, make("span", { class: `state ${state}` }, words.states[state] ?? state, state === "loading" && share != null ? ` ${percent(share)}` : "")),
      model.aliases?.length ? make("p", { class: "faint", title: model.aliases.join(", ") }, words.aliases(model.aliases, NAMES)) : null,
      make("p", {}, facts(model).join(" · ")),
      make("p", { class: "tags" }, ...(model.meta?.capabilities ?? []).map((name) => make("span", { class: "tag" }, words.abilities[name] ?? name))),
      model.status?.failed || model.status?.error ? make("p", { class: "error" }, String(model.status.error ?? words.failed)) : null),
    make("div", { class: "row" }, ...buttons));
}

function draw() {
  const wanted = byId("find").value.toLowerCase().trim();
  const shown = models.filter(({ id, aliases = [] }) => !leaving.has(id) && [id, ...aliases].some((name) => name.toLowerCase().includes(wanted)));
  redraw(byId("models"), shown.map(row));
  byId("count").textContent = words.count(shown.length);
}

async function refresh() {
  clearTimeout(next);
  ({ data: models } = await json("/models"));
  draw();
  if (models.some(({ status }) => status?.value === "loading")) next = setTimeout(refresh, LOOK);
}

// ---------------------------------------------------------------- pulls

function drawPulls() {
  redraw(byId("pulls"), [...pulls].map(([name, { completed, total, error, done }]) => make("li", { "data-key": name },
    make("span", { class: "pull-name" }, name),
    done ? make("span", { class: error && !paused.has(name) ? "error" : "faint", role: "status" }, paused.has(name) ? words.paused : error ?? words.pulled)
      : make("progress", total ? { max: total, value: completed, "aria-label": words.pulling(name) } : { "aria-label": words.pulling(name) }),
    done ? null : make("span", { class: "faint" }, total ? `${bytes(completed)} / ${bytes(total)}` : words.starting),
    done ? make("button", { type: "button", class: "quiet", onclick: () => (error ? begin(name) : (pulls.delete(name), drawPulls())) }, error ? words.resume : words.close)
      : make("button", { type: "button", class: "quiet", onclick: () => pause(name) }, words.pause))));
}

/** The part that is there stays, and the next pull of the same name goes on with it. */
function pause(name) {
  paused.add(name);
  return post("/models/unload", name);
}

async function begin(name) {
  paused.delete(name);
  pulls.set(name, { completed: 0, total: 0, error: null, done: false });
  drawPulls();
  try {
    await call("/models", { method: "POST", body: JSON.stringify({ model: name }) });
  } catch (error) {
    pulls.set(name, { completed: 0, total: 0, error: error.message, done: true });
    drawPulls();
  }
}

function hear({ model, event, data }) {
  if (event === "download_progress") {
    const files = Object.values(data);
    const sum = (field) => files.reduce((all, file) => all + file[field], 0);
    pulls.set(model, { completed: sum("done"), total: sum("total"), error: null, done: false });
  } else if (event === "download_finished" || event === "download_failed") {
    pulls.set(model, { completed: 0, total: 0, error: data.error ?? null, done: true });
  }
  drawPulls();
  if (event !== "download_progress") refresh().catch(tell);
}

const tell = (error) => (byId("status").textContent = error.message);

async function listen() {
  for (;;) {
    try {
      for await (const data of events(await call("/models/sse"))) hear(JSON.parse(data));
    } catch (error) {
      if (error.status) return tell(error);
    }
    await new Promise((resolve) => setTimeout(resolve, RETRY));
  }
}

byId("find").addEventListener("input", draw);
byId("pull").addEventListener("submit", (event) => {
  event.preventDefault();
  begin(byId("pull-name").value.trim());
  byId("pull-name").value = "";
});

try {
  ({ manage } = await json("/ui/access"));
  byId("pull").hidden = !manage;
  byId("no-manage").hidden = manage;
  await refresh();
  byId("status").textContent = "";
  document.body.dataset.ready = "yes";
  if (manage) {
    beginHub(begin);
    listen();
  }
} catch (error) {
  tell(error);
}
