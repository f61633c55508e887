// The sampling sliders. They begin at the model's own defaults; only what was moved is sent.

import { make } from "./server.js";
import { words } from "./words.js";

const SLIDERS = [
  ["temperature", 0, 2, 0.05], ["top_p", 0, 1, 0.01], ["top_k", 0, 200, 1], ["min_p", 0, 1, 0.01],
  ["repeat_penalty", 0.5, 2, 0.01], ["presence_penalty", -2, 2, 0.05], ["frequency_penalty", -2, 2, 0.05],
];
const NUMBERS = [["max_tokens", 1, words.noLimit], ["seed", 0, words.random]];
const MAIN = ["temperature", "max_tokens"]; // what most people look for

export class Sampling {
  /** `main` gets the sliders that matter most, `more` the others. */
  constructor(main, more, changed) {
    this.defaults = {};
    this.chosen = {};
    this.inputs = {};
    const put = (name, ...parts) => (MAIN.includes(name) ? main : more).append(
      make("div", { class: "slider" }, make("label", { for: `slide-${name}` }, words.sampling[name]), ...parts));
    for (const [name, min, max, step] of SLIDERS) {
      const shown = make("output", { for: `slide-${name}` });
      const input = make("input", { type: "range", id: `slide-${name}`, min, max, step });
      input.addEventListener("input", () => {
        this.chosen[name] = Number(input.value);
        this.draw();
        changed();
      });
      this.inputs[name] = [input, shown];
      put(name, input, shown);
    }
    for (const [name, min, placeholder] of NUMBERS) {
      const input = make("input", { type: "number", id: `slide-${name}`, min, placeholder });
      input.addEventListener("input", () => {
        if (input.value === "") delete this.chosen[name];
        else this.chosen[name] = Number(input.value);
        changed();
      });
      this.inputs[name] = [input, null];
      put(name, input);
    }
  }

  /** What requests get when nothing is moved. */
  useDefaults(defaults) {
    this.defaults = defaults;
    this.draw();
  }

  use(chosen) {
    this.chosen = { ...chosen };
    this.draw();
  }

  draw() {
    for (const [name, [input, shown]] of Object.entries(this.inputs)) {
      const value = this.chosen[name] ?? (shown ? this.defaults[name] : "");
      if (value !== undefined) input.value = value;
      if (shown) {
        shown.textContent = value === undefined ? "" : Math.round(value * 100) / 100;
        shown.classList.toggle("moved", name in this.chosen);
      }
    }
  }
}
