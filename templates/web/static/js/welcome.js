// An empty page: a few messages to begin with, which go into the field and are sent when somebody says so.

import { byId, make } from "./server.js";

const STARTERS = [
  ["Explain", "Explain how a large language model chooses its next word, for somebody who has never programmed."],
  ["Write", "Write a short story about a lighthouse keeper who finds a message in a bottle."],
  ["Code", "Write a Python function that returns the longest common prefix of a list of strings, with tests."],
  ["Plan", "Plan a weekend in a city that I do not know yet. Ask me first what I like."],
];

/** `take(text)` puts it into the field. */
export function beginWelcome(take) {
  byId("starters").append(...STARTERS.map(([label, text]) => make("button", { type: "button", onclick: () => take(text) },
    make("strong", {}, label), make("span", {}, text))));
}
