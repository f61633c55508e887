// The playground: wires conversation, settings and answers to the page. What the page does without at first is imported
// where it is used.

import { Attachments, isDocument, watch } from "./attachments.js";
import { Conversation } from "./conversation.js";
import { draftOf, keepDraft } from "./drafts.js";
import { beginDrawers, closeDrawers, toggleDrawer } from "./drawers.js";
import { icon } from "./icons.js";
import { followKeys, showKeys } from "./keys.js";
import { page, status } from "./page.js";
import { beginPrompts, drawPrompts } from "./prompts.js";
import { ServerTools } from "./server-tools.js";
import { byId, json, make } from "./server.js";
import { Settings } from "./settings.js";
import { load, openStore, save, stored, takeOld } from "./store.js";
import { Talks } from "./talks.js";
import { offerUndo, takeBack } from "./toast.js";
import { Transcript } from "./transcript.js";
import { beginWelcome } from "./welcome.js";
import { words } from "./words.js";

const transcript = new Transcript(byId("messages"), (turn) => {
  const boxes = page.talk.pairOf(turn).map((one) => messages.draw(one, place(one), act, false));
  return boxes.length > 1 ? make("div", { class: "pair" }, ...boxes) : boxes[0];
});
const prompt = byId("prompt");
const models = new Map(); // what the server tells of each, by name
const serverTools = new ServerTools({ changed: keep, sendResults: (turn, results) => act.sendResults(turn, results), writing });
const settings = new Settings(keep, serverTools, (name) => (models.get(name)?.meta?.capabilities ?? []).includes("vision"));
const attachments = new Attachments(byId("pictures"), status);
const talks = new Talks(open);
let messages = null; // {draw, answers, context, titleOf}, loaded with the first message
let speaker = null; // where a model speaks
let microphone = null; // once it has been used
let documents = []; // that were attached to the messages which are shown
let isOpen = false; // whether the latest conversation is there; what is typed before goes into its field
let naming = null; // AbortController of the title that is being asked for

// ---------------------------------------------------------------- the conversation

async function keep() {
  const { talk } = page;
  talk.settings = { ...settings.values, model: byId("model").value };
  if (!talk.path().length) return;
  talk.changed = Date.now();
  if (!await save(talk)) status(words.storageFull);
  talks.draw();
}

function place(turn) {
  const parent = page.talk.parentOf(turn);
  const pair = page.talk.pairOf(turn).length;
  const at = parent.children.indexOf(turn.id);
  return { at, of: parent.children.length, pair: pair > 1 ? pair : 0, chosen: at === parent.selected };
}

/** Draws the conversation, scrolled to its end or to the turn `id`, `top` pixels under the upper edge. */
function drawAll({ id, top } = {}) {
  const path = page.talk.path();
  documents = path.flatMap(({ files }) => files ?? []).filter(isDocument);
  keepFocus(() => transcript.show(path, { id, top }));
  byId("welcome").hidden = path.length > 0;
  document.body.classList.toggle("empty", !path.length);
  messages?.context.draw();
  serverTools.consider(path.at(-1));
}

/** Loads what shows and writes messages. Raises TypeError if the server cannot be reached. */
async function loadMessages() {
  if (messages) return;
  const { Answers, Context, draw, titleOf } = await import("./messages.js");
  messages ??= { draw, titleOf, answers: new Answers(answering), context: new Context(summarising) };
}

/** While `change` draws messages anew, the focus stays at its message; where that is gone, it goes to the field. */
function keepFocus(change) {
  const { activeElement: at } = document;
  const id = byId("messages").contains(at) ? at.closest(".turn")?.dataset.turn : undefined;
  change();
  if (id && !at.isConnected) (transcript.row(id) ?? prompt).focus({ preventScroll: true });
}

/** Draws the conversation after a change at `turn`: what stands there now, stands where it stood. */
function drawAt(turn) {
  const parent = page.talk.parentOf(turn);
  const boxes = parent.children.map((id) => transcript.top(id));
  drawAll({ id: parent.children[parent.selected], top: boxes.find((top) => top !== null) ?? null });
}

