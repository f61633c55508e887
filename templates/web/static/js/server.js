// Talking to the server: the key, JSON, streams of events. Knows no page.

import { words } from "./words.js";

const KEY = "llamasrv:key";

export class ServerError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

export const byId = (id) => document.getElementById(id);

/** An element with attributes and children; texts are texts. */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element[name] = value;
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child != null));
  return element;
}

let asking = null;

/** Asks for the key; all who need it meanwhile share one question. Resolves to whether one was given. */
export function askForKey() {
  asking ??= new Promise((resolve) => {
    const dialog = byId("key-dialog");
    const input = byId("key-input");
    input.value = "";
    dialog.returnValue = "cancel";
    dialog.addEventListener("close", () => {
      asking = null;
      const given = dialog.returnValue === "use" && input.value.trim();
      if (given) sessionStorage.setItem(KEY, given);
      input.value = "";
      byId("key-button").hidden = false;
      resolve(Boolean(given));
    }, { once: true });
    dialog.showModal();
  });
  return asking;
}

byId("key-button").addEventListener("click", askForKey);
if (sessionStorage.getItem(KEY)) byId("key-button").hidden = false;

/** fetch with the key; asks for one where the server wants one. Raises ServerError. */
export async function call(path, options = {}) {
  for (;;) {
    const headers = { ...options.headers };
    const key = sessionStorage.getItem(KEY);
    if (key) headers.authorization = `Bearer ${key}`;
    if (typeof options.body === "string") headers["content-type"] = "application/json";
    const answer = await fetch(path, { ...options, headers });
    if (answer.ok) return answer;
    if (answer.status === 401 && await askForKey()) continue;
    throw new ServerError(await messageOf(answer), answer.status);
  }
}

export const json = async (path, options) => (await call(path, options)).json();

async function messageOf(answer) {
  const text = await answer.text();
  try {
    const { error } = JSON.parse(text);
    return typeof error === "string" ? error : error.message;
  } catch {
    return words.answered(answer.status);
  }
}

/** The data of each server-sent event of an answer, as it comes. */
export async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) if (line.startsWith("data:")) yield line.slice(5).trim();
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
