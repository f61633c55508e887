"""What a client says in a Realtime session: its sound until it becomes an item, and the turns that are found in it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from llamasrv.concurrency import compute_off_hub
from llamasrv.errors import InvalidRequest
from llamasrv.media.telephony import TelephoneDecoder
from llamasrv.media.voice_activity import NoiseFloor, VoiceActivity, VoiceLevel
from llamasrv.protocols.common.wire import new_id
from llamasrv.protocols.openai.realtime.items import G711_GROWS, MS_BYTES, pcm_of
from llamasrv.protocols.openai.realtime.response import Send
from llamasrv.protocols.openai.realtime.session import JSON, LAWS, RATE

MOST_BUFFER = 32 << 20  # max bytes of sound not committed yet: eleven minutes
LEAST_COMMIT_MS = 100
LONG = 1 << 18  # approximate bytes from which an event is parsed off the hub
SLACK_MS = 200  # kept before a turn, besides its padding

Said = Callable[[bytes, str, bool], None]
"""Takes what was said, the id of its item, and whether it is to be answered."""


def decoder_of(format: JSON) -> TelephoneDecoder | None:
    law = LAWS.get(format["type"])
    return None if law is None else TelephoneDecoder(law)


class Hearing:
    """Methods that take a client's event raise InvalidRequest."""

    def __init__(self, send: Send, *, on_start: Callable[[], None], on_said: Said) -> None:
        """`on_start` is called when a turn begins that interrupts the answer."""
        self._send, self._on_start, self._on_said = send, on_start, on_said
        self._sound = bytearray()  # not committed yet
        self._sound_ms = 0  # position of the buffer's start, in ms since the session began
        self._heard_from = 0  # position in ms from which voice activity is measured
        self._settings: JSON = {"format": {"type": ""}, "turn_detection": None}  # `audio.input`
        self._decoder: TelephoneDecoder | None = None  # decodes the input unless it is PCM
        self._activity: VoiceActivity | None = None
        self._floor, self._voice = NoiseFloor(), VoiceLevel()
        self._turn: str | None = None  # id of the item being spoken

    @property
    def size(self) -> int:
        """Bytes held."""
        return len(self._sound)

    def set(self, settings: JSON) -> None:
        """Apply `audio.input` of the session."""
        before, self._settings = self._settings, settings
        if settings["format"] != before["format"]:
            self._decoder = decoder_of(settings["format"])
        if settings["turn_detection"] != before["turn_detection"]:
            self._listen_anew()

    def append(self, event: JSON) -> None:
        text = event.get("audio")
        grows, decode = (1, None) if self._decoder is None else (G711_GROWS, self._decoder.decode)
        is_long = type(text) is str and len(text) * grows > LONG
        read = partial(pcm_of, text, "audio", decode)
        pcm = compute_off_hub(read) if is_long else read()
        if len(self._sound) + len(pcm) > MOST_BUFFER:
            raise InvalidRequest(
                f"The buffer holds at most {MOST_BUFFER} bytes. Commit or clear it.", param="audio", code="buffer_full"
            )
        self._sound += pcm
        if self._activity is None:
            return
        feed = partial(self._activity.feed, pcm)
        for edge in compute_off_hub(feed) if is_long else feed():
            if edge.is_start:
                self._begin_turn(self._heard_from + edge.ms)
            else:
                self._end_turn(self._heard_from + edge.ms)
        turns = self._settings["turn_detection"]
        if self._turn is None and turns is not None:
            self._drop(len(self._sound) - int(turns["prefix_padding_ms"] + SLACK_MS) * MS_BYTES)

    def commit(self, event: JSON) -> None:
        if len(self._sound) < LEAST_COMMIT_MS * MS_BYTES:
            raise InvalidRequest(
                "Error committing input audio buffer: buffer too small. Expected at least "
                f"{LEAST_COMMIT_MS}ms of audio, but buffer only has {len(self._sound) / MS_BYTES:.2f}ms of audio.",
                code="input_audio_buffer_commit_empty",
            )
        said, id = bytes(self._sound), self._turn or new_id("item_")
        self._listen_anew()
        self._on_said(said, id, False)

    def clear(self, event: JSON) -> None:
        self._listen_anew()
        self._send("input_audio_buffer.cleared")

    def _listen_anew(self) -> None:
        turns, self._turn, self._activity = self._settings["turn_detection"], None, None
        if turns is not None:
            silence_ms = int(turns["silence_duration_ms"])
            self._activity = VoiceActivity(
                RATE,
                threshold=turns["threshold"],
                silence_ms=silence_ms,
                floor=self._floor,
                voice=self._voice,
            )
        self._sound_ms += len(self._sound) // MS_BYTES
        self._sound.clear()
        self._heard_from = self._sound_ms

    def _drop(self, size: int) -> None:
        size -= size % MS_BYTES
        if size > 0:
            del self._sound[:size]
            self._sound_ms += size // MS_BYTES

    def _begin_turn(self, ms: int) -> None:
        turns = self._settings["turn_detection"]
        start = max(self._sound_ms, ms - int(turns["prefix_padding_ms"]))
        self._drop((start - self._sound_ms) * MS_BYTES)
        self._turn = new_id("item_")
        self._send("input_audio_buffer.speech_started", audio_start_ms=self._sound_ms, item_id=self._turn)
        if turns["interrupt_response"]:
            self._on_start()

    def _end_turn(self, ms: int) -> None:
        turns, id = self._settings["turn_detection"], self._turn
        if id is None or turns is None:
            return
        self._turn = None
        size = max(0, ms - self._sound_ms) * MS_BYTES
        said = bytes(self._sound[:size])
        self._drop(size)
        self._send("input_audio_buffer.speech_stopped", audio_end_ms=ms, item_id=id)
        self._on_said(said, id, turns["create_response"])
