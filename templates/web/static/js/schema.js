// JSON that people and models write: is it JSON, and does it have the form? The validator is loaded when first needed.

let validator = null;

/** [value, null] or [undefined, what is wrong]. An empty text is no value and no mistake. */
export function read(text) {
  if (!text.trim()) return [undefined, null];
  try {
    return [JSON.parse(text), null];
  } catch (error) {
    return [undefined, error.message];
  }
}

/** What is wrong with the text as an instance of the schema; null where nothing is. */
export async function mistakes(schema, text) {
  const [value, problem] = read(text);
  if (value === undefined) return problem ? `not valid JSON: ${problem}` : "empty";
  validator ??= import("../vendor/json-schema/index.js");
  const { Validator } = await validator;
  const { valid, errors } = new Validator(schema, "2020-12", false).validate(value);
  return valid ? null : errors.slice(-3).map((e) => `${e.instanceLocation}: ${e.error}`).join("; ");
}
