// The request at hand, as someone would write it in a program.

const quote = (text) => `'${text.replaceAll("'", "'\\''")}'`;

function python(value, depth = 0) {
  const pad = "    ".repeat(depth + 1);
  const close = "    ".repeat(depth);
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (Array.isArray(value)) {
    return value.length ? `[\n${value.map((v) => pad + python(v, depth + 1)).join(",\n")},\n${close}]` : "[]";
  }
  if (typeof value === "object") {
    const entries = Object.entries(value).map(([k, v]) => `${pad}${JSON.stringify(k)}: ${python(v, depth + 1)}`);
    return entries.length ? `{\n${entries.join(",\n")},\n${close}}` : "{}";
  }
  return JSON.stringify(value);
}

const named = (fields) => Object.entries(fields).map(([k, v]) => `    ${k}=${python(v, 1)},\n`).join("");

const OPENAI_OWN = new Set([
  "model", "messages", "temperature", "top_p", "presence_penalty", "frequency_penalty", "max_tokens", "seed", "tools",
  "response_format", "stream", "stream_options",
]);

function openai(base, key, body) {
  const own = Object.fromEntries(Object.entries(body).filter(([name]) => OPENAI_OWN.has(name)));
  const extra = Object.fromEntries(Object.entries(body).filter(([name]) => !OPENAI_OWN.has(name)));
  const more = Object.keys(extra).length ? { extra_body: extra } : {};
  return `from openai import OpenAI

client = OpenAI(base_url="${base}/v1", api_key=${key})
stream = client.chat.completions.create(
${named({ ...own, ...more })})
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
`;
}

/** [type, base64] of a data: URL. */
const split = (url) => [/^data:([^;,]*)/.exec(url)?.[1] ?? "", url.slice(url.indexOf(",") + 1)];

const isPdf = ({ file_data: url, filename }) => split(url)[0] === "application/pdf" || /\.pdf$/i.test(filename);

const textOf = (base64) => new TextDecoder().decode(Uint8Array.from(atob(base64), (c) => c.charCodeAt(0)));

/** Parts as Anthropic writes them; it has no sounds. */
function blocks(content) {
  if (!Array.isArray(content)) return content;
  return content.filter((part) => part.type !== "input_audio").map((part) => {
    if (part.type === "text") return part;
    const [media_type, data] = split(part.image_url?.url ?? part.file.file_data);
    if (part.type === "image_url") return { type: "image", source: { type: "base64", media_type, data } };
    const source = isPdf(part.file) ? { type: "base64", media_type: "application/pdf", data } : { type: "text", media_type: "text/plain", data: textOf(data) };
    return { type: "document", title: part.file.filename, source };
  });
}

/** A message as Ollama writes it: text and images. It has no sounds and no documents but text. */
function plainly(content) {
  if (!Array.isArray(content)) return { content };
  const images = content.filter((part) => part.type === "image_url").map((part) => split(part.image_url.url)[1]);
  const texts = content.filter((part) => part.type === "text" || (part.type === "file" && !isPdf(part.file))).map((part) =>
    part.type === "text" ? part.text : `[${part.file.filename}]\n${textOf(split(part.file.file_data)[1])}`);
  return { content: texts.join("\n\n"), ...(images.length ? { images } : {}) };
}

/** The same conversation in Anthropic's words. */
export function anthropicBody(body) {
  const system = body.messages.filter((m) => m.role === "system").map((m) => m.content).join("\n");
  const messages = [];
  for (const message of body.messages.filter((m) => m.role !== "system")) {
    if (message.role === "tool") {
      const block = { type: "tool_result", tool_use_id: message.tool_call_id, content: message.content };
      if (messages.at(-1)?.results) messages.at(-1).content.push(block);
      else messages.push({ role: "user", content: [block], results: true });
    } else if (message.tool_calls) {
      const calls = message.tool_calls.map((c) => ({ type: "tool_use", id: c.id, name: c.function.name, input: JSON.parse(c.function.arguments || "{}") }));
      messages.push({ role: "assistant", content: [...(message.content ? [{ type: "text", text: message.content }] : []), ...calls] });
    } else {
      messages.push({ role: message.role, content: blocks(message.content) });
    }
  }
  const out = { model: body.model, max_tokens: body.max_tokens ?? 1024, messages: messages.map(({ role, content }) => ({ role, content })) };
  if (system) out.system = system;
  for (const name of ["temperature", "top_p", "top_k"]) if (name in body) out[name] = body[name];
  if (body.tools) out.tools = body.tools.map(({ function: f }) => ({ name: f.name, description: f.description ?? "", input_schema: f.parameters ?? { type: "object" } }));
  if (body.response_format) out.output_config = { format: { type: "json_schema", schema: body.response_format.json_schema.schema } };
  return out;
}

