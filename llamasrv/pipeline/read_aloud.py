"""A text that is read aloud, because a model that only speaks was asked for an answer.

Some clients ask a speech model for an answer to have the prompt spoken. To its reader this is a run like any other,
with sound as its events.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from llamasrv.domain.events import Event, Failed, Finished, FinishReason, Spoken
from llamasrv.domain.params import SamplingParams
from llamasrv.domain.request import ChatPrompt, GenerateRequest, Message, TextPart
from llamasrv.domain.speech import MAX_CHARS, SpeechRequest
from llamasrv.errors import InvalidRequest, LlamasrvError, Unsupported
from llamasrv.pipeline.loaded_model import LoadedModel
from llamasrv.pipeline.run import Run, RunInfo, RunState
from llamasrv.pipeline.speech import SpeechWork

_DRAWN = ("temperature", "top_k", "top_p", "seed")  # the sampling parameters that a speech model uses


def text_to_read(request: GenerateRequest) -> SpeechRequest:
    """What is to be said, and how. Raises InvalidRequest."""
    speech, (prompt, *more) = request.speech, request.prompts
    assert speech is not None
    if more or not isinstance(prompt, ChatPrompt):
        raise Unsupported("A model that only speaks takes one text.", param="prompt")
    others = set(request.sampling) - set(_DRAWN)
    for param, is_there in (
        ("tools", bool(prompt.offered)),
        ("content", request.content is not None),
        ("stop", bool(request.stop)),
        ("logprobs", request.logprobs is not None),
        ("thinking_budget", request.thinking_budget is not None),
        (f"sampling.{min(others)}" if others else "", bool(others)),
    ):
        if is_there:
            raise Unsupported("The model only speaks: it reads the text aloud, and writes nothing.", param=param)
    text = "\n".join(_text(message) for message in prompt.messages if message.role != "system")
    if not any(map(str.isalnum, text)):
        raise InvalidRequest("There is nothing to say: the text has no letter and no digit.", param="prompt")
    if len(text) > MAX_CHARS:
        raise InvalidRequest(
            f"The text is too long to be said: it has {len(text)} characters, at most {MAX_CHARS}.", param="prompt"
        )
    instructions = "\n".join(_text(message) for message in prompt.messages if message.role == "system")
    drawn = {name: value for name, value in request.sampling.items() if value is not None}
    return replace(
        speech,
        text=text,
        instructions=instructions or None,
        model=request.model,
        max_frames=request.max_tokens,
        owner=request.owner,
        **drawn,
    )


def _text(message: Message) -> str:
    parts: Sequence[object] = (
        (TextPart(message.content),) if isinstance(message.content, str) else message.content or ()
    )
    texts = [part.text for part in parts if isinstance(part, TextPart)]
    if message.role not in ("user", "system") or len(texts) < len(parts) or message.tool_calls:
        raise Unsupported("The model only speaks: it takes texts of the user, and nothing else.", param="prompt")
    return "\n".join(texts)


class ReadAloud(Run):
    """A run whose only work is the speech of a text."""

    def __init__(self, speech: SpeechWork, served: LoadedModel, on_start: Callable[[RunInfo], None] | None) -> None:
        self._speech = speech
        self.state, self.cancelled = RunState.RUNNING, False
        self.info = RunInfo(
            model=served.model.name,
            fingerprint=served.fingerprint,
            params=SamplingParams(),
            prompts=(),
            choices_each=1,
            left_out=0,
            vocab=served.vocab,
        )
        if on_start is not None:
            on_start(self.info)

    def events(self, timeout: float | None = None) -> list[Event]:
        speech = self._speech
        out: list[Event] = [Spoken(0, piece) for piece in speech.pieces(timeout)]
        if speech.done and not self.done:
            self.state = RunState.DONE
            out += self._end()
        return out

    def _end(self) -> list[Event]:
        speech = self._speech
        usage = speech.usage._replace(audio_tokens=speech.usage.completion_tokens)
        if self.cancelled:
            return [Finished(0, FinishReason.CANCELLED, usage=usage), usage]
        if speech.error is not None:
            return [Failed(0, speech.error), usage]
        return [Finished(0, speech.reason or FinishReason.STOP, usage=usage), usage]

    def cancel(self, error: LlamasrvError | None = None) -> None:
        if not self.done:
            self.cancelled = True
            self._speech.cancel()

    def stop(self) -> None:
        self.cancel()

    def end_thinking(self) -> bool:
        return False

    def gather(self) -> None:
        """Sound comes as it is made."""
