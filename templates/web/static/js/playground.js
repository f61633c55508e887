// The playground: wires conversation, settings and answers to the page.

import { Answers } from "./answers.js";
import { Attachments, watch } from "./attachments.js";
import { beginCode } from "./code.js";
import { Conversation } from "./conversation.js";
import { beginDrawers, closeDrawers, toggleDrawer } from "./drawers.js";
import { followKeys, showKeys } from "./keys.js";
import { page, status } from "./page.js";
import { beginPrompts, drawPrompts } from "./prompts.js";
import { byId, json, make } from "./server.js";
import { Settings } from "./settings.js";
import { load, openStore, save, stored, takeOld } from "./store.js";
import { Talks } from "./talks.js";
import { draw } from "./turns.js";

const messages = byId("messages");
const prompt = byId("prompt");
const settings = new Settings(keep);
const attachments = new Attachments(byId("pictures"), status);
const talks = new Talks(open);

// ---------------------------------------------------------------- the conversation

async function keep() {
  const { talk } = page;
  talk.settings = { ...settings.values, model: byId("model").value };
  if (!talk.path().length) return;
  talk.changed = Date.now();
  if (!await save(talk)) status("This browser keeps no more: export what matters.");
  talks.draw();
}

function place(turn) {
  const parent = page.talk.parentOf(turn);
  const pair = page.talk.pairOf(turn).length;
  const at = parent.children.indexOf(turn.id);
  return { at, of: parent.children.length, pair: pair > 1 ? pair : 0, chosen: at === parent.selected };
}

function drawAll() {
  const { talk } = page;
  messages.replaceChildren(...talk.path().map((turn) => {
    const boxes = talk.pairOf(turn).map((one) => draw(one, place(one), act, false));
    return boxes.length > 1 ? make("div", { class: "pair" }, ...boxes) : boxes[0];
  }));
  byId("welcome").hidden = Boolean(messages.childElementCount);
  messages.scrollTop = messages.scrollHeight;
}

/** Shows another conversation, and where in it something was found. */
function open(talk, found) {
  if (talk !== page.talk) page.running?.abort();
  page.talk = talk;
  settings.use(talk.settings);
  drawPrompts();
  chooseModel(talk.settings.model);
  closeDrawers();
  if (found && talk.turns[found]) {
    talk.show(talk.turns[found]);
    drawAll();
    const box = messages.querySelector(`[data-turn="${found}"]`);
    box?.classList.add("found");
    box?.scrollIntoView({ block: "center" });
  } else drawAll();
  talks.draw();
}

function openNew() {
  open(new Conversation({ settings: page.talk.settings }));
  prompt.focus();
}

const act = {
  branch(turn, step) {
    page.talk.turnTo(turn, step);
    keep();
    drawAll();
  },
  choose(turn) {
    page.talk.show(turn);
    keep();
    drawAll();
    messages.querySelector(`[data-turn="${turn.id}"] .choose`)?.focus();
  },
  again(turn) {
    if (page.running) return;
    const parent = page.talk.parentOf(turn);
    const box = messages.querySelector(`[data-turn="${turn.id}"]`);
    const row = box?.closest(".pair") ?? box;
    while (row?.nextSibling) row.nextSibling.remove();
    row?.remove();
    answers.begin(parent);
  },
  edit(turn) {
    if (page.running) return;
    const box = messages.querySelector(`[data-turn="${turn.id}"] .text`);
    const field = make("textarea", { rows: 3, "aria-label": "Edit this turn" });
    field.value = turn.content;
    const form = make("form", { class: "edit", onsubmit: (event) => {
      event.preventDefault();
      const made = page.talk.add(page.talk.parentOf(turn), { role: "user", content: field.value, ...(turn.files ? { files: turn.files } : {}) });
      drawAll();
      answers.begin(made);
    } }, field, make("p", { class: "row" }, make("button", { class: "primary" }, "Send"),
      make("button", { type: "button", onclick: drawAll }, "Cancel")));
    box.replaceChildren(form);
    field.focus();
  },
  sendResults(turn, results) {
    if (page.running) return;
    turn.answered = true;
    page.talk.show(turn);
    let last = turn;
    turn.calls.forEach((call, i) => {
      last = page.talk.add(last, { role: "tool", callId: call.id, content: results[i] });
    });
    drawAll();
    answers.begin(last);
  },
};

const answers = new Answers({
  models: () => byId("compare").checked ? [byId("model").value, byId("other-model").value] : [byId("model").value],
  request: (model, end) => settings.request(page.talk, model, end),
  validate: (text, finished) => settings.validate(text, finished),
  act, place,
  drawn: (turn) => {
    keep();
    drawAll();
    settings.validate(turn.content, true);
  },
});