/** Goes on with the answers that were being written when the page was left. */
function resume() {
  const last = page.talk.path().at(-1);
  const unfinished = last?.stream ? page.talk.pairOf(last).filter(({ stream }) => stream) : [];
  if (unfinished.length) messages.answers.resume(unfinished);
}

/** Shows another conversation, and where in it something was found. */
async function open(talk, found) {
  if (talk !== page.talk) page.running?.abort();
  speaker?.stop();
  page.talk = talk;
  write(draftOf(talk));
  settings.use(talk.settings);
  drawPrompts();
  chooseModel(talk.settings.model);
  closeDrawers();
  talks.draw();
  if (talk.path().length) {
    try {
      await loadMessages();
    } catch {
      return status(words.noServer);
    }
    if (talk !== page.talk) return undefined; // yet another one was opened
  }
  if (found && talk.turns[found]) {
    talk.show(talk.turns[found]);
    drawAll({ id: found });
    transcript.row(found)?.classList.add("found");
  } else drawAll();
  return resume();
}

function openNew() {
  open(new Conversation({ settings: page.talk.settings }));
  prompt.focus();
}

const act = {
  documents: () => documents,
  branch(turn, step) {
    page.talk.turnTo(turn, step);
    keep();
    drawAt(turn);
    const parent = page.talk.parentOf(turn);
    transcript.row(parent.children[parent.selected])?.querySelector(step < 0 ? ".previous" : ".next").focus({ preventScroll: true });
  },
  choose(turn) {
    page.talk.show(turn);
    keep();
    drawAt(turn);
    transcript.row(turn.id)?.querySelector(".choose").focus({ preventScroll: true });
  },
  again(turn) {
    if (page.running) return;
    const parent = page.talk.parentOf(turn);
    keepFocus(() => transcript.cut(turn.id));
    messages.answers.begin(parent);
  },
  remove(turn) {
    if (page.running) return;
    const { talk } = page;
    const { count, undo } = talk.prune(turn);
    const show = () => {
      save(talk);
      talks.draw();
      if (talk === page.talk) drawAll();
    };
    show();
    offerUndo(words.deletedTurns(count), () => {
      undo();
      show();
    });
  },
  edit(turn) {
    if (page.running) return;
    const box = transcript.row(turn.id).querySelector(".text");
    const field = make("textarea", { rows: 3, "aria-label": words.editField, onkeydown: (event) => {
      if (event.key !== "Escape" || event.isComposing) return;
      event.stopPropagation();
      drawAt(turn);
    } });
    field.value = turn.content;
    const form = make("form", { class: "edit", onsubmit: (event) => {
      event.preventDefault();
      const made = page.talk.add(page.talk.parentOf(turn), { role: "user", content: field.value, ...(turn.files ? { files: turn.files } : {}) });
      drawAll();
      messages.answers.begin(made);
    } }, field, make("p", { class: "row" }, make("button", { class: "primary" }, words.send),
      make("button", { type: "button", onclick: () => drawAt(turn) }, words.cancel)));
    box.replaceChildren(form);
    field.focus();
  },
  speak: (text, button) => speaker.speak(text, button),
  sendResults(turn, results) {
    if (page.running) return;
    turn.answered = true;
    page.talk.show(turn);
    let last = turn;
    turn.calls.forEach((call, i) => {
      last = page.talk.add(last, { role: "tool", callId: call.id, ...results[i] });
    });
    drawAll();
    messages.answers.begin(last);
  },
};

const answering = {
  transcript,
  models: () => byId("compare").checked ? [byId("model").value, byId("other-model").value] : [byId("model").value],
  request: (model, end) => settings.request(page.talk, model, end),
  validate: (text, finished) => settings.validate(text, finished),
  act, place,
  drawn: (turn) => {
    serverTools.live.add(turn);
    keep();
    drawAll(transcript.isAtEnd ? {} : transcript.seen);
    settings.validate(turn.content, true);
    nameTalk(turn);
  },
  writing,
};

/** Whether the server works on the conversation: the button stops it then. */
function writing(on) {
  if (on) naming?.abort();
  const button = byId("send");
  button.classList.toggle("stop", on);
  button.setAttribute("aria-label", on ? words.stop : words.send);
  button.title = on ? words.stop : words.send;
  button.replaceChildren(icon(on ? "stop" : "send"));
}

