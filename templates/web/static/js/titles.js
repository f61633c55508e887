// Titles of conversations: the model that answered is asked for one, behind everything else that the server has to do.

import { json } from "./server.js";
import { words } from "./words.js";

const LONGEST = 60; // characters
const TOKENS = 24;

/** A title for the conversation that `request` is about, as it would be sent on; null where the model has none. The
 * prompt begins as that of the conversation, so that the server has it already. */
export async function titleOf(request, signal) {
  const { model, messages, tools, chat_template_kwargs: kwargs } = request;
  const { choices } = await json("/v1/chat/completions", { method: "POST", signal, body: JSON.stringify({
    model, messages: [...messages, { role: "user", content: words.titlePrompt }], ...(tools ? { tools, tool_choice: "none" } : {}),
    chat_template_kwargs: { ...kwargs, enable_thinking: false }, max_tokens: TOKENS, temperature: 0, service_tier: "flex",
  }) });
  if (choices[0].finish_reason === "length") return null; // an answer, not a title
  const title = (choices[0].message.content ?? "").trim().split("\n")[0].replace(/^(?:\d+[.)]|["“'#*\-–\s])+|["”'*.\s]+$/g, "");
  return title && title.length <= LONGEST ? title : null;
}
