// The console's API keys: what each may do, new ones, rotation and revocation.

import { moment, number } from "./figures.js";
import { copy, openDialog } from "./page.js";
import { byId, json, make } from "./server.js";
import { consoleWords as words } from "./words.js";

const LIMITS = ["requests_per_minute", "tokens_per_minute", "tokens_per_month", "concurrency"];

let scopes = [];
let edited = null; // the key in the open dialog; null: a new one

const path = (name) => `/admin/keys/${encodeURIComponent(name)}`;
const post = (to, body) => json(to, { method: "POST", body: JSON.stringify(body) });

function row(key, isEditable) {
  const facts = [
    key.scopes.length === scopes.length ? words.allScopes : key.scopes.map((scope) => words.scopes[scope] ?? scope).join(", "),
    key.models ? words.onlyModels(key.models.join(", ")) : null,
    ...LIMITS.filter((limit) => key[limit] != null).map((limit) => words.limits[limit](number(key[limit]), number(key.spent_this_month))),
    key.expires == null ? null : words.expires(moment(key.expires), key.expires * 1000 < Date.now()),
    key.old_expires == null ? null : words.oldExpires(moment(key.old_expires)),
    key.open ? words.openNow(number(key.open)) : null, key.refused ? words.refused(number(key.refused)) : null,
  ];
  const button = (label, run) => make("button", { type: "button", "aria-label": `${label} ${key.name}`, onclick: run }, label);
  return make("li", { "data-key": key.name }, make("span", { class: "name" }, key.name), key.is_own ? make("span", { class: "tag" }, words.ownKey) : null,
    make("span", { class: "facts" }, facts.filter(Boolean).join(" · ")),
    isEditable ? make("span", { class: "row" }, button(words.edit, () => openEditor(key)), button(words.rotate, () => ask("rotate", key, words.rotateKey)),
      key.is_own ? null : button(words.revoke, () => ask("revoke", key, words.revokeKey))) : null);
}

export async function readKeys() {
  const { keys, obstacle, scopes: all } = await json("/admin/keys");
  scopes = all;
  byId("new-key").hidden = obstacle != null;
  byId("key-obstacle").textContent = obstacle ?? "";
  byId("api-keys").replaceChildren(...(keys.length ? keys.map((key) => row(key, obstacle == null)) : [make("li", { class: "faint" }, words.noKeys)]));
}

function openEditor(key) {
  edited = key;
  byId("edit-title").textContent = key ? words.editKey(key.name) : words.newKey;
  byId("edit-name").value = key?.name ?? "";
  byId("edit-name").disabled = key != null;
  byId("edit-scopes").replaceChildren(byId("edit-scopes").firstElementChild, ...scopes.map((scope) => make("label", { class: "check" },
    make("input", { type: "checkbox", value: scope, checked: key ? key.scopes.includes(scope) : scope === "infer" }), words.scopes[scope] ?? scope)));
  for (const limit of LIMITS) byId(`edit-${limit}`).value = key?.[limit] ?? "";
  byId("edit-models").value = key?.models?.join(", ") ?? "";
  byId("edit-expires").value = key?.expires == null ? "" : new Date(1000 * key.expires).toISOString().slice(0, 10);
  byId("edit-error").textContent = "";
  openDialog("edit-dialog");
}

function ask(what, key, title) {
  edited = key;
  byId(`${what}-title`).textContent = title(key.name);
  byId(`${what}-error`).textContent = "";
  openDialog(`${what}-dialog`);
}

function showSecret({ name, key }) {
  byId("secret-title").textContent = words.secretOf(name);
  byId("secret").textContent = key;
  openDialog("secret-dialog");
}

async function save() {
  const values = { scopes: [...byId("edit-scopes").querySelectorAll(":checked")].map((box) => box.value) };
  for (const limit of LIMITS) values[limit] = byId(`edit-${limit}`).value ? Number(byId(`edit-${limit}`).value) : null;
  const models = byId("edit-models").value.split(",").map((name) => name.trim()).filter(Boolean);
  values.models = models.length ? models : null;
  const expires = byId("edit-expires").value || null;
  const before = edited?.expires == null ? null : new Date(1000 * edited.expires).toISOString().slice(0, 10);
  if (expires !== before) values.expires = expires; // a time of day that was written by hand stays
  return edited ? post(path(edited.name), values) : post("/admin/keys", { name: byId("edit-name").value.trim(), ...values });
}

const ACTIONS = {
  edit: save,
  rotate: () => post(`${path(edited.name)}/rotate`, { grace_seconds: Number(byId("grace").value) }),
  revoke: () => json(path(edited.name), { method: "DELETE" }),
};

export function beginKeys() {
  byId("new-key").addEventListener("click", () => openEditor(null));
  for (const [what, act] of Object.entries(ACTIONS)) {
    byId(`${what}-form`).addEventListener("submit", async (event) => {
      event.preventDefault();
      try {
        const done = await act();
        byId(`${what}-dialog`).close();
        if (done.key) showSecret(done);
        await readKeys();
      } catch (error) {
        byId(`${what}-error`).textContent = error.message;
      }
    });
  }
  for (const button of document.querySelectorAll("dialog [data-close]")) button.addEventListener("click", () => button.closest("dialog").close());
  byId("copy-secret").addEventListener("click", () => copy(byId("secret").textContent, byId("copy-secret")));
  byId("secret-dialog").addEventListener("close", () => (byId("secret").textContent = ""));
}
