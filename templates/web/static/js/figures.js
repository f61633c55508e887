// Figures as people read them, in the browser's language.

/** Shortened where it is large: 4.99M. */
export const number = (value) => value.toLocaleString(undefined, value >= 1e6 ? { notation: "compact", maximumFractionDigits: 2 } : {});

/** A time span: 250 ms, 3.2 s, 5 min, 2 h, 3 days. */
export function duration(seconds) {
  const say = (value, unit, digits = 0) => value.toLocaleString(undefined, { style: "unit", unit, unitDisplay: unit === "day" ? "long" : "short", maximumFractionDigits: digits });
  if (seconds < 1) return say(1000 * seconds, "millisecond", seconds < 0.01 ? 1 : 0);
  if (seconds < 100) return say(seconds, "second", 1);
  if (seconds < 6000) return say(seconds / 60, "minute");
  return seconds < 2 * 86_400 ? say(seconds / 3600, "hour") : say(seconds / 86_400, "day");
}

/** A time of day, with the date where it is not today's. `time` is in seconds since the epoch. */
export function moment(time) {
  const at = new Date(1000 * time);
  return at.toDateString() === new Date().toDateString() ? at.toLocaleTimeString() : at.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" });
}

const UNITS = [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]];

export function bytes(count) {
  const [size, unit] = UNITS.find(([size]) => count >= size) ?? [1, "B"];
  const value = count / size;
  return `${value.toLocaleString(undefined, { maximumFractionDigits: value < 10 && size > 1 ? 1 : 0 })} ${unit}`;
}
