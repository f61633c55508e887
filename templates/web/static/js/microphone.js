// Spoken messages: a recording becomes text in the message's field, by a served model that listens.

import { status } from "./page.js";
import { byId, call } from "./server.js";
import { words } from "./words.js";

const RATE = 16_000; // samples a second, of one channel: what models that listen are made for
const LONGEST = 300_000; // milliseconds of a recording

export class Microphone {
  /** `model()`: who listens; `write(text)` puts a text into the message's field. */
  constructor({ model, write }) {
    Object.assign(this, { model, write, recorder: null });
    this.button = byId("microphone");
  }

  /** Begins to record, or ends it. */
  toggle() {
    if (this.recorder) this.recorder.stop();
    else this.#record();
  }

  async #record() {
    try {
      const stream = await navigator.mediaDevices.getUserMedia({ audio: true });
      const recorder = this.recorder = new MediaRecorder(stream);
      const parts = [];
      recorder.addEventListener("dataavailable", ({ data }) => parts.push(data));
      recorder.addEventListener("stop", () => {
        for (const track of stream.getTracks()) track.stop();
        clearTimeout(limit);
        this.#show(false);
        this.#transcribe(new Blob(parts, { type: recorder.mimeType }));
      });
      const limit = setTimeout(() => recorder.stop(), LONGEST);
      recorder.start();
      this.#show(true);
      status(words.recording);
    } catch (error) {
      this.#show(false);
      status(error.name === "NotAllowedError" ? words.noMicrophone : error.message);
    }
  }

  #show(on) {
    if (!on) this.recorder = null;
    this.button.setAttribute("aria-pressed", String(on));
    this.button.setAttribute("aria-label", on ? words.stopRecording : words.record);
    this.button.title = on ? words.stopRecording : words.record;
  }

  async #transcribe(recording) {
    status(words.transcribing);
    this.button.disabled = true;
    try {
      const form = new FormData();
      form.append("model", this.model());
      form.append("response_format", "json");
      form.append("file", await asWav(recording), "recording.wav");
      const { text } = await (await call("/v1/audio/transcriptions", { method: "POST", body: form })).json();
      status("");
      this.write(text.trim());
    } catch (error) {
      status(error.message);
    }
    this.button.disabled = false;
  }
}

/** The recording as 16-bit PCM, which every server reads, whatever the browser records. */
async function asWav(recording) {
  const context = new OfflineAudioContext(1, 1, RATE);
  const { length, channels } = await decode(context, recording);
  const data = new DataView(new ArrayBuffer(44 + 2 * length));
  const text = (at, letters) => [...letters].forEach((letter, i) => data.setUint8(at + i, letter.charCodeAt(0)));
  text(0, "RIFF");
  data.setUint32(4, 36 + 2 * length, true);
  text(8, "WAVEfmt ");
  data.setUint32(16, 16, true);
  data.setUint16(20, 1, true); // PCM
  data.setUint16(22, 1, true); // channels
  data.setUint32(24, RATE, true);
  data.setUint32(28, 2 * RATE, true);
  data.setUint16(32, 2, true);
  data.setUint16(34, 16, true);
  text(36, "data");
  data.setUint32(40, 2 * length, true);
  for (let i = 0; i < length; i++) {
    let sum = 0;
    for (const channel of channels) sum += channel[i];
    data.setInt16(44 + 2 * i, 32_767 * Math.max(-1, Math.min(1, sum / channels.length)), true);
  }
  return new Blob([data], { type: "audio/wav" });
}

async function decode(context, recording) {
  const decoded = await context.decodeAudioData(await recording.arrayBuffer()); // at the context's rate
  return { length: decoded.length, channels: Array.from({ length: decoded.numberOfChannels }, (_, i) => decoded.getChannelData(i)) };
}
