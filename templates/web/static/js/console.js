// The operator's console: what the server is doing, what went wrong, and how it is configured.

import { beginKeys, readKeys } from "./console-keys.js";
import { bytes, duration, moment, number } from "./figures.js";
import { copy, download } from "./page.js";
import { redraw } from "./redraw.js";
import { byId, call, json, make } from "./server.js";
import { cause, legend, timeline } from "./timeline.js";
import { consoleWords as words, percent } from "./words.js";

const LOOK = 5000; // milliseconds between looks
const WORKING = ["waiting", "checking", "loading", "unloading"];

let requests = { open: [], failed: [], slow: [], slow_seconds: 0 };
let configuration = "";

const state = (text, isGood) => make("span", { class: `state ${isGood === null ? "" : isGood ? "good" : "bad"}` }, text); // null: neither
const item = (name, ...rest) => make("li", { "data-key": name }, make("span", { class: "name" }, name), ...rest);
const nothing = (text) => make("li", { class: "faint" }, text);

function drawSummary(now) {
  const figures = [
    [words.server, words.states[now.state] ?? now.state], [words.uptime, duration(Date.now() / 1000 - now.started)],
    [words.open, number(now.open_requests)], [words.requests, number(now.num_requests), words.sinceStart], [words.errors, number(now.num_errors), words.sinceStart],
    [words.version, now.version],
  ];
  redraw(byId("summary"), figures.map(([name, value, more]) => make("div", {}, make("dt", {}, name), make("dd", {}, value, more ? make("small", {}, more) : null))));
}

function modelRow({ name, state: how, error, memory, running, waiting, stalled_seconds: stalled }) {
  const facts = [memory ? bytes(memory) : null, running == null ? null : words.load(running, waiting), stalled > 5 ? words.stalled(stalled) : null];
  return item(name, state(words.modelStates[how] ?? how, { loaded: true, failed: false }[how] ?? null), make("span", { class: "faint" }, facts.filter(Boolean).join(" · ")),
    error && how !== "loaded" ? make("p", { class: "error" }, error) : null);
}

function storeRow({ name, kept, error, seconds, used, max_bytes: most }) {
  const facts = [used == null ? null : words.used(bytes(used), bytes(most)), seconds == null ? null : words.answered(duration(seconds))];
  return item(words.stores[name], state(error ? words.broken : kept ? words.works : words.off, error ? false : kept ? true : null),
    make("span", { class: "faint" }, facts.filter(Boolean).join(" · ")), error ? make("p", { class: "error" }, error) : null);
}

