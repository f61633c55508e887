// What is sent along with a message: images, sounds, documents. Picked, dropped or pasted; shown small until it is sent.
// A file is {id, name, type, size, url}, the last a data: URL.

import { icon } from "./icons.js";
import { make } from "./server.js";
import { words } from "./words.js";

const LONGEST = 2048; // pixels of a side; larger images are made smaller here: models look at no more
const LARGE = 1_000_000; // bytes of an image that is written anew, smaller
const MOST = 24 * 2 ** 20; // bytes of a sound, or of a PDF
const MOST_TEXT = 4 * 2 ** 20;
const LONG_PASTE = 4000; // characters of pasted text that go along as a file, so that the field stays readable
const TEXTS = /^text\/|json|xml|yaml|toml|javascript|x-sh|x-python|sql/;
const TEXT_NAMES = /\.(txt|md|csv|tsv|log|json|ya?ml|toml|ini|xml|html?|css|js|ts|py|rs|go|c|h|cpp|java|sh|sql|tex|diff|patch)$/i;

const asUrl = (blob) => new Promise((resolve, reject) => {
  const reader = new FileReader();
  reader.addEventListener("load", () => resolve(reader.result));
  reader.addEventListener("error", () => reject(new Error(words.unreadable)));
  reader.readAsDataURL(blob);
});

async function imageUrl(file) {
  const bitmap = await createImageBitmap(file, { imageOrientation: "from-image" }).catch(() => null);
  if (!bitmap) return asUrl(file); // the server may know more forms, or say what is wrong
  const scale = Math.min(1, LONGEST / Math.max(bitmap.width, bitmap.height));
  if (scale === 1 && file.size <= LARGE) return asUrl(file);
  const canvas = make("canvas", { width: Math.max(1, Math.round(bitmap.width * scale)), height: Math.max(1, Math.round(bitmap.height * scale)) });
  const pen = canvas.getContext("2d");
  pen.fillStyle = "#fff"; // under what is transparent
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  bitmap.close();
  return canvas.toDataURL("image/jpeg", 0.92);
}

const dataOf = (url) => url.slice(url.indexOf(",") + 1);

/** A file of a data: URL. */
export function asFile(url, name = "") {
  const data = dataOf(url);
  const padding = /=*$/.exec(data)[0].length;
  return {
    id: crypto.randomUUID?.() ?? String(Math.random()).slice(2), name, url,
    type: /^data:([^;,]*)/.exec(url)?.[1] ?? "", size: Math.floor(data.length * 3 / 4) - padding,
  };
}

export const isImage = ({ type }) => type.startsWith("image/");
export const isSound = ({ type }) => type.startsWith("audio/") || type.startsWith("video/");
export const isDocument = (file) => !isImage(file) && !isSound(file);

export const sizeOf = (bytes) => bytes < 1000 ? `${bytes} B` : bytes < 1e6 ? `${Math.round(bytes / 1e3)} kB` : `${(bytes / 1e6).toFixed(1)} MB`;

/** How an attachment looks: a thumbnail, a player, or a chip with name and size. */
export function picture(file) {
  if (isSound(file)) return make("audio", { src: file.url, controls: true, "aria-label": file.name || words.soundSent });
  if (isImage(file)) return make("img", { src: file.url, alt: file.name || words.imageSent, class: "picture" });
  return make("a", { class: "chip", href: file.url, download: file.name || words.document },
    make("span", { class: "chip-kind", "aria-hidden": "true" }, (/\.(\w{1,4})$/.exec(file.name)?.[1] ?? "file").toUpperCase()),
    make("span", { class: "chip-name" }, file.name || words.document), make("small", {}, sizeOf(file.size)));
}

/** A message with its files in OpenAI's words: documents come before the text that asks about them. */
export function parts(text, files) {
  if (!files.length) return text;
  const documents = files.filter(isDocument);
  const media = files.filter((file) => !isDocument(file));
  return [
    ...documents.map(({ name, url }) => ({ type: "file", file: { filename: name || "document", file_data: url } })),
    ...(text ? [{ type: "text", text }] : []),
    ...media.map((file) => isSound(file)
      ? { type: "input_audio", input_audio: { data: dataOf(file.url), format: /\/(x-)?wav$/.test(file.type) ? "wav" : "mp3" } }
      : { type: "image_url", image_url: { url: file.url } }),
  ];
}

export class Attachments {
  /** `list` shows them; `tell` is called with what is wrong. */
  constructor(list, tell) {
    this.files = [];
    this.takes = { vision: false, audio: false };
    this.list = list;
    this.tell = tell;
  }

  /** What the model takes; `accept` of a file field. */
  use(modalities) {
    this.takes = { vision: Boolean(modalities?.vision), audio: Boolean(modalities?.audio) };
    return [
      ...(this.takes.vision ? ["image/*"] : []), ...(this.takes.audio ? ["audio/*"] : []), "text/*", "application/pdf", ".md", ".json", ".csv",
    ].join(",");
  }

  async add(files) {
    for (const file of files) {
      try {
        const taken = await this.take(file);
        this.set([...this.files, taken]);
      } catch (error) {
        this.tell(error.message);
      }
    }
  }

  async take(file) {
    const name = file.name || "the file";
    if (file.type.startsWith("image/")) {
      if (!this.takes.vision) throw new Error(words.noImages);
      return asFile(await imageUrl(file), file.name);
    }
    const sound = file.type.startsWith("audio/") || file.type === "video/webm";
    const pdf = file.type === "application/pdf" || /\.pdf$/i.test(name);
    if (sound && !this.takes.audio) throw new Error(words.noSounds);
    if (!sound && !pdf && !TEXTS.test(file.type) && !TEXT_NAMES.test(name)) {
      throw new Error(words.unknownKind(name));
    }
    if (!file.size) throw new Error(words.empty(name));
    if (file.size > (sound || pdf ? MOST : MOST_TEXT)) throw new Error(words.tooLarge(name));
    return asFile(await asUrl(file), file.name);
  }

  set(files) {
    this.files = files;
    this.list.replaceChildren(...files.map((file) => make("span", { class: "attachment" },
      picture(file),
      make("button", { type: "button", class: "quiet round", "aria-label": words.remove(file.name), onclick: () => this.set(this.files.filter(({ id }) => id !== file.id)) }, icon("close")),
    )));
  }
}

/** Files that are dropped on or pasted into `area` go to `attachments`. */
export function watch(area, field, attachments) {
  const hasFiles = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
  area.addEventListener("dragover", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    area.classList.add("dropping");
  });
  area.addEventListener("dragleave", (event) => {
    if (!area.contains(event.relatedTarget)) area.classList.remove("dropping");
  });
  area.addEventListener("drop", (event) => {
    area.classList.remove("dropping");
    if (!hasFiles(event)) return;
    event.preventDefault();
    attachments.add(event.dataTransfer.files);
  });
  field.addEventListener("paste", (event) => {
    const { files } = event.clipboardData ?? {};
    const text = event.clipboardData?.getData("text/plain") ?? "";
    if (!files?.length && text.length < LONG_PASTE) return;
    event.preventDefault();
    const number = attachments.files.length + 1;
    attachments.add(files.length ? files : [new File([text], words.pasted(number), { type: "text/plain" })]);
  });
}
