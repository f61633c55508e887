"""Infill: joins the text before and after a gap into one prompt, with the model's own marks.

    [repository] [file name, extra text] ... [file] [prefix] before typed [suffix] after [middle]

Marks that a model lacks are left out; without the last three it cannot fill in at all. What is far from the place goes
first where there is no room: extra texts, then the beginning of what is before and the end of what is after.
"""

from __future__ import annotations

from llamasrv.domain.request import InfillPrompt
from llamasrv.engine.base.interface import Vocabulary
from llamasrv.errors import Unsupported

CHARS_A_TOKEN = 8  # no more of a text is read than could fit
SNIPPET = "\n\n--- snippet ---\n\n"  # between extra texts, for models without a mark for files


def encode_infill(vocab: Vocabulary, prompt: InfillPrompt, context: int) -> list[int]:
    if vocab.fim_pre is None or vocab.fim_suf is None or vocab.fim_mid is None:
        raise Unsupported("This model cannot fill in the middle: its vocabulary lacks the tokens.", param="prompt")
    room = context - max(8, min(context // 4, 512))  # the rest is the answer's
    start = [vocab.bos] if vocab.add_bos and vocab.bos is not None else []
    typed = _tokens(vocab, prompt.typed[-room * CHARS_A_TOKEN :])[-room // 4 :]
    room -= len(start) + len(typed) + 3
    before = _tokens(vocab, prompt.before[-room * CHARS_A_TOKEN :])
    after = _tokens(vocab, prompt.after[: room * CHARS_A_TOKEN])
    # Three quarters for what is before, more where what is after is short.
    most_before = max(room - len(after), room * 3 // 4)
    before = before[-most_before:] if most_before else []
    after = after[: room - len(before)]
    extra = _extra(vocab, prompt, room - len(before) - len(after))
    return [*extra, *start, vocab.fim_pre, *before, *typed, vocab.fim_suf, *after, vocab.fim_mid]


def _tokens(vocab: Vocabulary, text: str) -> list[int]:
    return vocab.tokenize(text, parse_special=False)


def _extra(vocab: Vocabulary, prompt: InfillPrompt, room: int) -> list[int]:
    """The extra texts as tokens, cut at the front to fit: the nearest ones come last."""
    if not prompt.extra or room <= 0:
        return []
    out: list[int] = []
    if vocab.fim_rep is not None:
        out += [vocab.fim_rep, *_tokens(vocab, "project\n")]
    for name, text in prompt.extra:
        if vocab.fim_sep is not None:
            out += [vocab.fim_sep, *_tokens(vocab, f"{name}\n")]
        else:
            out += _tokens(vocab, SNIPPET)
        out += _tokens(vocab, text[-room * CHARS_A_TOKEN :])
    if vocab.fim_sep is not None:
        out += [vocab.fim_sep, *_tokens(vocab, "file\n")]
    return out[-room:]
