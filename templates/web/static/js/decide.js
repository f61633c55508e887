// The page of decisions: a text, questions about it, and a bar for the probability of each answer.

import { number } from "./figures.js";
import { byId, json, make } from "./server.js";
import { decideWords as words } from "./words.js";

const MOST_ORDERS = 4; // of a choice's options
const percent = (p) => p.toLocaleString(undefined, { style: "percent", minimumFractionDigits: 1, maximumFractionDigits: 1 });

/** Lines "value - description". */
function lines(text, name) {
  return text.split("\n").map((line) => line.trim()).filter(Boolean).map((line) => {
    const [value, ...description] = line.split(" - ");
    return description.length ? { [name]: value.trim(), description: description.join(" - ").trim() } : { [name]: value };
  });
}

/** A question's fields; `read()` is the question as the server takes it. */
function questionForm({ kind, instructions, options }) {
  const select = make("select", { "aria-label": words.kind }, ...Object.entries(words.kinds).map(([value, text]) => make("option", { value, selected: value === kind }, text)));
  const asked = make("input", { value: instructions, required: true });
  const listed = make("textarea", { rows: 4, spellcheck: "false" });
  listed.value = options;
  const listing = make("label", {}, words.listing, listed);
  const show = () => {
    listing.hidden = select.value === "predicate";
    listed.required = !listing.hidden;
  };
  select.addEventListener("change", show);
  show();
  const form = make("fieldset", {}, make("legend", {}, words.question), make("p", { class: "row" }, select,
    make("button", { type: "button", class: "quiet", onclick: () => form.remove() }, words.remove)),
  make("label", {}, words.asked, asked), listing);
  form.read = () => {
    const question = { type: select.value, instructions: asked.value };
    if (select.value === "choice") question.choices = lines(listed.value, "value");
    if (select.value === "score") question.levels = lines(listed.value, "label");
    return question;
  };
  return form;
}

function bar(text, p) {
  return make("tr", {}, make("th", { scope: "row" }, text), make("td", {}, make("meter", { min: 0, max: 1, value: p, "aria-label": text })), make("td", {}, percent(p)));
}

function answerOf(question, answer) {
  const title = make("h2", {}, question.instructions);
  if (answer.type === "refusal") {
    return make("section", {}, title, make("p", { class: "notice" }, words.refused(percent(answer.x_label_mass))));
  }
  const rows = answer.type === "predicate"
    ? [[words.isTrue, answer.probability], [words.isFalse, 1 - answer.probability]]
    : answer.probabilities.map((row) => [String(row.label ?? row.value), row.probability]);
  const result = answer.type === "choice" ? words.chosen(answer.choice, percent(answer.confidence))
    : answer.type === "score" ? words.scored(answer.score.toLocaleString(undefined, { maximumFractionDigits: 2 }), rows.length - 1, percent(answer.confidence)) : percent(answer.probability);
  return make("section", {}, title, make("p", {}, result), make("table", { class: "answer" }, make("tbody", {}, ...rows.map((row) => bar(...row)))));
}

async function decide(event) {
  event.preventDefault();
  const questions = [...byId("questions").children].map((form) => form.read());
  const body = { model: byId("model").value, input: byId("text").value, questions };
  if (byId("orders").checked) body.x_orders = MOST_ORDERS;
  byId("ask").disabled = true;
  byId("status").textContent = words.deciding;
  try {
    const began = performance.now();
    const { answers, usage } = await json("/v1/decisions", { method: "POST", body: JSON.stringify(body) });
    byId("answers").replaceChildren(...answers.map((answer, i) => answerOf(questions[i], answer)));
    byId("status").textContent = words.took(number(usage.input_tokens), Math.round(performance.now() - began));
  } catch (error) {
    byId("answers").replaceChildren();
    byId("status").textContent = error.message;
  }
  byId("ask").disabled = false;
}

async function begin() {
  byId("text").value = words.text;
  byId("questions").append(...words.examples.map(questionForm));
  byId("add").addEventListener("click", () => byId("questions").append(questionForm({ kind: "predicate", instructions: "", options: "" })));
  byId("decide").addEventListener("submit", decide);
  try {
    const { data } = await json("/v1/models");
    byId("model").append(...data.map(({ id }) => make("option", { value: id }, id)));
  } catch (error) {
    byId("status").textContent = error.message;
  }
  document.body.dataset.ready = "";
}

begin();
