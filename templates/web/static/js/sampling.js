// The sampling sliders. They begin at the model's own defaults; only what was moved is sent.

import { make } from "./server.js";

const SLIDERS = [
  ["temperature", "Temperature", 0, 2, 0.05], ["top_p", "Top-p", 0, 1, 0.01], ["top_k", "Top-k", 0, 200, 1],
  ["min_p", "Min-p", 0, 1, 0.01], ["repeat_penalty", "Repeat penalty", 0.5, 2, 0.01],
  ["presence_penalty", "Presence penalty", -2, 2, 0.05], ["frequency_penalty", "Frequency penalty", -2, 2, 0.05],
];

export class Sampling {
  constructor(element, changed) {
    this.defaults = {};
    this.chosen = {};
    this.inputs = {};
    for (const [name, label, min, max, step] of SLIDERS) {
      const shown = make("output", { for: `slide-${name}` });
      const input = make("input", { type: "range", id: `slide-${name}`, min, max, step });
      input.addEventListener("input", () => {
        this.chosen[name] = Number(input.value);
        this.draw();
        changed();
      });
      this.inputs[name] = [input, shown];
      element.append(make("div", { class: "slider" }, make("label", { for: `slide-${name}` }, label), input, shown));
    }
    for (const [name, label, placeholder] of [["max_tokens", "Most tokens", "no bound"], ["seed", "Seed", "random"]]) {
      const input = make("input", { type: "number", id: `slide-${name}`, min: name === "seed" ? 0 : 1, placeholder });
      input.addEventListener("input", () => {
        if (input.value === "") delete this.chosen[name];
        else this.chosen[name] = Number(input.value);
        changed();
      });
      this.inputs[name] = [input, null];
      element.append(make("div", { class: "slider" }, make("label", { for: `slide-${name}` }, label), input));
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
