// One answer, as it streams in: a chat request out, a growing turn back.

import { ServerError, call, events } from "./server.js";

/** Sends `body` and fills `turn` (content, reasoning, calls, stats). `changed` hears of each piece; `waits` of what it
 * waits for until then, and what share of that is done, where that is known. */
export async function answer(body, turn, { changed, waits }, signal) {
  const started = performance.now();
  let first = null;
  let usage = null;
  const reply = await call("/v1/chat/completions", { method: "POST", body: JSON.stringify({ ...body, return_progress: true }), signal });
  for await (const data of events(reply)) {
    if (data === "[DONE]") break;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ServerError(chunk.error.message, chunk.error.code);
    usage = chunk.usage ?? usage;
    if (first === null) waitsFor(chunk, waits);
    const choice = chunk.choices?.[0];
    if (!choice) continue;
    turn.finish = choice.finish_reason ?? turn.finish;
    if (apply(choice.delta ?? {}, turn)) {
      first ??= performance.now();
      changed();
    }
  }
  const ended = performance.now();
  turn.stats = {
    prompt: usage?.prompt_tokens, cached: usage?.prompt_tokens_details?.cached_tokens, tokens: usage?.completion_tokens,
    first: first === null ? null : (first - started) / 1000, seconds: first === null ? 0 : (ended - first) / 1000,
  };
}

function waitsFor({ prompt_queue: queue, prompt_progress: progress }, waits) {
  if (queue) waits(queue.reason === "media" ? "Looking at what was attached" : `Place ${queue.place} in the queue`, null);
  if (progress?.total) {
    const share = progress.processed / progress.total;
    waits(`Prompt ${Math.round(100 * share)} %`, share);
  }
}

function apply(delta, turn) {
  if (delta.content) turn.content += delta.content;
  if (delta.reasoning_content) turn.reasoning = (turn.reasoning ?? "") + delta.reasoning_content;
  for (const piece of delta.tool_calls ?? []) {
    const calls = (turn.calls ??= []);
    const made = (calls[piece.index] ??= { id: "", name: "", arguments: "" });
    made.id = piece.id ?? made.id;
    made.name += piece.function?.name ?? "";
    made.arguments += piece.function?.arguments ?? "";
  }
  return Boolean(delta.content || delta.reasoning_content || delta.tool_calls?.length);
}

/** The line under an answer. */
export function statsLine({ prompt, cached, tokens, first, seconds }) {
  const parts = [];
  if (tokens != null) parts.push(`${tokens} tokens`);
  if (tokens > 1 && seconds > 0) parts.push(`${((tokens - 1) / seconds).toFixed(1)} tokens/s`);
  if (first != null) parts.push(`first after ${first < 1 ? `${Math.round(first * 1000)} ms` : `${first.toFixed(1)} s`}`);
  if (prompt != null) parts.push(`prompt ${prompt}${cached ? `, ${cached} of them cached` : ""}`);
  return parts.join(" · ");
}