/** Asks for a title once a conversation has its first answer, unless someone has given it one. */
async function nameTalk(turn) {
  const { talk } = page;
  const isDemo = document.querySelector("#welcome .notice") !== null; // which knows no titles
  if (isDemo || !byId("titles").checked || talk.named || turn.finish !== "stop" || talk.path().length !== 2) return;
  const asked = naming = new AbortController();
  try {
    const title = await messages.titleOf(settings.request(talk, turn.model), asked.signal);
    if (!title || talk.named) return;
    Object.assign(talk, { title, named: true });
    await save(talk);
    talks.draw();
  } catch { /* it keeps the beginning of its first message */ }
}

const summarising = {
  model: () => models.get(byId("model").value),
  request: () => settings.request(page.talk, byId("model").value),
  goOn: (turn) => {
    page.talk.add(page.talk.last(), turn);
    keep();
    drawAll();
  },
  beginAnew: (turn, title) => {
    const talk = new Conversation({ settings: page.talk.settings, title });
    talk.add(talk.last(), turn);
    open(talk);
    keep();
    prompt.focus();
  },
};

/** Puts a text into the message's field, which grows with it. */
function write(text) {
  prompt.value = text;
  grow();
}

function grow() {
  prompt.style.height = "auto";
  prompt.style.height = `${prompt.scrollHeight}px`;
}

