// The conversation on the page. A long one is there in part: its turns stand in groups, and a group that is far from
// what is seen is an empty box of its height. Knows no conversation: `draw(turn)` makes the row of a turn.

const GROUP = 8; // turns
const WHOLE = 200; // turns up to which all are drawn, so that the browser's own search finds them
const NEAR = 1500; // pixels above and below what is seen in which turns are drawn
const SLICE = 12; // milliseconds of a frame for drawing
const GUESS = 120; // pixels of a turn before any was measured
const END = 80; // pixels from the end within which one reads the end

export class Transcript {
  constructor(element, draw) {
    Object.assign(this, { element, draw });
    this.groups = []; // {box, turns, drawn}
    this.byId = new Map(); // turn's id -> group
    this.byBox = new Map();
    this.due = new Set(); // groups to draw
    this.frame = 0;
    this.height = GUESS;
    this.observer = new IntersectionObserver((entries) => this.#look(entries), { root: element, rootMargin: `${NEAR}px 0px` });
  }

  /** Shows these turns, from the end; or with the turn `id` where it is asked for, `top` pixels under the upper edge. */
  show(turns, { id = null, top = null } = {}) {
    this.observer.disconnect();
    this.due.clear();
    this.groups = [];
    this.byId.clear();
    this.byBox.clear();
    for (let at = 0; at < turns.length; at += GROUP) this.#add(turns.slice(at, at + GROUP));
    const isWhole = turns.length <= WHOLE;
    for (const group of this.groups) {
      if (isWhole) this.due.add(group);
      else this.#leave(group, this.height * group.turns.length);
    }
    this.element.replaceChildren(...this.groups.map(({ box }) => box));
    const first = this.byId.get(id) ?? this.groups.at(-1);
    if (first) this.#drawAround(first, id);
    if (this.byId.has(id)) {
      this.row(id).scrollIntoView({ block: "center" });
      if (top !== null) this.element.scrollTop += this.top(id) - top;
    } else this.toEnd();
    if (!isWhole) for (const { box } of this.groups) this.observer.observe(box);
    this.#begin();
  }

  /** The element of a turn, drawn if it was not; null where it is none of these. */
  row(id) {
    const group = this.byId.get(id);
    if (group && !group.drawn) this.#fill(group);
    return this.element.querySelector(`[data-turn="${CSS.escape(id)}"]`);
  }

  /** Pixels from the upper edge to a turn; null where it is not shown. */
  top(id) {
    const row = this.row(id);
    return row && row.getBoundingClientRect().top - this.element.getBoundingClientRect().top;
  }

  /** Takes away the row of a turn and all that follow it. */
  cut(id) {
    const row = this.row(id);
    if (!row) return;
    const group = row.closest(".group");
    while (group.nextSibling) group.nextSibling.remove();
    const whole = row.closest(".pair") ?? row;
    while (whole.nextSibling) whole.nextSibling.remove();
    whole.remove();
    if (!group.childElementCount) group.remove();
  }

  /** Puts an element behind all others. It stays there until `show`. */
  append(row) {
    let last = this.element.lastElementChild;
    if (!last) this.element.append(last = group());
    const known = this.byBox.get(last);
    if (known && !known.drawn) this.#fill(known);
    if (known) this.observer.unobserve(last);
    last.append(row);
    this.toEnd();
  }

  /** Gives the focus to the message before (-1) or after (1) the one that has it, else to the last. Whether there is one. */
  step(by) {
    const rows = [...this.element.querySelectorAll(".turn")];
    const at = rows.indexOf(document.activeElement.closest(".turn"));
    const next = at < 0 ? (by < 0 ? rows.at(-1) : null) : rows[at + by];
    next?.focus();
    return Boolean(next);
  }

  /** The first message that is seen, and how far under the upper edge: {id, top}. */
  get seen() {
    const edge = this.element.getBoundingClientRect().top;
    const row = [...this.element.querySelectorAll(".turn")].find((one) => one.getBoundingClientRect().bottom > edge);
    return row ? { id: row.dataset.turn, top: row.getBoundingClientRect().top - edge } : {};
  }

  get isAtEnd() {
    return this.element.scrollHeight - this.element.scrollTop - this.element.clientHeight < END;
  }

  toEnd() {
    this.element.scrollTop = this.element.scrollHeight;
  }

  #add(turns) {
    const made = { box: group(), turns, drawn: false };
    this.groups.push(made);
    this.byBox.set(made.box, made);
    for (const { id } of turns) this.byId.set(id, made);
  }

  #fill(one) {
    this.due.delete(one);
    one.drawn = true;
    one.box.replaceChildren(...one.turns.map(this.draw));
    one.box.style.height = "";
  }

  #leave(one, height) {
    one.drawn = false;
    one.box.replaceChildren();
    one.box.style.height = `${height}px`;
  }

  /** Draws the group of the turn `id`, or the last one, and what is seen above and below that turn at once, and somewhat more:
   * browsers keep the place only of what is scrolled, and only while no empty box is seen. */
  #drawAround(first, id) {
    const at = this.groups.indexOf(first);
    this.#fill(first);
    const box = first.box.getBoundingClientRect();
    const row = (this.row(id) ?? first.box.lastElementChild).getBoundingClientRect();
    for (const [step, beside] of [[-1, row.top - box.top], [1, box.bottom - row.bottom]]) {
      for (let next = at + step, height = beside; this.groups[next] && height < 2 * this.element.clientHeight; next += step) {
        this.#fill(this.groups[next]);
        height += this.groups[next].box.offsetHeight;
      }
    }
    this.height = box.height / first.turns.length || GUESS;
  }

  /** Groups have come near or gone far. What someone opened or writes in stays. */
  #look(entries) {
    for (const { target, isIntersecting, boundingClientRect } of entries) {
      const one = this.byBox.get(target);
      if (!one) continue;
      if (!isIntersecting) {
        this.due.delete(one);
        if (one.drawn && !target.querySelector("form, details[open], :focus")) this.#leave(one, boundingClientRect.height);
      } else if (!one.drawn) this.due.add(one);
    }
    this.#begin();
  }

  #begin() {
    if (this.due.size && !this.frame) this.frame = requestAnimationFrame(() => this.#drawDue());
  }

  /** As many as fit into a slice of a frame, those that are nearest to what is seen first. */
  #drawDue() {
    this.frame = 0;
    const end = performance.now() + SLICE;
    const middle = this.element.scrollTop + this.element.clientHeight / 2;
    const far = new Map([...this.due].map((one) => [one, Math.abs(one.box.offsetTop + one.box.offsetHeight / 2 - middle)]));
    for (const one of [...far.keys()].sort((a, b) => far.get(a) - far.get(b))) {
      this.#fill(one);
      if (performance.now() > end) break;
    }
    this.#begin();
  }
}

function group() {
  const box = document.createElement("div");
  box.className = "group";
  return box;
}
