// What was deleted can be had back for ten seconds.

import { byId, make } from "./server.js";
import { words } from "./words.js";

const UNDO = 10_000; // milliseconds

let end = null; // of the offer that stands: what to do when its time is over

/** Takes back what the offer that stands is about. */
export function takeBack() {
  if (end) byId("toast").querySelector("button").click();
}

/** Says `text` beside a button that takes back what was done. `late`: what is done only once nobody can take it back. */
export function offerUndo(text, undo, late = () => {}) {
  end?.(true);
  const toast = byId("toast");
  const leave = (done) => {
    end = null;
    clearTimeout(timer);
    removeEventListener("pagehide", gone);
    toast.hidden = true;
    if (done) late();
  };
  const gone = () => leave(true);
  const timer = setTimeout(leave, UNDO, true);
  end = leave;
  addEventListener("pagehide", gone);
  toast.replaceChildren(make("span", {}, text), make("button", { type: "button", class: "quiet", onclick: () => {
    leave(false);
    undo();
  } }, words.undo));
  toast.hidden = false;
}
