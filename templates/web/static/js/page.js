// What the parts of the playground share: the conversation at hand, and what the page says to whoever uses it.

import { Conversation } from "./conversation.js";
import { byId, make } from "./server.js";
import { words } from "./words.js";

export const page = {
  talk: new Conversation(),
  running: null, // AbortController of the answers that are being written
};

/** The line in the message's field: how things are. */
export function status(text) {
  byId("status").textContent = text;
}

/** Copies `text`, and says so on `button` for a moment. Plain http outside of localhost has no clipboard API. */
export async function copy(text, button) {
  let done = true;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    done = copyBySelection(text, button);
  }
  button.was ??= [...button.childNodes];
  clearTimeout(button.timer);
  button.textContent = done ? words.copied : words.copyFailed;
  button.classList.add("told");
  button.timer = setTimeout(() => {
    button.replaceChildren(...button.was);
    button.classList.remove("told");
  }, 1500);
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
