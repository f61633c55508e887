// System prompts that are kept by name, in this browser alone.

import { openDialog } from "./page.js";
import { byId, make } from "./server.js";
import { offerUndo } from "./toast.js";
import { words } from "./words.js";

const KEY = "llamasrv:prompts";
const MOST = 200;

const isSound = (one) => typeof one?.name === "string" && one.name.trim() && typeof one.text === "string";

/** Those that someone keeps, by name. */
export function kept() {
  try {
    return JSON.parse(localStorage.getItem(KEY) ?? "[]").filter(isSound);
  } catch {
    return [];
  }
}

/** Keeps these, too; one of the same name is replaced. */
export function keepPrompts(prompts) {
  const all = new Map(kept().map((one) => [one.name, one.text]));
  for (const { name, text } of prompts.filter(isSound)) all.set(name.trim().slice(0, 80), text);
  const sorted = [...all].map(([name, text]) => ({ name, text })).sort((a, b) => a.name.localeCompare(b.name)).slice(0, MOST);
  localStorage.setItem(KEY, JSON.stringify(sorted));
  drawPrompts();
}

/** The list, with the name of what stands in the field chosen. */
export function drawPrompts() {
  const text = byId("system").value;
  const group = (label, prompts, kind) => prompts.length ? [make("optgroup", { label },
    ...prompts.map(({ name }) => make("option", { value: `${kind}:${name}` }, name)))] : [];
  const choice = byId("prompt-choice");
  choice.replaceChildren(make("option", { value: "" }, text ? words.notInLibrary : words.fromLibrary),
    ...group(words.yours, kept(), "own"), ...group(words.examples, words.promptLibrary, "example"));
  const found = kept().find((one) => one.text === text);
  const example = words.promptLibrary.find((one) => one.text === text);
  choice.value = text && found ? `own:${found.name}` : text && example ? `example:${example.name}` : "";
  byId("prompt-delete").disabled = !choice.value.startsWith("own:");
  byId("prompt-save").disabled = !text.trim();
}

/** `changed` is called when another text stands in the field. */
export function beginPrompts(changed) {
  const field = byId("system");
  field.addEventListener("input", drawPrompts);
  byId("prompt-choice").addEventListener("change", () => {
    const [, kind, name] = /^(\w+):(.*)$/s.exec(byId("prompt-choice").value) ?? [];
    const chosen = (kind === "own" ? kept() : words.promptLibrary).find((one) => one.name === name);
    if (kind) field.value = chosen?.text ?? "";
    drawPrompts();
    changed();
  });
  byId("prompt-save").addEventListener("click", () => {
    const [, kind, name] = /^(\w+):(.*)$/s.exec(byId("prompt-choice").value) ?? [];
    byId("prompt-name").value = kind === "own" ? name : field.value.trim().split(/\s+/).slice(0, 4).join(" ").slice(0, 40);
    openDialog("prompt-dialog");
    byId("prompt-name").select();
  });
  byId("prompt-dialog").addEventListener("close", () => {
    const name = byId("prompt-name").value.trim();
    if (byId("prompt-dialog").returnValue === "save" && name) keepPrompts([{ name, text: field.value }]);
  });
  byId("prompt-delete").addEventListener("click", () => {
    const name = byId("prompt-choice").value.slice("own:".length);
    const gone = kept().filter((one) => one.name === name);
    localStorage.setItem(KEY, JSON.stringify(kept().filter((one) => one.name !== name)));
    drawPrompts();
    offerUndo(words.deletedPrompt(name), () => keepPrompts(gone));
  });
  drawPrompts();
}
