// What is sent along with a message: images, sounds, texts. Picked, dropped or pasted; shown small until it is sent.

import { make } from "./server.js";

const LONGEST = 2048; // pixels of a side; larger images are made smaller here: models look at no more
const LARGE = 1_000_000; // bytes of an image that is written anew, smaller
const MOST = 24 * 2 ** 20; // bytes of a sound
const MOST_TEXT = 2 ** 20;
const TEXTS = /^text\/|json|xml|yaml|toml|javascript|x-sh|x-python|sql/;
const TEXT_NAMES = /\.(txt|md|csv|tsv|log|json|ya?ml|toml|ini|xml|html?|css|js|ts|py|rs|go|c|h|cpp|java|sh|sql|tex|diff|patch)$/i;

const asUrl = (blob) => new Promise((resolve, reject) => {
  const reader = new FileReader();
  reader.addEventListener("load", () => resolve(reader.result));
  reader.addEventListener("error", () => reject(new Error("The file cannot be read.")));
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

export const isSound = (url) => url.startsWith("data:audio/") || url.startsWith("data:video/");

/** How an attachment looks: a thumbnail, or a player. */
export function picture(url, alt) {
  return isSound(url) ? make("audio", { src: url, controls: true, "aria-label": alt }) : make("img", { src: url, alt, class: "picture" });
}

/** Attachments as parts of a message, in OpenAI's words. */
export function parts(urls) {
  return urls.map((url) => isSound(url)
    ? { type: "input_audio", input_audio: { data: url.slice(url.indexOf(",") + 1), format: /^data:\w+\/(x-)?wav/.test(url) ? "wav" : "mp3" } }
    : { type: "image_url", image_url: { url } });
}

export class Attachments {
  /** `list` shows them; `tell` is called with what is wrong, `write` with texts that belong into the message. */
  constructor(list, { tell, write }) {
    this.urls = [];
    this.takes = { vision: false, audio: false };
    this.list = list;
    this.tell = tell;
    this.write = write;
  }

  /** What the model takes; `accept` of a file field. */
  use(modalities) {
    this.takes = { vision: Boolean(modalities?.vision), audio: Boolean(modalities?.audio) };
    return [...(this.takes.vision ? ["image/*"] : []), ...(this.takes.audio ? ["audio/*"] : []), "text/*", ".md", ".json", ".csv"].join(",");
  }

  async add(files) {
    for (const file of files) {
      try {
        await this.take(file);
      } catch (error) {
        this.tell(error.message);
      }
    }
  }

  async take(file) {
    const name = file.name || "the file";
    if (file.type.startsWith("image/")) {
      if (!this.takes.vision) throw new Error("This model takes no images.");
      this.set([...this.urls, await imageUrl(file)]);
    } else if (file.type.startsWith("audio/") || file.type === "video/webm") {
      if (!this.takes.audio) throw new Error("This model takes no sounds.");
      if (file.size > MOST) throw new Error(`${name} is too large.`);
      this.set([...this.urls, await asUrl(file)]);
    } else if (TEXTS.test(file.type) || TEXT_NAMES.test(file.name ?? "")) {
      if (file.size > MOST_TEXT) throw new Error(`${name} is too large.`);
      const text = await file.text();
      const fence = "`".repeat(Math.max(3, ...[...text.matchAll(/`+/g)].map((run) => run[0].length + 1)));
      this.write(`${file.name}\n${fence}\n${text.replace(/\n?$/, "\n")}${fence}\n`);
    } else throw new Error(`${name} is neither an image nor a sound nor a text.`);
  }

  set(urls) {
    this.urls = urls;
    this.list.replaceChildren(...urls.map((url, i) => make("span", { class: "attachment" },
      picture(url, isSound(url) ? "Sound to send" : "Image to send"),
      make("button", { type: "button", class: "quiet", "aria-label": "Remove this attachment", onclick: () => this.set(urls.filter((_, k) => k !== i)) }, "×"),
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
    if (!event.clipboardData?.files.length) return;
    event.preventDefault();
    attachments.add(event.clipboardData.files);
  });
}
