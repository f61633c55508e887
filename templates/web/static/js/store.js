// Where conversations are kept: this browser's IndexedDB (history.js has copies on the server). What is in their files lies apart, and is
// read when a conversation is opened.

const OLD = "llamasrv:talk:"; // names in localStorage, where earlier versions kept them

const talks = new Map(); // id -> data, without what is in its files
const written = new Set(); // files that need not be written again
let database = null; // null: they last as long as the page
let others = null; // tabs
let note = () => {}; // is called with what was kept or deleted here

const done = (request) => new Promise((resolve, reject) => {
  request.onsuccess = () => resolve(request.result);
  request.onerror = () => reject(request.error);
});

const ended = (transaction) => new Promise((resolve, reject) => {
  transaction.oncomplete = resolve;
  transaction.onerror = transaction.onabort = () => reject(transaction.error);
});

const filesOf = (id) => IDBKeyRange.bound(`${id}/`, `${id}/\uffff`);
const filesIn = (data) => Object.values(data.turns).flatMap((turn) => turn.files ?? []);

/** Reads what is kept; `changed` is called when another tab has written. False where this browser keeps nothing. */
export async function openStore(changed) {
  try {
    const request = indexedDB.open("llamasrv", 1);
    request.onupgradeneeded = () => ["talks", "files"].forEach((name) => request.result.createObjectStore(name));
    database = await done(request);
    for (const data of await done(database.transaction("talks").objectStore("talks").getAll())) talks.set(data.id, data);
    others = new BroadcastChannel("llamasrv:talks");
    others.onmessage = async ({ data: id }) => {
      const data = await done(database.transaction("talks").objectStore("talks").get(id));
      if (data) talks.set(id, data);
      else talks.delete(id);
      changed();
    };
  } catch {
    database = null;
  }
  return database !== null;
}

/** Those that an earlier version kept, as it wrote them. They are gone from its place once `take` has kept each. */
export async function takeOld(take) {
  for (const name of Object.keys(localStorage).filter((name) => name.startsWith(OLD))) {
    try {
      if (await take(JSON.parse(localStorage.getItem(name)))) localStorage.removeItem(name);
    } catch { /* not ours */ }
  }
}

/** `noted(id, isGone)` is called for each conversation that is kept or deleted, but for what is done `quietly`. */
export function follow(noted) {
  note = noted;
}

export const has = (id) => talks.has(id);

/** All that are kept, the latest first, without what is in their files. */
export const stored = () => [...talks.values()].sort((a, b) => b.changed - a.changed);

/** One of them with its files. */
export async function load(id) {
  const data = structuredClone(talks.get(id));
  const files = filesIn(data);
  if (!database || !files.length) return data;
  const range = filesOf(id);
  const store = database.transaction("files").objectStore("files");
  const [names, contents] = await Promise.all([done(store.getAllKeys(range)), done(store.getAll(range))]);
  const found = new Map(names.map((name, i) => [name, contents[i]]));
  for (const file of files) {
    file.url = found.get(`${id}/${file.id}`) ?? "";
    written.add(`${id}/${file.id}`);
  }
  return data;
}

/** Whether it is kept now. */
export async function save(talk, { quietly = false } = {}) {
  const data = JSON.parse(JSON.stringify(talk));
  const contents = filesIn(data).map((file) => [`${talk.id}/${file.id}`, file.url]).filter(([name]) => !written.has(name));
  if (database) for (const file of filesIn(data)) delete file.url;
  talks.set(talk.id, data);
  if (!quietly) note(talk.id, false);
  if (!database) return false;
  try {
    const transaction = database.transaction(["talks", "files"], "readwrite");
    transaction.objectStore("talks").put(data, talk.id);
    for (const [name, url] of contents) transaction.objectStore("files").put(url, name);
    await ended(transaction);
    contents.forEach(([name]) => written.add(name));
    others.postMessage(talk.id);
    return true;
  } catch {
    return false;
  }
}

export async function forget(id, { quietly = false } = {}) {
  talks.delete(id);
  if (!quietly) note(id, true);
  for (const name of written) if (name.startsWith(`${id}/`)) written.delete(name);
  if (!database) return;
  const transaction = database.transaction(["talks", "files"], "readwrite");
  transaction.objectStore("talks").delete(id);
  transaction.objectStore("files").delete(filesOf(id));
  await ended(transaction);
  others.postMessage(id);
}
