// The page of models: a search on the Hugging Face Hub, with what of it fits this machine.

import { bytes, number } from "./figures.js";
import { byId, json, make } from "./server.js";
import { modelWords as words } from "./words.js";

/** `pull(name)` begins to pull a model. */
export function beginHub(pull) {
  byId("hub").hidden = false;
  byId("hub").addEventListener("submit", async (event) => {
    event.preventDefault();
    const told = byId("hub-status");
    told.textContent = words.searching;
    byId("hub-found").replaceChildren();
    try {
      const { data } = await json(`/admin/hub?q=${encodeURIComponent(byId("hub-words").value.trim())}`);
      told.textContent = words.hubFound(data.length);
      byId("hub-found").replaceChildren(...data.map((one) => repository(one, pull)));
    } catch (error) {
      told.textContent = error.message;
    }
  });
}

function repository({ repo, downloads, gated }, pull) {
  const list = make("ul", {}, make("li", { class: "faint" }, words.searching));
  let asked = false;
  const box = make("details", { ontoggle: async () => {
    if (!box.open || asked) return;
    asked = true;
    try {
      const { data } = await json(`/admin/hub/${repo}`);
      list.replaceChildren(...(data.length ? data.map((one) => offer(one, pull)) : [make("li", { class: "faint" }, words.noOffers)]));
    } catch (error) {
      asked = false;
      list.replaceChildren(make("li", { class: "error", role: "alert" }, error.message));
    }
  } }, make("summary", {}, repo, make("span", { class: "faint" }, ` ${words.downloads(number(downloads ?? 0))}`),
    gated ? make("span", { class: "faint" }, ` · ${words.gated}`) : null), list);
  return make("li", {}, box);
}

function offer({ name, quantization, size, needs, ...told }, pull) {
  return make("li", {}, make("strong", {}, quantization), make("span", {}, bytes(size)),
    make("span", { class: `fit ${told.fit}` }, words.fit[told.fit](told, bytes(needs))),
    make("button", { type: "button", "aria-label": words.pullName(name), onclick: () => pull(name) }, words.pull));
}
