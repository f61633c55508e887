// The live view: one stream of snapshots, and what follows from two of them.

import { bytes as bytesOf, duration } from "./figures.js";
import { redraw } from "./redraw.js";
import { byId, call, events, json, make } from "./server.js";
import { legend, timeline } from "./timeline.js";
import { consoleWords, engineWords as words, percent } from "./words.js";

const KEPT = 3600; // seconds in the plots
const RECENT = 120; // seconds of requests in the plot of latencies
const { modelStates } = consoleWords;
const BUSY = ["loading", "unloading", "waiting", "checking"];
const history = []; // of the model that is shown: {t, rate, prompt, running, waiting, parts}
let past = []; // the server's samples of the last hour
let last = null;
let shown = null;
let manage = "flag";
let plots = null;

const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const size = (bytes) => bytes == null ? "" : bytesOf(bytes);
const number = (value, digits = 0) => value.toLocaleString(undefined, { maximumFractionDigits: digits });

// ---------------------------------------------------------------- plots

function makePlots() {
  const ink = style("--ink");
  const grid = { stroke: style("--line"), width: 1 };
  const axes = [{ stroke: ink, grid }, { stroke: ink, grid, size: 45 }];
  const line = (label, colour) => ({ label, stroke: colour, width: 2, points: { show: false } });
  const clock = { ...axes[0], space: 70, values: (u, times) => times.map((time) => new Date(1000 * time).toLocaleTimeString(undefined, { timeStyle: times.at(-1) - times[0] > 300 ? "short" : "medium" })) };
  const spans = { ...axes[0], splits: () => [0.001, 0.1, 10], filter: (u, seconds) => seconds, values: (u, seconds) => seconds.map(duration) };
  const shares = { ...axes[1], size: 55, values: (u, parts) => parts.map((part) => part.toLocaleString(undefined, { style: "percent" })) };
  const plot = (id, series, x = {}) => {
    const element = byId(id);
    element.replaceChildren();
    return new window.uPlot({
      width: element.clientWidth || 300, height: 180, axes: x.time === false ? [spans, shares] : [clock, axes[1]], cursor: { show: false }, series: [{ label: words.time }, ...series],
      scales: { x, y: { range: (u, low, high) => [0, Math.max(1e-9, high * 1.1 || 1)] } }, legend: { live: false },
    }, [[]], element);
  };
  const [a, b, c, d] = [style("--accent"), style("--num"), style("--kw"), style("--fn")];
  plots = {
    rate: plot("plot-rate", [line(words.generated, a), line(words.prompt, b)]),
    load: plot("plot-load", [line(words.running, a), line(words.waiting, d)]),
    step: plot("plot-step", PARTS.map((part, i) => line(part, [a, b, c, d, style("--warn")][i % 5]))),
    latency: plot("plot-latency", [line(words.firstToken, a), line(words.betweenTokens, b), line(words.queue, d)], { time: false, distr: 3 }),
  };
}

let PARTS = [];

function drawPlots() {
  const t = history.map((h) => h.t);
  const column = (pick) => history.map(pick);
  plots.rate.setData([t, column((h) => h.rate), column((h) => h.prompt)]);
  plots.load.setData([t, column((h) => h.running), column((h) => h.waiting)]);
  plots.step.setData([t, ...PARTS.map((part) => column((h) => h.parts[part] ?? null))]);
  const { latency } = history.at(-1) ?? {};
  if (latency) plots.latency.setData([latency.bounds, latency.first_token, latency.between_tokens, latency.queue]);
}

// ---------------------------------------------------------------- snapshots

/** Tokens written since the start. The totals count a request when it ends. Samples of the last hour have no list of requests. */
const written = ({ totals, running }) => (running.length ? running.reduce((sum, seq) => sum + seq.num_generated, totals.generated) : totals.generated);

/** What happened between two snapshots, or two samples, of a model. */
function between(old, now) {
  const seconds = Math.max(0.05, now.t - old.t);
  const a = old.models[shown]?.totals;
  const b = now.models[shown]?.totals;
  const model = now.models[shown];
  if (!a || !b || b.steps < a.steps) return null; // it was loaded anew
  const steps = b.steps - a.steps;
  const parts = {};
  for (const part of Object.keys(b.parts)) parts[part] = steps > 0 ? 1000 * (b.parts[part] - a.parts[part]) / steps : null;
  return {
    t: now.t, rate: Math.max(0, written(model) - written(old.models[shown])) / seconds, prompt: (b.prompt - a.prompt) / seconds,
    running: model.running.length ?? model.running, waiting: model.num_waiting, parts,
  };
}

