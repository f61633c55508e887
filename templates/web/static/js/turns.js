// How a turn looks: text, folded thinking, cards for calls, and the buttons under it.

import { picture } from "./attachments.js";
import { cite } from "./citations.js";
import { icon } from "./icons.js";
import { show } from "./markdown.js";
import { copy } from "./page.js";
import { showResult } from "./results.js";
import { make } from "./server.js";
import { statsLine } from "./stream.js";
import { words } from "./words.js";

const NAMES = { user: words.you, assistant: words.model, tool: words.toolResult };

/** An element for `turn`; `act` has edit, again, branch, choose, remove, speak, sendResults, documents. `place`: {at, of, pair, chosen} among its
 * branches. `busy`: it is being written. */
export function draw(turn, place, act, busy) {
  const name = turn.role === "assistant" && turn.model ? turn.model : NAMES[turn.role];
  if (turn.summary) return summary(turn, act);
  const box = make("article", { class: `turn ${turn.role}`, "data-turn": turn.id, "aria-label": name, tabindex: -1 });
  box.append(make("h2", {}, name));
  if (turn.files?.length) box.append(make("p", { class: "row files" }, ...turn.files.map((file) => picture(file))));
  if (turn.role === "assistant") box.append(thinking(turn, busy));
  const text = make("div", { class: turn.role === "assistant" ? "text" : "text plain" });
  box.append(text);
  if (turn.calls?.length) box.append(...turn.calls.map((call) => card(call)));
  if (turn.error) box.append(make("p", { class: "error", role: "alert" }, turn.error));
  const foot = make("footer", { class: "row" });
  box.append(foot);
  fill(box, turn, busy);
  if (!busy) {
    if (turn.role === "assistant") cite(text, act.documents(), turn.model);
    if (turn.calls?.length && !turn.answered && turn.finish === "tool_calls") box.insertBefore(results(turn, act), foot);
    buttons(foot, turn, place, act);
  }
  return box;
}

/** What stands for all turns before it. */
function summary(turn, act) {
  const text = make("div", { class: "text" });
  show(text, turn.content, true);
  const foot = make("footer", { class: "row" });
  const box = make("article", { class: "turn summary", "data-turn": turn.id, "aria-label": words.summary, tabindex: -1 },
    make("details", { open: true }, make("summary", {}, words.summary), text), foot);
  buttons(foot, turn, { at: 0, of: 1, pair: 0 }, act);
  return box;
}

/** Shows what an answer that is not there yet waits for; an empty text: nothing any more. `share`: null where unknown. */
export function waiting(box, text, share) {
  let line = box.querySelector(".waiting");
  if (!text) return line?.remove();
  if (!line) box.querySelector(".text").after(line = make("p", { class: "waiting" }, make("span"), make("progress", { max: 1, "aria-label": words.progress })));
  line.querySelector("span").textContent = text;
  const bar = line.querySelector("progress");
  if (share === null) bar.removeAttribute("value");
  else bar.value = share;
  return undefined;
}

/** Puts what `turn` has become into its element. */
export function fill(box, turn, busy) {
  const text = box.querySelector(".text");
  if (turn.role === "assistant") {
    show(text, turn.content, !busy);
    const folded = box.querySelector(".thinking");
    folded.hidden = !turn.reasoning;
    folded.querySelector("div").textContent = turn.reasoning ?? "";
    const cards = box.querySelectorAll(".call");
    turn.calls?.forEach((call, i) => {
      if (cards[i]) cards[i].replaceWith(card(call));
      else box.insertBefore(card(call), box.querySelector("footer"));
    });
  } else if (turn.role === "tool") showResult(text, turn.content);
  else text.textContent = turn.content;
  if (turn.stats) {
    const line = box.querySelector(".stats") ?? box.querySelector("footer").appendChild(make("span", { class: "stats" }));
    line.textContent = statsLine(turn.stats);
  }
}

function thinking(turn, busy) {
  return make("details", { class: "thinking", hidden: !turn.reasoning }, make("summary", {}, busy ? words.thinking : words.thoughts), make("div"));
}

function card(call) {
  let text = call.arguments;
  try {
    text = JSON.stringify(JSON.parse(text), null, 2);
  } catch { /* still being written, or cut off */ }
  return make("section", { class: "call", "aria-label": words.call(call.name) },
    make("h3", {}, call.name), make("pre", { tabindex: 0 }, make("code", {}, text)));
}

function results(turn, act) {
  const fields = turn.calls.map((call) => make("textarea", { rows: 2, class: "code", spellcheck: "false" }));
  return make("form", { class: "results", onsubmit: (event) => {
    event.preventDefault();
    act.sendResults(turn, fields.map((field) => ({ content: field.value })));
  } },
  ...turn.calls.map((call, i) => make("label", {}, words.result(call.name), fields[i])),
  make("button", { class: "primary" }, turn.calls.length > 1 ? words.sendResults : words.sendResult));
}

function buttons(foot, turn, place, act) {
  const button = (name, label, onclick, kind = "") => make("button", { type: "button", class: `quiet round ${kind}`, "aria-label": label, title: label, onclick }, icon(name));
  if (place.pair) {
    foot.append(make("button", { type: "button", class: "quiet choose", "aria-pressed": String(place.chosen), onclick: () => act.choose(turn) },
      place.chosen ? words.continued : words.continueThis));
  }
  if (place.of > (place.pair || 1)) {
    foot.append(
      button("left", words.previous, () => act.branch(turn, -1), "previous"),
      make("span", { class: "place" }, `${place.at + 1}/${place.of}`),
      button("right", words.next, () => act.branch(turn, 1), "next"),
    );
  }
  foot.append(button("copy", words.copy, (event) => copy(turn.content, event.currentTarget)));
  if (turn.role === "assistant" && turn.content) {
    const speak = button("speak", words.readAloud, () => act.speak(foot.parentElement.querySelector(".text").innerText, speak));
    speak.classList.add("speak");
    speak.setAttribute("aria-pressed", "false");
    foot.append(speak);
  }
  if (turn.role === "user" && !turn.summary) foot.append(button("edit", words.edit, () => act.edit(turn)));
  if (turn.role === "assistant") foot.append(button("again", words.regenerate, () => act.again(turn)));
  foot.append(button("delete", words.deleteTurn, () => act.remove(turn)));
}
