// The request at hand as code.

import { highlight } from "./markdown.js";
import { copy, openDialog } from "./page.js";
import { byId, make } from "./server.js";
import { snippets } from "./snippets.js";

/** Shows the request with that body, in the language `which` of the list. */
export function showCode(body, which = 0, focus = false) {
  const all = snippets(location.origin, body, Boolean(sessionStorage.getItem("llamasrv:key")));
  const [, language, text] = all[which];
  const step = (event) => {
    const to = { ArrowRight: which + 1, ArrowLeft: which - 1, Home: 0, End: all.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    showCode(body, (to + all.length) % all.length, true);
  };
  byId("code-tabs").replaceChildren(...all.map(([name], i) => make("button", {
    type: "button", role: "tab", id: `code-tab-${i}`, "aria-selected": String(i === which), "aria-controls": "code-panel",
    tabindex: i === which ? 0 : -1, onclick: () => showCode(body, i, true), onkeydown: step,
  }, name)));
  byId("code-panel").setAttribute("aria-labelledby", `code-tab-${which}`);
  byId("code-text").textContent = text;
  if (text.length < 50_000) highlight(byId("code-text"), text, language);
  openDialog("code-dialog");
  if (focus) byId(`code-tab-${which}`).focus();
}

byId("code-close").addEventListener("click", () => byId("code-dialog").close());
byId("code-copy").addEventListener("click", (event) => copy(byId("code-text").textContent, event.currentTarget));
