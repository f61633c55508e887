// What the keyboard does: one table, by which keys are followed and which the dialog shows.

import { openDialog } from "./page.js";
import { byId, make } from "./server.js";
import { words } from "./words.js";

const MAC = /Mac|iPhone|iPad/.test(navigator.platform);

/** Keys with Alt are compared by place: with it, letters become others on some keyboards. */
const matches = (event, { code, alt = false, ctrl = false }) => event.code === code && event.altKey === alt
  && (MAC ? event.metaKey : event.ctrlKey) === ctrl && !event.shiftKey;

const nameOf = ({ shown, alt, ctrl }) => [...(ctrl ? [MAC ? "⌘" : "Ctrl"] : []), ...(alt ? [MAC ? "⌥" : "Alt"] : []), shown];

const IN_FIELD = [
  { keys: ["Enter"], does: words.keys.send },
  { keys: ["Shift", "Enter"], does: words.keys.newLine },
  { keys: ["↑"], does: words.keys.editLast },
  { keys: ["Esc"], does: words.keys.stop },
];

/** `actions`: {code, shown, alt, ctrl, does, run}. */
export function followKeys(actions) {
  document.addEventListener("keydown", (event) => {
    if (event.isComposing || document.querySelector("dialog[open]")) return;
    const action = actions.find((one) => matches(event, one));
    if (!action) return;
    event.preventDefault();
    action.run();
  });
  const row = (keys, does) => make("tr", {}, make("td", {}, ...keys.map((key) => make("kbd", {}, key))), make("td", {}, does));
  byId("keys").append(...IN_FIELD.map(({ keys, does }) => row(keys, does)), ...actions.map((action) => row(nameOf(action), action.does)));
  byId("show-keys").addEventListener("click", showKeys);
}

export const showKeys = () => openDialog("keys-dialog");