function send() {
  if (page.running || (!prompt.value.trim() && !attachments.files.length)) return;
  const { talk } = page;
  const turn = talk.add(talk.last(), { role: "user", content: prompt.value, ...(attachments.files.length ? { files: attachments.files } : {}) });
  prompt.value = "";
  attachments.set([]);
  keep();
  drawAll();
  answers.begin(turn);
}

/** The request that the last answer came from, or the one that would be sent now. */
function shownRequest() {
  const last = page.talk.path().at(-1);
  const answered = last?.role === "assistant";
  const body = settings.request(page.talk, (answered && last.model) || byId("model").value, answered ? last : undefined);
  if (!body.messages.some((m) => m.role === "user")) body.messages.push({ role: "user", content: prompt.value || "Hello" });
  return body;
}

// ---------------------------------------------------------------- events

byId("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});

prompt.addEventListener("keydown", (event) => {
  if (event.isComposing) return;
  if (event.key === "Enter" && !event.shiftKey) {
    event.preventDefault();
    byId("composer").requestSubmit();
  } else if (event.key === "ArrowUp" && !prompt.value) {
    const last = page.talk.path().findLast(({ role }) => role === "user");
    if (!last) return;
    event.preventDefault();
    act.edit(last);
  }
});

document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || document.querySelector("dialog[open]")) return;
  if (!closeDrawers()) page.running?.abort();
});

byId("stop").addEventListener("click", () => page.running?.abort());
byId("new-talk").addEventListener("click", openNew);
byId("model").addEventListener("change", () => {
  keep();
  useModel();
});
byId("compare").addEventListener("change", () => (byId("other-model").hidden = !byId("compare").checked));

watch(byId("main"), prompt, attachments);
byId("attach-button").addEventListener("click", () => byId("attach-file").click());
byId("attach-file").addEventListener("change", () => {
  const files = [...byId("attach-file").files];
  byId("attach-file").value = "";
  attachments.add(files);
});

beginCode(shownRequest);
beginDrawers();
beginPrompts(keep);
followKeys([
  { code: "KeyN", shown: "N", alt: true, does: "A new conversation", run: openNew },
  { code: "KeyK", shown: "K", ctrl: true, does: "Search in conversations", run: () => {
    toggleDrawer("talks", true);
    byId("find-talk").focus();
  } },
  { code: "ArrowUp", shown: "↑", alt: true, does: "The conversation above", run: () => talks.step(-1) },
  { code: "ArrowDown", shown: "↓", alt: true, does: "The conversation below", run: () => talks.step(1) },
  { code: "KeyI", shown: "I", alt: true, does: "To the message", run: () => prompt.focus() },
  { code: "KeyM", shown: "M", alt: true, does: "Choose the model", run: () => byId("model").focus() },
  { code: "KeyC", shown: "C", alt: true, does: "Compare two models, or no more", run: () => byId("compare").click() },
  { code: "KeyR", shown: "R", alt: true, does: "Answer again", run: () => {
    const last = page.talk.path().findLast(({ role }) => role === "assistant");
    if (last) act.again(last);
  } },
  { code: "KeyU", shown: "U", alt: true, does: "Attach a file", run: () => byId("attach-file").click() },
  { code: "KeyJ", shown: "J", alt: true, does: "Show the request as code", run: () => byId("show-code").click() },
  { code: "Slash", shown: "/", alt: true, does: "Show these keys", run: showKeys },
]);

// ---------------------------------------------------------------- models

function chooseModel(name) {
  if ([...byId("model").options].some((option) => option.value === name)) byId("model").value = name;
}

async function useModel() {
  const name = byId("model").value;
  if (!name) return;
  try {
    const props = await json(`/props?model=${encodeURIComponent(name)}`);
    settings.sampling.useDefaults(props.default_generation_settings.params);
    byId("attach-file").accept = attachments.use(props.modalities);
  } catch { /* the sliders then begin where they are */ }
}

async function begin() {
  if (!await openStore(() => talks.draw())) status("This browser keeps nothing: conversations last as long as this page.");
  await takeOld((data) => save(new Conversation(data)));
  const [latest] = stored();
  open(latest ? new Conversation(await load(latest.id)) : page.talk);
  try {
    const { data } = await json("/v1/models");
    for (const id of ["model", "other-model"]) byId(id).replaceChildren(...data.map((model) => make("option", { value: model.id }, model.id)));
    byId("other-model").selectedIndex = data.length > 1 ? 1 : 0;
    chooseModel(page.talk.settings.model);
    await useModel();
  } catch (error) {
    status(error.message);
  }
  if (document.activeElement === document.body) prompt.focus();
  document.body.dataset.ready = "yes";
}

begin();
