// Figures as people read them, in the browser's language.

/** Shortened where it is large: 4.99M. */
export const number = (value) => value.toLocaleString(undefined, value >= 1e6 ? { notation: "compact", maximumFractionDigits: 2 } : {});

const UNITS = [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]];

export function bytes(count) {
  const [size, unit] = UNITS.find(([size]) => count >= size) ?? [1, "B"];
  const value = count / size;
  return `${value.toLocaleString(undefined, { maximumFractionDigits: value < 10 && size > 1 ? 1 : 0 })} ${unit}`;
}
