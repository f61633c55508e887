// Where the time of a request went: a bar of its parts, and the same in words.

import { duration } from "./figures.js";
import { make } from "./server.js";
import { timelineWords as words } from "./words.js";

export const PARTS = ["start", "queue", "prefill", "decode", "paused", "rest"];
const SHORTEST = 0.001; // seconds; a shorter part is left out

/** {name: seconds} of the parts that took time. `request`: as the server logs it, with `seconds` of the whole. */
export function partsOf(request) {
  const { seconds, paused = 0, queue = 0 } = request;
  const decode = Math.max(0, (request.decode ?? 0) - paused); // it gave way while it wrote, or while its prompt was read
  const prefill = Math.max(0, (request.prefill ?? 0) + Math.min(0, (request.decode ?? 0) - paused));
  const start = Math.min(request.start ?? 0, Math.max(0, seconds - queue - prefill - decode - paused)); // the engine had it a little before
  const found = { start, queue, prefill, decode, paused };
  found.rest = seconds - Object.values(found).reduce((sum, part) => sum + part, 0);
  return Object.fromEntries(PARTS.filter((name) => found[name] >= SHORTEST).map((name) => [name, found[name]]));
}

const nameOf = (name, request) => (name === "start" && request.loading ? words.loading : words.parts[name]);

export function timeline(request) {
  const parts = Object.entries(partsOf(request));
  const told = parts.map(([name, seconds]) => `${nameOf(name, request)}: ${duration(seconds)}`);
  const bar = make("div", { class: "timeline", role: "img", "aria-label": told.join(", ") || words.none, title: told.join("\n") });
  for (const [name, seconds] of parts) {
    const part = make("span", { class: `part-${name}` });
    part.style.flexGrow = 100 * seconds / request.seconds; // a sum below 1 would leave the bar short
    bar.append(part);
  }
  return bar;
}

/** What the colours mean. */
export const legend = () => make("p", { class: "legend faint" }, ...PARTS.map((name) =>
  make("span", {}, make("span", { class: `swatch part-${name}` }), words.parts[name])));

/** What took longest, and why. */
export function cause(request) {
  const parts = Object.entries(partsOf(request));
  if (request.queue == null || !parts.length) return words.slow;
  const [name, seconds] = parts.reduce((a, b) => (a[1] >= b[1] ? a : b));
  const said = name === "start" && request.loading ? words.causes.loading : words.causes[name];
  return said(duration(seconds), request);
}
