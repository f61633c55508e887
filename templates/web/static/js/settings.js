// The panel of settings: what is asked of the model beside the conversation.

import { Sampling } from "./sampling.js";
import { mistakes, read } from "./schema.js";
import { byId } from "./server.js";
import { words } from "./words.js";

const EXAMPLE_TOOLS = [{ type: "function", function: {
  name: "get_weather", description: "Current weather of a city",
  parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
} }];
const EXAMPLE_SCHEMA = {
  type: "object", properties: { name: { type: "string" }, age: { type: "integer" } },
  required: ["name", "age"], additionalProperties: false,
};

export class Settings {
  /** `changed` is called when one of them was. `serverTools` knows those that run on the server; `sees(model)`: whether it
   * can be sent pictures. */
  constructor(changed, serverTools, sees) {
    Object.assign(this, { serverTools, sees });
    this.sampling = new Sampling(byId("main-sliders"), byId("sliders"), changed);
    byId("reset-sampling").addEventListener("click", () => {
      this.sampling.use({});
      changed();
    });
    byId("tools-example").addEventListener("click", () => {
      byId("tools").value = JSON.stringify(EXAMPLE_TOOLS, null, 2);
      this.tools();
      changed();
    });
    byId("schema-example").addEventListener("click", () => {
      byId("schema").value = JSON.stringify(EXAMPLE_SCHEMA, null, 2);
      byId("schema-on").checked = true;
      this.schema();
      changed();
    });
    byId("tools").addEventListener("input", () => this.tools());
    byId("schema").addEventListener("input", () => this.schema());
    for (const id of ["system", "thinking", "tools", "schema", "schema-on"]) byId(id).addEventListener("change", () => {
      this.schema();
      changed();
    });
  }

  /** As they are kept with a conversation. */
  get values() {
    return {
      system: byId("system").value, sampling: this.sampling.chosen, thinking: byId("thinking").value, tools: byId("tools").value,
      schema: byId("schema").value, schemaOn: byId("schema-on").checked, serverTools: this.serverTools.wanted,
    };
  }

  use({ system = "", sampling = {}, thinking = "", tools = "", schema = "", schemaOn = false, serverTools = [] } = {}) {
    this.serverTools.use(Array.isArray(serverTools) ? serverTools : []);
    byId("system").value = system;
    this.sampling.use(sampling);
    byId("thinking").value = thinking;
    byId("tools").value = tools;
    byId("schema").value = schema;
    byId("schema-on").checked = schemaOn;
    this.tools();
    this.schema();
  }

  /** The tools that are defined; undefined where they are none. Says what is wrong with them. */
  tools() {
    const [value, problem] = read(byId("tools").value);
    const wrong = problem ?? (value === undefined || (Array.isArray(value) && value.every((tool) => tool?.function?.name))
      ? null : words.toolsExpected);
    byId("tools-status").textContent = wrong ?? (value?.length ? words.toolsDefined(value.length) : "");
    byId("tools").setAttribute("aria-invalid", String(Boolean(wrong)));
    return wrong ? undefined : value;
  }

  /** The schema; undefined where there is none. Says what is wrong with it. */
  schema() {
    const [value, problem] = read(byId("schema").value);
    const wrong = problem ?? (value === undefined || typeof value === "boolean" || (typeof value === "object" && value && !Array.isArray(value))
      ? null : words.schemaExpected);
    byId("schema-status").textContent = wrong ?? (byId("schema-on").checked && value === undefined ? words.schemaMissing : "");
    byId("schema").setAttribute("aria-invalid", String(Boolean(wrong)));
    return wrong ? undefined : value;
  }

  /** Says whether an answer has the form that it must have. */
  async validate(text, finished) {
    const schema = byId("schema-on").checked ? this.schema() : undefined;
    if (schema === undefined) return;
    const wrong = await mistakes(schema, text);
    byId("schema-status").textContent = wrong ? (finished ? words.schemaWrong(wrong) : words.schemaWriting) : words.schemaFits;
  }

  /** The request for what follows on the conversation up to `end`. */
  request(talk, model, end) {
    const body = {
      model, messages: talk.messages(byId("system").value, end, this.sees(model)), stream: true, stream_options: { include_usage: true }, ...this.sampling.chosen,
    };
    const tools = [...this.tools() ?? [], ...this.serverTools.definitions];
    if (tools.length) body.tools = tools;
    const schema = byId("schema-on").checked ? this.schema() : undefined;
    if (schema !== undefined) body.response_format = { type: "json_schema", json_schema: { name: "answer", strict: true, schema } };
    const thinking = byId("thinking").value;
    if (thinking) body.chat_template_kwargs = { enable_thinking: thinking === "true" };
    return body;
  }
}