async function send() {
  await begun;
  try {
    await loadMessages();
  } catch {
    return status(words.noServer);
  }
  if (page.running || (!prompt.value.trim() && !attachments.files.length)) return undefined;
  const { talk } = page;
  keepDraft(talk, "");
  const turn = talk.add(talk.last(), { role: "user", content: prompt.value, ...(attachments.files.length ? { files: attachments.files } : {}) });
  write("");
  attachments.set([]);
  keep();
  drawAll();
  return messages.answers.begin(turn);
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

byId("send").addEventListener("click", () => page.running ? page.running.abort() : send());

prompt.addEventListener("input", () => {
  grow();
  if (isOpen) keepDraft(page.talk, prompt.value);
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

const TITLES = "llamasrv:titles";
byId("titles").checked = localStorage.getItem(TITLES) !== "no";
byId("titles").addEventListener("change", () => localStorage.setItem(TITLES, byId("titles").checked ? "yes" : "no"));

byId("show-code").addEventListener("click", async () => (await import("./code.js")).showCode(shownRequest()));
byId("microphone").addEventListener("click", async () => {
  const { Microphone } = await import("./microphone.js");
  microphone ??= new Microphone({ model: listener, write: (text) => {
    write([prompt.value.trimEnd(), text].filter(Boolean).join(" "));
    keepDraft(page.talk, prompt.value);
    prompt.focus();
  } });
  microphone.toggle();
});

beginDrawers();
beginPrompts(keep);
beginWelcome((text) => {
  write(text);
  keepDraft(page.talk, text);
  prompt.focus();
});
followKeys([
  { code: "KeyN", shown: "N", alt: true, does: words.keys.newTalk, run: openNew },
  { code: "KeyK", shown: "K", ctrl: true, does: words.keys.search, run: () => {
    toggleDrawer("talks", true);
    byId("find-talk").focus();
  } },
  { code: "ArrowUp", shown: "↑", alt: true, does: words.keys.above, run: () => talks.step(-1) },
  { code: "ArrowDown", shown: "↓", alt: true, does: words.keys.below, run: () => talks.step(1) },
  { code: "KeyI", shown: "I", alt: true, does: words.keys.toMessage, run: () => prompt.focus() },
  { code: "KeyM", shown: "M", alt: true, does: words.keys.chooseModel, run: () => byId("model").focus() },
  { code: "KeyC", shown: "C", alt: true, does: words.keys.compare, run: () => byId("compare").click() },
  { code: "KeyR", shown: "R", alt: true, does: words.keys.regenerate, run: () => {
    const last = page.talk.path().findLast(({ role }) => role === "assistant");
    if (last) act.again(last);
  } },
  { code: "PageUp", shown: "Page Up", alt: true, does: words.keys.messageBefore, run: () => transcript.step(-1) },
  { code: "PageDown", shown: "Page Down", alt: true, does: words.keys.messageAfter, run: () => transcript.step(1) || prompt.focus() },
  { code: "KeyZ", shown: "Z", alt: true, does: words.keys.undo, run: takeBack },
  { code: "KeyU", shown: "U", alt: true, does: words.keys.attach, run: () => byId("attach-file").click() },
  { code: "KeyJ", shown: "J", alt: true, does: words.keys.code, run: () => byId("show-code").click() },
  { code: "KeyS", shown: "S", alt: true, does: words.keys.settings, run: () => toggleDrawer("settings") },
  { code: "Slash", shown: "/", alt: true, does: words.keys.showKeys, run: showKeys },
]);

// ---------------------------------------------------------------- models

function chooseModel(name) {
  if ([...byId("model").options].some((option) => option.value === name)) byId("model").value = name;
}

/** The model that writes down what someone says: the chosen one, or another that listens. */
function listener() {
  const able = [...models.values()].filter(({ meta }) => (meta?.capabilities ?? []).includes("audio")).map(({ id }) => id);
  return able.includes(byId("model").value) ? byId("model").value : able[0] ?? null;
}

async function useModel() {
  const name = byId("model").value;
  byId("microphone").hidden = !listener() || !navigator.mediaDevices?.getUserMedia || !window.MediaRecorder; // https or localhost
  if (!name) return;
  messages?.context.draw();
  try {
    const props = await json(`/props?model=${encodeURIComponent(name)}`);
    settings.sampling.useDefaults(props.default_generation_settings.params);
    byId("attach-file").accept = attachments.use(props.modalities);
  } catch { /* the sliders then begin where they are */ }
}

/** What only some servers have: conversations on the server, and a model that speaks. */
async function beginMore(access, [speaking]) {
  if (access.history !== null && access.history !== undefined) {
    const { History } = await import("./history.js");
    new History({
      draw: () => talks.draw(),
      show: (talk) => open(talk),
      isBusy: () => page.running !== null || document.querySelector("#messages .edit") !== null,
    }).begin(access);
  }
  if (speaking) {
    const { Speaker } = await import("./speaker.js");
    speaker = new Speaker(speaking.id);
    await speaker.begin();
  }
}

async function begin() {
  const asked = Promise.all([json("/v1/models"), json("/ui/access"), json("/v1/audio/models")]);
  asked.catch(() => { /* said below */ });
  if (!await openStore(() => talks.draw())) status(words.noStorage);
  await takeOld((data) => save(new Conversation(data)));
  const [latest] = stored();
  const talk = latest ? new Conversation(await load(latest.id)) : page.talk;
  const typed = prompt.value;
  const opened = open(talk);
  isOpen = true;
  if (typed) {
    write(typed);
    keepDraft(talk, typed);
  }
  await opened;
  try {
    const [{ data }, access, { models: speaking }] = await asked;
    for (const model of data) models.set(model.id, model);
    for (const id of ["model", "other-model"]) byId(id).replaceChildren(...data.map((model) => make("option", { value: model.id }, model.id)));
    byId("other-model").selectedIndex = data.length > 1 ? 1 : 0;
    chooseModel(page.talk.settings.model);
    const wanted = new URLSearchParams(location.search).get("model"); // from the page of models
    if (models.has(wanted)) {
      history.replaceState(null, "", "/");
      if (page.talk.path().length) openNew();
      chooseModel(wanted);
    }
    await Promise.all([useModel(), serverTools.begin(access), beginMore(access, speaking)]);
    serverTools.consider(page.talk.path().at(-1));
    import("./later.js").then(({ beginOffline }) => beginOffline()).catch(() => { /* some browsers forbid it in private windows */ });
  } catch (error) {
    status(error instanceof TypeError ? words.noServer : error.message);
  }
  document.body.dataset.ready = "yes";
}

if (document.activeElement === document.body) prompt.focus(); // one may write, and send, from now on
const begun = begin();