function anthropic(base, key, body) {
  return `from anthropic import Anthropic

client = Anthropic(base_url="${base}", api_key=${key})
with client.messages.stream(
${named(anthropicBody(body))}) as stream:
    for text in stream.text_stream:
        print(text, end="", flush=True)
`;
}

function ollamaBody(body) {
  const options = {};
  for (const name of ["temperature", "top_p", "top_k", "min_p", "repeat_penalty", "presence_penalty", "frequency_penalty", "seed"]) {
    if (name in body) options[name] = body[name];
  }
  if ("max_tokens" in body) options.num_predict = body.max_tokens;
  const messages = body.messages.map((m) => m.tool_calls
    ? { role: m.role, content: m.content ?? "", tool_calls: m.tool_calls.map((c) => ({ function: { name: c.function.name, arguments: JSON.parse(c.function.arguments || "{}") } })) }
    : { role: m.role, ...plainly(m.content) });
  const out = { model: body.model, messages, stream: true };
  if (Object.keys(options).length) out.options = options;
  if (body.tools) out.tools = body.tools;
  if (body.response_format) out.format = body.response_format.json_schema.schema;
  const thinking = body.chat_template_kwargs?.enable_thinking;
  if (thinking !== undefined) out.think = thinking;
  return out;
}

function ollama(base, key, body, keyed) {
  const headers = keyed ? `, headers={"Authorization": "Bearer " + ${key}}` : "";
  const lost = body.messages.some(({ content }) => Array.isArray(content) && content.some((part) => part.type === "input_audio" || (part.type === "file" && isPdf(part.file))));
  return `${lost ? "# Ollama's protocol has no place for sounds and PDF: they are left out.\n" : ""}from ollama import Client

client = Client(host="${base}"${headers})
for part in client.chat(
${named(ollamaBody(body))}):
    print(part.message.content or "", end="", flush=True)
`;
}

function curl(base, body, keyed) {
  const header = keyed ? ` \\\n  -H "Authorization: Bearer $LLAMASRV_API_KEY"` : "";
  return `curl -N ${base}/v1/chat/completions${header} \\
  -H 'Content-Type: application/json' \\
  -d ${quote(JSON.stringify(body, null, 2))}
`;
}

function javascript(base, key, body) {
  return `import OpenAI from "openai";

const client = new OpenAI({ baseURL: "${base}/v1", apiKey: ${key} });
const stream = await client.chat.completions.create(${JSON.stringify(body, null, 2)});
for await (const chunk of stream) process.stdout.write(chunk.choices[0]?.delta.content ?? "");
`;
}

/** [name, language, text] of each way to write it. `keyed`: the server asks for a key; it is read from the environment. */
export function snippets(base, body, keyed) {
  const py = keyed ? 'os.environ["LLAMASRV_API_KEY"]' : '"none"';
  const imports = keyed ? "import os\n\n" : "";
  return [
    ["curl", "bash", curl(base, body, keyed)],
    ["Python, openai", "python", imports + openai(base, py, body)],
    ["Python, anthropic", "python", imports + anthropic(base, py, body)],
    ["Python, ollama", "python", imports + ollama(base, py, body, keyed)],
    ["JavaScript", "javascript", javascript(base, keyed ? "process.env.LLAMASRV_API_KEY" : '"none"', body)],
  ];
}
