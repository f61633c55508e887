"""A question as text, and a conversation split at the place of its questions.

The input is rendered and tokenised once, with a mark after it; each question then takes the mark's place, as tokens of
its own. So all questions of a request begin with the same tokens, and none can change how the input is read.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from llamasrv.chat.formats import ChatFormat
from llamasrv.chat.media import media_of
from llamasrv.domain.decide import DecideRequest, Question
from llamasrv.domain.media import MediaSpan
from llamasrv.domain.request import ChatPrompt, MediaPart, Message, Part, TextPart
from llamasrv.errors import InvalidRequest
from llamasrv.pipeline.loaded_model import LoadedModel
from llamasrv.pipeline.media import RequestMedia

NO_THINKING = {"enable_thinking": False, "thinking": False}
THINKING = {"enable_thinking": True, "thinking": True}


def new_mark() -> str:
    """A text that no client can write."""
    return f"question{secrets.token_hex(12)}"


def conversation(request: DecideRequest, mark: str, question: tuple[Part, ...] = ()) -> ChatPrompt:
    """The input with the mark in the user's last turn, followed by the parts of a question."""
    turns = list(request.input)
    content: str | tuple[Part, ...] | None = ""
    if turns and turns[-1].role == "user":
        content = turns.pop().content
    parts = (TextPart(content),) if isinstance(content, str) else content or ()
    texts = [part.text for part in parts if isinstance(part, TextPart)]
    last: str | tuple[Part, ...]
    if len(texts) == len(parts) and not question:
        last = "\n".join([text for text in texts if text])
        last = f"{last}\n\n{mark}" if last else mark
    else:
        last = (*parts, TextPart(f"\n{mark}" if parts else mark), *question)
    return ChatPrompt((*turns, Message("user", last)), template_kwargs=THINKING if request.thinking else NO_THINKING)


def written(question: Question, labels: Sequence[str], order: Sequence[int], *, above: bool = True) -> str:
    """The text of a question: what is asked, a line per option, and how to answer. `order`: the options in the order
    shown. `above`: include the instructions."""
    lines = ["\n".join(part.text for part in question.instructions if isinstance(part, TextPart)).strip()]
    if not above or not lines[0]:
        lines = []
    options = [question.options[i] for i in order]
    if question.kind == "predicate":
        lines += [f"{label}: {_line(o.description)}" for label, o in zip(labels, options) if o.description.strip()]
        lines.append(f"Answer with {labels[0]} or {labels[1]} only.")
        return "\n".join(lines)
    names = {option.value for option in options if option.value is not True and option.value is not False}
    both = {"true", "false"} & names if len(names) < len(options) else set()
    for label, option in zip(labels, options):
        name, said = _name(option.value, both), _line(option.description)
        lines.append(f"{label}: {name} - {said}" if name and said else f"{label}: {name or said}")
    what = "letters" if len(labels[0]) > 1 else "letter"
    lines.append(f"Answer with the {'number' if question.kind == 'score' else what} only.")
    return "\n".join(lines)


def _line(text: str) -> str:
    return " ".join(text.split())


def _name(value: str | bool, both: set[str]) -> str:
    """A text that looks like a boolean is quoted."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f'"{value}"' if value in both else _line(value)


class Thought(NamedTuple):
    """How a thought ends: `mark` is what the model writes, `closing` the text from there to the answer."""

    mark: str
    closing: str


class Cut(NamedTuple):
    """A conversation's tokens before and after its mark. `end` is the text that stands before the answer. With a
    `thought`, the tokens end where that begins."""

    head: list[int]
    spans: tuple[MediaSpan, ...]  # of both
    tail: list[int]
    end: str
    thought: Thought | None = None


def cut(served: LoadedModel, prompt: ChatPrompt, mark: str, media: RequestMedia, *, thinks: bool = False) -> Cut:
    """`thinks`: have the model think before it answers. Raises InvalidRequest if it cannot, or if the template hides
    the user's text."""
    rendered, profile = served.rendered(prompt)
    segments, parts = list(rendered.segments), media_of(prompt)
    for at in range(len(segments) - 1, -1, -1):
        segment = segments[at]
        if isinstance(segment, int) or mark not in segment[0]:
            continue
        before, _, after = segment[0].rpartition(mark)
        tokens, spans = served.tokens_of([*segments[:at], *_text(before, segment[1])], parts, media)
        num_head = len(tokens)
        rest = [*_text(after, segment[1]), *segments[at + 1 :]]
        start, thought = profile.format.content_start, None
        if thinks:
            opening, thought = _thought(profile.format, rendered.text)
            rest += _text(opening, True)
        elif start and not rendered.text.rstrip().endswith(start.strip()):
            rest.append((start, True))
        tokens, more = served.tokens_of(rest, parts, media, tokens)
        last = rest[-1] if rest else None
        end = last[0] if isinstance(last, tuple) and last[1] else ""
        end = thought.closing if thought is not None else end
        return Cut(tokens[:num_head], (*spans, *more), tokens[num_head:], end, thought)
    raise InvalidRequest("This model's chat template does not show the last message of the user.", param="input")


def _thought(format: ChatFormat, prompt: str) -> tuple[str, Thought]:
    """What opens a thought after the prompt, and how it ends."""
    marks, start = format.reasoning, format.content_start
    is_open = marks is not None and marks.is_open(prompt)
    if marks is None or marks.assumed or not marks.end.strip() or not (is_open or marks.start):
        raise InvalidRequest("This model does not think before it answers.", param="x_thinking_tokens")
    follows = "" if marks.end.rstrip().endswith(start.strip()) else start
    return "" if is_open else marks.start, Thought(marks.end.strip(), marks.end + follows)


def _text(text: str, trusted: bool) -> list[tuple[str, bool]]:
    return [(text, trusted)] if text else []


def has_media(question: Question) -> bool:
    return any(isinstance(part, MediaPart) for part in question.instructions)


def texts_of(question: Question) -> Iterator[str]:
    """All that the client wrote."""
    yield from (part.text for part in question.instructions if isinstance(part, TextPart))
    for option in question.options:
        yield option.description
        if isinstance(option.value, str):
            yield option.value


def orders(question: Question, most: int) -> list[tuple[int, ...]]:
    """The orders in which the options are shown. Several are evenly spread rotations of one canonical order, so that
    the client's order does not affect their mean."""
    count = len(question.options)
    if most == 1 or question.kind != "choice":
        return [tuple(range(count))]
    options = question.options
    start = sorted(range(count), key=lambda i: (type(options[i].value).__name__, options[i].value))
    turns = min(most, count)
    return [tuple(start[at:] + start[:at]) for at in (turn * count // turns for turn in range(turns))]
