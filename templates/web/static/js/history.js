// Conversations on the server, where it keeps them and the person wants it to. This browser's copies stay, and are what
// the page works with: what changed here is sent once the server can be reached, what changed elsewhere is fetched, and
// what changed in both places is put together as branches. What is deleted here is deleted there.

import { Conversation, isSound } from "./conversation.js";
import { page } from "./page.js";
import { byId, call, json } from "./server.js";
import { follow, forget, has, load, save, stored } from "./store.js";
import { offerUndo } from "./toast.js";
import { words } from "./words.js";

const KEY = "llamasrv:history";
const PATH = "/ui/history";
const WAIT = 1_000; // milliseconds after a change
const AGAIN = 30_000; // milliseconds until the server is tried again
const DAY = 86_400_000;
const ID = /^[A-Za-z0-9-]{1,64}$/;

/** What this browser knows of the server's copies; null: the person does not want any. {key: the API key's name, era: until
 * all are deleted at once, revisions: by id, dirty and gone: ids of what the server does not know yet}. */
function state() {
  try {
    return JSON.parse(localStorage.getItem(KEY));
  } catch {
    return null;
  }
}

function change(how) {
  const now = state();
  if (!now) return;
  how(now);
  localStorage.setItem(KEY, JSON.stringify(now));
}

const without = (list, id) => list.filter((one) => one !== id);

export class History {
  /** `draw` draws the list of conversations; `show(talk)` the open one in another version; `isBusy()`: it is being worked on. */
  constructor({ draw, show, isBusy }) {
    Object.assign(this, { draw, show, isBusy });
    this.days = null; // null: this server keeps none
    this.key = "";
    this.timer = 0;
    this.syncing = false;
    follow((id, isGone) => this.#note(id, isGone));
    byId("history-on").addEventListener("change", () => this.#switch(byId("history-on").checked));
    byId("history-clear").addEventListener("click", () => this.#clear());
    addEventListener("online", () => this.#soon());
    document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && this.#soon());
  }

  /** `history`: for how many days the server keeps them; `key`: the name of the API key. */
  begin({ history, key }) {
    this.days = history ?? null;
    this.key = key ?? "";
    this.#look();
    return this.#sync();
  }

  get #isOn() {
    return this.days !== null && state()?.key === this.key;
  }

  #look(text = "") {
    byId("history").hidden = this.days === null;
    byId("history-on").checked = this.#isOn;
    byId("history-status").textContent = text;
    byId("where").textContent = this.#isOn ? words.storedOnServer(this.days) : words.storedHere;
    if (this.days !== null) byId("history-days").textContent = words.historyDays(this.days);
  }

  #switch(on) {
    if (on) localStorage.setItem(KEY, JSON.stringify({ key: this.key, era: null, revisions: {}, dirty: [], gone: [] }));
    else localStorage.removeItem(KEY);
    this.#look();
    if (on) this.#sync();
  }

  #clear() {
    const before = localStorage.getItem(KEY);
    this.#switch(false);
    offerUndo(words.historyDeleted, () => {
      if (before) localStorage.setItem(KEY, before);
      this.#look();
      this.#sync();
    }, () => call(PATH, { method: "DELETE", keepalive: true }).catch((error) => this.#look(error.message)));
  }

  #note(id, isGone) {
    if (!this.#isOn) return;
    change((now) => {
      now.dirty = without(now.dirty, id);
      now.gone = without(now.gone, id);
      if (!isGone) now.dirty.push(id);
      else if (id in now.revisions) now.gone.push(id);
      if (isGone) delete now.revisions[id];
    });
    this.#soon();
  }

  #soon(wait = WAIT) {
    clearTimeout(this.timer);
    if (this.#isOn) this.timer = setTimeout(() => this.#sync(), wait);
  }

  async #sync() {
    if (!this.#isOn || this.syncing) return;
    if (page.running) return this.#soon();
    this.syncing = true;
    try {
      const { key, era, limits, conversations } = await json(PATH);
      if (key !== this.key) return this.begin({ history: limits.days, key }); // another key is used by now
      if ((state()?.era ?? era) !== era) {
        this.#switch(false);
        return this.#look(words.historyDeletedElsewhere);
      }
      change((now) => (now.era = era));
      const gone = state()?.gone ?? [];
      for (const id of gone) {
        await call(`${PATH}/${id}`, { method: "DELETE" });
        change((now) => (now.gone = without(now.gone, id)));
      }
      const theirs = new Map(conversations.filter(({ id }) => ID.test(id) && !gone.includes(id)).map((one) => [one.id, one]));
      for (const one of theirs.values()) if (this.#isOn) await this.#take(one);
      const late = await this.#send(theirs, limits);
      this.#look(late ? words.notOnServer(late) : "");
    } catch (error) {
      this.#look(error instanceof TypeError ? words.historyLater : error.message);
      this.#soon(AGAIN);
    } finally {
      this.syncing = false;
      this.draw();
    }
  }

  /** Brings this browser's copy into line with what the server has of one conversation. */
  async #take({ id, revision, deleted }) {
    const { revisions, dirty } = state();
    const isDirty = dirty.includes(id);
    const isOpen = id === page.talk.id;
    if (revisions[id] === revision || (isOpen && this.isBusy())) return;
    if (deleted) {
      if (!(id in revisions)) return;
      change((now) => delete now.revisions[id]);
      if (isDirty || !has(id)) return;
      await forget(id, { quietly: true });
      if (isOpen) this.show(new Conversation({ settings: page.talk.settings }));
      return;
    }
    let data;
    try {
      data = await json(`${PATH}/${id}?revision=${encodeURIComponent(revision)}`);
    } catch (error) {
      if ([404, 409].includes(error.status)) return; // changed again: next time
      throw error;
    }
    if (!isSound(data) || (isOpen && this.isBusy())) return;
    let talk = new Conversation({ ...data, id });
    if (has(id) && (isDirty || !(id in revisions))) {
      const own = isOpen ? page.talk : new Conversation(await load(id));
      if (own.merge(talk)) change((now) => (now.dirty = [...without(now.dirty, id), id]));
      talk = own;
    }
    if (!await save(talk, { quietly: true })) return;
    change((now) => (now.revisions[id] = revision));
    if (isOpen) this.show(talk);
  }

  /** Sends what the server does not have. How many it does not take. */
  async #send(theirs, { days, bytes }) {
    let late = 0;
    for (const { id, changed } of stored()) {
      const now = state();
      if (!now) return 0;
      const one = theirs.get(id);
      const isDirty = now.dirty.includes(id);
      if (one && !isDirty && id in now.revisions) continue;
      if (one && !one.deleted && !(id in now.revisions)) continue; // it cannot be read
      if (!one && changed < Date.now() - days * DAY) continue; // it was there for its time
      const known = one ? now.revisions[id] : undefined;
      change((next) => (next.dirty = without(next.dirty, id)));
      const body = JSON.stringify(await load(id));
      try {
        if (new Blob([body]).size > bytes) late += 1;
        else {
          const { revision } = await json(`${PATH}/${id}${known ? `?revision=${encodeURIComponent(known)}` : ""}`, { method: "PUT", body });
          change((next) => (next.revisions[id] = revision));
        }
      } catch (error) {
        change((next) => (next.dirty = [...without(next.dirty, id), id]));
        if (error.status !== 409) throw error;
        this.#soon(3 * WAIT); // changed there meanwhile
      }
    }
    return late;
  }
}