/** The plots of another model begin with what the server kept of it. */
function replay() {
  history.length = 0;
  for (let i = 1; i < past.length; i++) {
    const made = between(past[i - 1], past[i]);
    if (made) history.push(made);
  }
}

/** Share of requests per bucket, in the last minutes. */
function shares(now) {
  const base = history.find((one) => one.counts && one.t > now.t - RECENT)?.counts ?? null;
  const { bounds, ...counts } = now.models[shown].latency;
  const out = { bounds: bounds.slice(0) };
  for (const [name, values] of Object.entries(counts)) {
    const recent = values.map((v, i) => v - (base?.[name]?.[i] ?? 0)).slice(0, bounds.length);
    const sum = recent.reduce((x, y) => x + y, 0);
    out[name] = recent.map((v) => sum ? v / sum : 0);
  }
  return out;
}

function take(now) {
  const names = Object.keys(now.models);
  const before = shown;
  shown = names.includes(shown) ? shown : names[0] ?? null;
  if (shown !== before) replay();
  drawModels(now);
  if (shown && last) {
    const made = between(last, now);
    if (made) {
      made.counts = now.models[shown].latency;
      made.latency = shares(now);
      const parts = Object.keys(made.parts);
      if (!plots || parts.join() !== PARTS.join()) {
        PARTS = parts;
        makePlots();
      }
      history.push(made);
      while (history[0].t < now.t - KEPT) history.shift();
      drawPlots();
    }
  }
  if (shown) drawModel(now.models[shown]);
  last = now;
  byId("status").textContent = words.live(new Date(now.t * 1000).toLocaleTimeString());
  document.body.dataset.snapshots = String(Number(document.body.dataset.snapshots ?? 0) + 1);
}

function drawModels(now) {
  const select = byId("model");
  const names = Object.keys(now.models);
  if ([...select.options].map((o) => o.value).join() !== names.join()) {
    select.replaceChildren(...names.map((name) => make("option", { value: name }, name)));
  }
  if (shown) select.value = shown;
  redraw(byId("models").tBodies[0], now.all.map((model) => {
    const at = now.models[model.name];
    const before = last?.models[model.name];
    const seconds = last ? Math.max(0.05, now.t - last.t) : 1;
    const rate = at && before ? Math.max(0, written(at) - written(before)) / seconds : 0;
    const seen = at ? at.totals.prompt + at.totals.cached : 0;
    return make("tr", { "data-key": model.name },
      make("td", {}, model.name),
      make("td", {}, (modelStates[model.state] ?? model.state) + (model.state === "loading" ? ` ${percent(model.progress)}` : ""), model.error ? make("p", { class: "error" }, model.error) : null),
      ...[size(model.memory), at && number(at.running.length), at && number(at.num_waiting), at && number(rate, 1), seen ? percent(at.totals.cached / seen) : null]
        .map((value) => make("td", { class: "number" }, String(value ?? ""))),
      make("td", {}, manage === "yes" ? manageButton(model) : words.notAllowed[manage]),
    );
  }));
}

function manageButton(model) {
  const loaded = model.state === "loaded";
  const says = loaded ? words.unload : words.load;
  return make("button", { type: "button", "aria-label": `${says} ${model.name}`, disabled: BUSY.includes(model.state),
    onclick: () => act(loaded ? "/models/unload" : "/models/load", { model: model.name }) }, says);
}

/** What a button does; why it failed stays on the page until the next one. */
async function act(path, body) {
  byId("failure").textContent = "";
  await json(path, { method: "POST", body: JSON.stringify(body) }).catch((error) => (byId("failure").textContent = error.message));
}

const SOURCES = words.sources;

