// Conversations as files: JSON, which can be read in again, and Markdown, for people.

import { sizeOf } from "./attachments.js";
import { Conversation } from "./conversation.js";
import { load, stored } from "./store.js";
import { kept } from "./prompts.js";
import { words } from "./words.js";

/** A name for a file. */
export const fileName = (talk, ending) => `${talk.title.replace(/[^\p{L}\p{N} _-]/gu, "").trim().slice(0, 60) || "conversation"}.${ending}`;

function fenced(text, language = "") {
  const fence = "`".repeat(Math.max(3, ...[...text.matchAll(/`+/g)].map((run) => run[0].length + 1)));
  return `${fence}${language}\n${text.replace(/\n?$/, "\n")}${fence}`;
}

function heading(turn) {
  if (turn.role === "user") return `## ${words.you}`;
  return turn.role === "tool" ? `## ${words.toolResult}` : `## ${turn.model ?? words.model}`;
}

/** The turns that are shown, as Markdown. What a model wrote is Markdown already; what people wrote is quoted as it is. */
export function markdown(talk) {
  const out = [`# ${talk.title.replace(/\s+/g, " ")}`];
  const system = talk.settings.system?.trim();
  if (system) out.push("## System prompt", system);
  for (const turn of talk.path()) {
    out.push(heading(turn));
    for (const file of turn.files ?? []) out.push(`*${file.name || file.type} (${sizeOf(file.size)})*`);
    if (turn.reasoning) out.push(`<details><summary>Thoughts</summary>\n\n${fenced(turn.reasoning, "text")}\n\n</details>`);
    if (turn.content) out.push(turn.role === "tool" ? fenced(turn.content) : turn.content.trim());
    for (const call of turn.calls ?? []) out.push(`Call of \`${call.name}\``, fenced(call.arguments, "json"));
    if (turn.error) out.push(`*${turn.error}*`);
  }
  return `${out.join("\n\n")}\n`;
}

/** All conversations with their files, and the system prompts. */
export async function everything() {
  const conversations = [];
  for (const { id } of stored()) conversations.push(new Conversation(await load(id)));
  return JSON.stringify({ conversations, prompts: kept() }, null, 1);
}
