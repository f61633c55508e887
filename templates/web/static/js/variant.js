// The page of models: another name for a model, with options of its own where some are given. It is the same file.

import { openDialog } from "./page.js";
import { byId } from "./server.js";
import { modelWords as words } from "./words.js";

const NUMBERS = ["temperature", "top_p", "top_k", "num_ctx", "num_predict"];

/** `act(path, options)` asks the server, and draws the models again. */
export function askForVariant({ id }, act) {
  const dialog = openDialog("variant-dialog");
  byId("variant-title").textContent = words.variantOf(id);
  byId("variant-name").value = "";
  byId("variant-system").value = "";
  for (const name of NUMBERS) byId(`variant-${name}`).value = "";
  dialog.onclose = () => {
    const model = byId("variant-name").value.trim();
    if (dialog.returnValue !== "save" || !model) return;
    const given = NUMBERS.map((name) => [name, byId(`variant-${name}`).value]).filter(([, value]) => value !== "");
    const system = byId("variant-system").value.trim();
    act("/api/create", { method: "POST", body: JSON.stringify({
      model, from: id, stream: false, ...(system ? { system } : {}),
      ...(given.length ? { parameters: Object.fromEntries(given.map(([name, value]) => [name, Number(value)])) } : {}),
    }) });
  };
}
