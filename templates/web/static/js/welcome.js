// An empty page: a few messages to begin with, which go into the field and are sent when someone says so.

import { byId, make } from "./server.js";
import { words } from "./words.js";

/** `take(text)` puts it into the field. */
export function beginWelcome(take) {
  byId("starters").append(...words.starters.map(([label, text]) => make("button", { type: "button", onclick: () => take(text) },
    make("strong", {}, label), make("span", {}, text))));
}