function drawSources(sources) {
  const total = Object.values(sources).reduce((sum, count) => sum + count, 0);
  const there = Object.entries(sources).filter(([, count]) => count);
  byId("sources").replaceChildren(...there.map(([source, count]) => {
    const span = make("span", { class: `source-${source}`, title: words.sourceTokens(SOURCES[source] ?? source, number(count)) });
    span.style.width = `${100 * count / total}%`;
    return span;
  }));
  byId("sources-text").replaceChildren(...there.map(([source, count]) => make("span", {},
    make("span", { class: `swatch source-${source}` }), `${SOURCES[source] ?? source} `, make("bdi", {}, number(count)), " (", make("bdi", {}, percent(count / total)), ")")));
  if (!there.length) byId("sources-text").textContent = words.noPrompt;
}

function drawModel({ running, waiting, cells, strip, totals, pins, num_sessions: sessions }) {
  drawSources(totals.sources);
  const kept = [];
  if (pins?.num) kept.push(words.pins(pins.num, size(pins.bytes)));
  if (sessions) kept.push(words.sessions(sessions));
  byId("pins").hidden = !kept.length;
  byId("pins").textContent = kept.join(", ");
  byId("strip").replaceChildren(...strip.filter(([, length]) => length).map(([lane, length, state]) => {
    const span = make("span", { class: state, title: words.lane(lane, number(length), state === "held") });
    span.style.width = `${100 * length / Math.max(1, cells.total)}%`;
    return span;
  }));
  byId("strip").setAttribute("aria-label", words.strip(number(cells.held), number(cells.used), number(cells.total)));
  byId("cells").textContent = words.cells(number(cells.held), number(cells.used - cells.held), number(cells.total));
  byId("requests").hidden = !running.length && !waiting.length;
  byId("no-requests").hidden = !byId("requests").hidden;
  const had = byId("requests").contains(document.activeElement);
  redraw(byId("requests").tBodies[0], [...running, ...waiting].map((seq) => {
    const state = seq.lane === null ? words.waiting : seq.num_computed < seq.num_prompt ? words.reading : words.writing;
    const whole = seq.num_computed < seq.num_prompt ? seq.num_prompt : seq.max_tokens;
    const done = seq.num_computed < seq.num_prompt ? seq.num_computed : seq.num_generated;
    const progress = make("progress", whole ? { max: whole, value: Math.min(done, whole), "aria-label": words.progress } : { "aria-label": words.progress });
    const key = make("td", {}, seq.key === undefined ? words.keyHidden : seq.key || words.noKey, seq.client ? make("small", {}, seq.client.startsWith("Mozilla/") ? consoleWords.browser : seq.client) : null);
    const name = make("td", {}, String(seq.id), seq.request ? cancelButton(seq.request) : null);
    return make("tr", { "data-key": seq.id }, name, key, ...[seq.lane, state, number(seq.num_prompt), number(seq.num_reused), SOURCES[seq.source] ?? seq.source, seq.changed, number(seq.num_generated),
      seq.num_drafted ? words.drafts(number(seq.num_accepted), number(seq.num_drafted)) : ""]
      .map((value) => make("td", {}, String(value ?? ""))), make("td", {}, progress), make("td", {}, duration(seq.seconds), timeline(seq)));
  }));
  if (had && !byId("requests").contains(document.activeElement)) byId("requests").parentElement.focus(); // its request has ended
}

function cancelButton(request) {
  return make("button", { type: "button", "aria-label": words.cancelRequest(request),
    onclick: () => act(`/admin/requests/${encodeURIComponent(request)}/cancel`, {}) }, words.cancel);
}

// ---------------------------------------------------------------- the stream

byId("requests").parentElement.before(legend());
byId("model").addEventListener("change", () => {
  shown = byId("model").value;
  replay();
  last = null;
});
addEventListener("themechange", () => plots && (makePlots(), drawPlots()));
addEventListener("resize", () => {
  if (!plots) return;
  for (const plot of Object.values(plots)) plot.setSize({ width: plot.root.parentElement.clientWidth || 300, height: 180 });
});

for (;;) {
  try {
    if (!past.length) past = await json("/ui/engine/history");
    const answer = await call("/ui/engine/stream");
    manage = answer.headers.get("x-llamasrv-may-manage");
    for await (const data of events(answer)) take(JSON.parse(data));
    byId("status").textContent = words.again;
  } catch (error) {
    byId("status").textContent = error.message || words.noServer;
    if (error.status === 401 || error.status === 403) break;
  }
  await new Promise((resolve) => setTimeout(resolve, 2000));
}
