// What the parts of the playground share: the conversation at hand, and the line that says how things are.

import { Conversation } from "./conversation.js";
import { byId } from "./server.js";

export const page = {
  talk: new Conversation(),
  running: null, // AbortController of the answers that are being written
};

export function status(text) {
  byId("status").textContent = text;
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
