// One answer, as it streams in: a chat request out, a growing turn back.

import { ServerError, call, events } from "./server.js";
import { words } from "./words.js";

const PAUSES = [500, 1000, 2000, 4000, 8000, 8000, 8000]; // milliseconds before each attempt to find a lost stream

/** The answer to `body` fills `turn` (content, reasoning, calls, stats). The server goes on writing under the name
 * `turn.stream` when the connection is lost or the page is left, and without `body` it is read from there. `changed` hears
 * of each piece; `waits` of what it waits for until then, and what share of that is done, where that is known. */
export async function answer(body, turn, hooks, signal) {
  const started = performance.now();
  const times = { started, first: null };
  const end = () => call(address(turn), { method: "DELETE" }).catch(() => {});
  signal.addEventListener("abort", end, { once: true });
  try {
    let reply = body && await call("/v1/chat/completions", {
      method: "POST", body: JSON.stringify({ ...body, return_progress: true }), headers: { "x-conversation-id": turn.stream }, signal,
    });
    for (let lost = 0; ; lost++) {
      try {
        reply ??= await again(turn, hooks, signal);
        return await read(reply, turn, hooks, times);
      } catch (error) {
        const retry = !signal.aborted && error instanceof TypeError; // what a lost connection is for fetch
        if (!retry || lost >= PAUSES.length) throw error;
        hooks.waits(words.reconnecting, null);
        await new Promise((resolve) => setTimeout(resolve, PAUSES[lost]));
        reply = null;
      }
    }
  } finally {
    signal.removeEventListener("abort", end);
  }
}

const address = ({ stream }) => `/v1/stream?conv_id=${encodeURIComponent(stream)}`;

/** The whole of a stream once more: what the turn has so far is written anew. */
async function again(turn, { changed }, signal) {
  let reply;
  try {
    reply = await call(`${address(turn)}&from=0`, { signal });
  } catch (error) {
    if (error.status === 503) throw new TypeError(error.message); // it has not begun yet
    throw error.status === 404 ? new ServerError(words.lost, 404) : error;
  }
  Object.assign(turn, { content: "", reasoning: undefined, calls: undefined });
  changed();
  return reply;
}

async function read(reply, turn, { changed, waits }, times) {
  let usage = null;
  for await (const data of events(reply)) {
    if (data === "[DONE]") break;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ServerError(chunk.error.message, chunk.error.code);
    usage = chunk.usage ?? usage;
    if (times.first === null) waitsFor(chunk, waits);
    const choice = chunk.choices?.[0];
    if (!choice) continue;
    turn.finish = choice.finish_reason ?? turn.finish;
    if (apply(choice.delta ?? {}, turn)) {
      times.first ??= performance.now();
      changed();
    }
  }
  const { started, first } = times;
  turn.stats = {
    prompt: usage?.prompt_tokens, cached: usage?.prompt_tokens_details?.cached_tokens, tokens: usage?.completion_tokens,
    first: first === null ? null : (first - started) / 1000, seconds: first === null ? 0 : (performance.now() - first) / 1000,
  };
}

function waitsFor({ prompt_queue: queue, prompt_progress: progress }, waits) {
  if (queue) waits(queue.reason === "media" ? words.lookingAt : words.queue(queue.place), null);
  if (progress?.total) {
    const share = progress.processed / progress.total;
    waits(words.prompt(share), share);
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

const TOO_SHORT = 0.02; // seconds in which no rate can be measured

/** The line under an answer. */
export function statsLine({ prompt, cached, tokens, first, seconds }) {
  const parts = [];
  if (tokens != null) parts.push(words.tokens(tokens));
  if (tokens > 1 && seconds > TOO_SHORT) parts.push(words.rate((tokens - 1) / seconds));
  if (first != null) parts.push(words.firstToken(first));
  if (prompt != null) parts.push(words.promptTokens(prompt, cached));
  return parts.join(" · ");
}
