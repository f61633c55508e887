// The operator's console: what the server is doing, what went wrong, and how it is configured.

import { bytes, duration, moment, number } from "./figures.js";
import { copy } from "./page.js";
import { byId, call, json, make } from "./server.js";
import { consoleWords as words } from "./words.js";

const LOOK = 5000; // milliseconds between looks
const WORKING = ["waiting", "checking", "loading", "unloading"];

let requests = { failed: [], slow: [], slow_seconds: 0 };
let configuration = "";

const state = (text, isGood) => make("span", { class: `state ${isGood ? "good" : "bad"}` }, text);
const item = (name, ...rest) => make("li", {}, make("span", { class: "name" }, name), ...rest);
const nothing = (text) => make("li", { class: "faint" }, text);

function drawSummary(now) {
  const figures = [
    [words.server, words.states[now.state] ?? now.state], [words.uptime, duration(Date.now() / 1000 - now.started)],
    [words.open, number(now.open_requests)], [words.requests, number(now.num_requests)], [words.errors, number(now.num_errors)],
    [words.version, now.version],
  ];
  byId("summary").replaceChildren(...figures.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))));
}

function modelRow({ name, state: how, error, memory, running, waiting, stalled_seconds: stalled }) {
  const facts = [memory ? bytes(memory) : null, running == null ? null : words.load(running, waiting), stalled > 5 ? words.stalled(stalled) : null];
  return item(name, state(words.modelStates[how] ?? how, how !== "failed"), make("span", { class: "faint" }, facts.filter(Boolean).join(" · ")),
    error && how !== "loaded" ? make("p", { class: "error" }, error) : null);
}

function storeRow({ name, kept, error, seconds, used, max_bytes: most }) {
  const facts = [used == null ? null : words.used(bytes(used), bytes(most)), seconds == null ? null : words.answered(duration(seconds))];
  return item(words.stores[name], state(error ? words.broken : kept ? words.works : words.off, !error),
    make("span", { class: "faint" }, facts.filter(Boolean).join(" · ")), error ? make("p", { class: "error" }, error) : null);
}

function drawHealth(now) {
  byId("health").replaceChildren(...[
    now.reason ? item(words.server, state(words.states[now.state] ?? now.state, now.state === "ready"), make("p", { class: "error" }, now.reason)) : null,
    ...now.models.map(modelRow), ...now.stores.map(storeRow),
  ].filter(Boolean));
}

function drawGoing({ models, pulls }) {
  const bar = (name, share) => make("progress", share == null ? { "aria-label": name } : { max: 1, value: share, "aria-label": name });
  const loads = models.filter((model) => WORKING.includes(model.state)).map((model) =>
    item(model.name, make("span", {}, words.modelStates[model.state]), bar(model.name, model.state === "loading" ? model.progress : null)));
  const pulled = pulls.map(({ name, done, error, completed, total }) => item(name,
    done ? state(error ? words.pullFailed : words.pulled, !error) : bar(name, total ? completed / total : null),
    !done && total ? make("span", { class: "faint" }, `${bytes(completed)} / ${bytes(total)}`) : null, error ? make("p", { class: "error" }, error) : null));
  byId("going").replaceChildren(...(loads.length + pulled.length ? [...loads, ...pulled] : [nothing(words.idle)]));
}

/** Why a request failed, or what made it slow. */
function reason(request) {
  if (request.error) return words.failure(request.error, request.field, request.status);
  if (request.status >= 400) return words.failure(null, null, request.status);
  const parts = ["queue", "prefill", "decode"].filter((part) => request[part] != null);
  if (!parts.length) return words.slow;
  const longest = parts.reduce((a, b) => (request[a] >= request[b] ? a : b));
  return words.slowPart[longest](duration(request[longest]), request);
}

function requestRow(request) {
  const cell = (text, kind) => make("td", { class: [kind, text ? null : "empty"].filter(Boolean).join(" ") || null }, text || words.none);
  return make("tr", {}, cell(moment(request.time)), cell(request.path ? `${request.method} ${request.path}` : request.route), cell(reason(request)),
    cell(duration(request.seconds), "number"), cell(request.key), cell(request.model), make("td", {}, make("code", {}, request.id)));
}

function drawRequests() {
  const kind = byId("kind").value;
  const wanted = byId("find").value.toLowerCase().trim();
  const shown = requests[kind].filter((request) => [request.key, request.model, request.route, request.path, request.id, request.error].some((text) => text?.toLowerCase().includes(wanted)));
  byId("requests").tBodies[0].replaceChildren(...shown.map(requestRow));
  byId("requests").hidden = !shown.length;
  byId("count").textContent = shown.length ? words.count(shown.length) : kind === "slow" ? words.noSlow(duration(requests.slow_seconds)) : words.noErrors;
}

function drawConfiguration() {
  const wanted = byId("find-option").value.toLowerCase().trim();
  const lines = configuration.split("\n");
  byId("configuration").textContent = wanted ? lines.filter((line) => line.startsWith("[") || line.toLowerCase().includes(wanted))
    .filter((line, i, all) => !line.startsWith("[") || (i + 1 < all.length && !all[i + 1].startsWith("["))).join("\n") || words.noOption : configuration;
}

async function look() {
  const [now, recent] = await Promise.all([json("/admin/state"), json("/admin/requests")]);
  drawSummary(now);
  drawHealth(now);
  drawGoing(now);
  const changed = JSON.stringify(recent) !== JSON.stringify(requests);
  requests = recent;
  if (changed) drawRequests();
}

async function readConfiguration() {
  configuration = await (await call("/admin/configuration")).text();
  drawConfiguration();
}

const tell = (error) => (byId("status").textContent = error?.message ?? "");

byId("kind").addEventListener("change", drawRequests);
byId("find").addEventListener("input", drawRequests);
byId("find-option").addEventListener("input", drawConfiguration);
byId("copy-configuration").addEventListener("click", () => copy(configuration, byId("copy-configuration")));

async function follow() {
  for (;;) {
    await new Promise((resolve) => setTimeout(resolve, LOOK));
    if (document.hidden) continue;
    await look().then(() => tell(null), tell);
  }
}

try {
  await Promise.all([look(), readConfiguration()]);
  drawRequests();
  tell(null);
  byId("console").hidden = false;
  document.body.dataset.ready = "yes";
  follow();
} catch (error) {
  tell(error);
}
