// What the parts of the playground share: the conversation at hand, and the line that says how things are.

import { Conversation } from "./conversation.js";
import { byId, make } from "./server.js";

export const page = {
  talk: new Conversation(),
  running: null, // AbortController of the answers that are being written
};

let offer = null; // timer of the button beside the status

export function status(text) {
  clearTimeout(offer);
  byId("status").textContent = text;
}

/** A status with a button that is there for ten seconds. */
export function statusWith(text, label, act) {
  status(`${text} `);
  byId("status").append(make("button", { type: "button", class: "quiet undo", onclick: () => {
    status("");
    act();
  } }, label));
  offer = setTimeout(() => status(""), 10_000);
}

/** Copies `text`, and says so on `button` for a moment. Plain http outside of localhost has no clipboard API. */
export async function copy(text, button) {
  const label = button.textContent;
  let done = true;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    done = copyBySelection(text, button);
  }
  button.textContent = done ? "Copied" : "Copying failed";
  setTimeout(() => (button.textContent = label), 1500);
}

function copyBySelection(text, button) {
  const field = make("textarea", { class: "hidden", readonly: true, "aria-hidden": "true" });
  field.value = text;
  button.parentElement.append(field); // inside an open dialog, if the button is: nothing outside can be selected
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  button.focus();
  return done;
}

/** Gives the browser a file to keep. */
export function download(name, type, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** A dialog whose buttons with `value="cancel"` close it; opens it as one that has to be answered. */
export function openDialog(id) {
  const dialog = byId(id);
  dialog.returnValue = "";
  if (!dialog.open) dialog.showModal();
  return dialog;
}