function drawHealth(now) {
  redraw(byId("health"), [
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
  redraw(byId("going"), loads.length + pulled.length ? [...loads, ...pulled] : [nothing(words.idle)]);
}

/** Why a request failed, what made it slow, or what it is doing. */
function reason(request) {
  if (request.status === undefined) return words.requestStates[request.state] ?? words.isOpen;
  if (request.error) return words.failure(request.error, request.field, request.status);
  if (request.status >= 400) return words.failure(null, null, request.status);
  return cause(request);
}

function requestRow(request) {
  const cell = (text, kind) => make("td", { class: [kind, text ? null : "empty"].filter(Boolean).join(" ") || null }, text || words.none);
  const why = cell(reason(request));
  if (request.queue != null) why.append(timeline(request));
  const who = cell(request.key);
  if (request.client) who.append(make("small", {}, request.client.startsWith("Mozilla/") ? words.browser : request.client));
  const name = make("td", {}, make("code", {}, request.id));
  if (request.state === "running" || request.state === "loading") name.append(cancelButton(request));
  return make("tr", { "data-key": request.id }, cell(moment(request.time)), cell(request.path ? `${request.method} ${request.path}` : request.route), why,
    cell(duration(request.seconds), "number"), who, cell(request.model), name);
}

function cancelButton({ id }) {
  return make("button", { type: "button", "aria-label": words.cancelRequest(id), onclick: async () => {
    const failed = await json(`/admin/requests/${encodeURIComponent(id)}/cancel`, { method: "POST" }).then(() => null, (error) => error);
    await look().then(() => tell(failed), tell);
  } }, words.cancel);
}

function drawRequests() {
  const kind = byId("kind").value;
  const wanted = byId("find").value.toLowerCase().trim();
  const shown = requests[kind].filter((request) => [request.key, request.client, request.model, request.route, request.path, request.id, request.error].some((text) => text?.toLowerCase().includes(wanted)));
  const had = byId("requests").contains(document.activeElement);
  redraw(byId("requests").tBodies[0], shown.map(requestRow));
  if (had && !byId("requests").contains(document.activeElement)) byId("kind").focus(); // its request has ended
  byId("requests").hidden = !shown.length;
  byId("legend").hidden = !shown.some((request) => request.queue != null);
  byId("count").textContent = shown.length ? words.count(shown.length)
    : { open: words.noOpen, failed: words.noErrors, slow: words.noSlow(duration(requests.slow_seconds)) }[kind];
}

function drawConfiguration() {
  const wanted = byId("find-option").value.toLowerCase().trim();
  const lines = configuration.split("\n");
  byId("configuration").textContent = wanted ? lines.filter((line) => line.startsWith("[") || line.toLowerCase().includes(wanted))
    .filter((line, i, all) => !line.startsWith("[") || (i + 1 < all.length && !all[i + 1].startsWith("["))).join("\n") || words.noOption : configuration;
}

// ---------------------------------------------------------------- usage

const DAY = 86_400_000; // milliseconds
const MEASURES = { tokens: (used) => used.prompt_tokens + used.completion_tokens, requests: (used) => used.requests, seconds: (used) => used.seconds, cost: (used) => used.cost };
const COLUMNS = ["requests", "prompt_tokens", "cached_tokens", "completion_tokens", "seconds", "cost"];
let usage = [];
let currency = "USD";
let since = 0;

const isoDay = (time) => new Date(time).toISOString().slice(0, 10);
const dayText = (day) => new Date(`${day}T00:00Z`).toLocaleDateString(undefined, { timeZone: "UTC", dateStyle: "medium" });

const money = (cost) => cost.toLocaleString(undefined, { style: "currency", currency, maximumFractionDigits: cost < 1 ? 4 : 2 });

function sums(rows, pick) {
  const found = new Map();
  for (const row of rows) {
    const sum = found.get(pick(row)) ?? Object.fromEntries(COLUMNS.map((column) => [column, 0]));
    for (const column of COLUMNS) sum[column] += row[column] ?? 0;
    found.set(pick(row), sum);
  }
  return found;
}

function drawUsage() {
  const by = byId("by").value;
  const kind = byId("measure").value;
  const measure = MEASURES[kind];
  const figure = { seconds: duration, cost: money }[kind] ?? number;
  const groups = [...sums(usage, (row) => row[by])].sort(([a, x], [b, y]) => (by === "date" ? (a < b ? 1 : -1) : measure(y) - measure(x)));
  const total = groups.reduce((all, [, used]) => all + measure(used), 0);
  byId("usage-by").textContent = words.by[by];
  byId("usage").tBodies[0].replaceChildren(...groups.map(([name, used]) => {
    const share = total ? measure(used) / total : 0;
    const meter = make("meter", { min: 0, max: 1, value: share, "aria-label": percent(share, 1) });
    const cell = (text, kind = "number") => make("td", { class: kind }, text);
    return make("tr", {}, make("th", { scope: "row" }, by === "date" ? dayText(name) : name || words.noKey), make("td", { class: "share" }, meter, ` ${percent(share, 1)}`),
      cell(number(used.requests)), cell(number(used.prompt_tokens)), cell(number(used.cached_tokens)), cell(number(used.completion_tokens)), cell(duration(used.seconds)), cell(money(used.cost), "number cost"));
  }));
  const unpriced = [...new Set(usage.filter(({ cost }) => cost === null).map(({ model }) => model))];
  const isPriced = usage.some(({ cost }) => cost !== null);
  byId("usage").classList.toggle("unpriced", !isPriced);
  byId("measure-cost").hidden = byId("measure-cost").disabled = !isPriced;
  byId("without-prices").textContent = isPriced && unpriced.length ? words.withoutPrices(unpriced) : "";
  for (const id of ["usage", "days", "days-ends", "usage-csv"]) byId(id).hidden = !groups.length;
  byId("no-usage").hidden = groups.length > 0;
  drawDays(sums(usage, (row) => row.date), measure, figure);
}

function drawDays(days, measure, figure) {
  const most = Math.max(1e-9, ...[...days.values()].map(measure));
  const all = [];
  for (let time = since; time <= Date.now(); time += DAY) all.push(isoDay(time));
  byId("days").replaceChildren(...all.map((day) => {
    const value = days.has(day) ? measure(days.get(day)) : 0;
    const bar = make("span", { title: `${dayText(day)}: ${figure(value)}` }, make("i", {}));
    bar.firstChild.style.height = `${100 * value / most}%`;
    return bar;
  }));
  byId("days").setAttribute("aria-label", words.days(all.length, figure(most)));
  byId("days-ends").textContent = words.daysEnds(dayText(all[0]), dayText(all.at(-1)), figure(most));
}

async function readUsage() {
  since = Date.parse(isoDay(Date.now() - (Number(byId("period").value) - 1) * DAY));
  ({ data: usage, currency } = await json(`/v1/usage?since=${isoDay(since)}`));
  drawUsage();
}

/** A field of a CSV file. One that a spreadsheet would take for a formula becomes text. */
function csvField(value) {
  const text = String(value);
  const safe = typeof value === "string" && /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

function saveUsage() {
  const columns = ["date", "key", "model", ...COLUMNS, "currency"];
  const lines = [columns, ...usage.map((row) => columns.map((column) => ({ ...row, currency: row.cost === null ? "" : currency })[column] ?? ""))].map((row) => row.map(csvField).join(","));
  download(`usage-${isoDay(since)}-${isoDay(Date.now())}.csv`, "text/csv", `${lines.join("\r\n")}\r\n`);
}

// ---------------------------------------------------------------- all of it

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

byId("requests").parentElement.before(Object.assign(legend(), { id: "legend", hidden: true }));
byId("kind").addEventListener("change", () => {
  drawRequests();
  look().catch(tell);
});
byId("find").addEventListener("input", drawRequests);
byId("find-option").addEventListener("input", drawConfiguration);
byId("copy-configuration").addEventListener("click", () => copy(configuration, byId("copy-configuration")));

for (const id of ["by", "measure"]) byId(id).addEventListener("change", drawUsage);
byId("period").addEventListener("change", () => readUsage().catch(tell));
byId("usage-csv").addEventListener("click", saveUsage);
byId("reload").addEventListener("click", async () => {
  const told = byId("reloaded");
  byId("reload").disabled = true;
  try {
    await json("/admin/reload", { method: "POST" });
    await Promise.all([readConfiguration(), look(), readKeys()]);
    told.textContent = words.reloaded;
    told.className = "faint";
  } catch (error) {
    told.textContent = error.message;
    told.className = "error";
  }
  byId("reload").disabled = false;
});

beginKeys();

async function follow() {
  for (;;) {
    await new Promise((resolve) => setTimeout(resolve, LOOK));
    if (document.hidden) continue;
    await look().then(() => tell(null), tell);
  }
}

try {
  await Promise.all([look(), readConfiguration(), readUsage(), readKeys()]);
  drawRequests();
  tell(null);
  byId("console").hidden = false;
  document.body.dataset.ready = "yes";
  follow();
} catch (error) {
  tell(error);
}
