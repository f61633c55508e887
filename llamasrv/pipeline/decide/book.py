"""Prepares requests for decisions: images and documents are read, questions become tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Union
from weakref import WeakKeyDictionary

from llamasrv.concurrency import off_hub
from llamasrv.domain.decide import DecideRequest
from llamasrv.domain.request import ChatPrompt, GenerateRequest, TextPart
from llamasrv.domain.sequence_spec import CacheKey
from llamasrv.errors import ContextTooLong
from llamasrv.pipeline.decide.labels import LabelMaker
from llamasrv.pipeline.decide.questions import (
    Thought,
    conversation,
    cut,
    has_media,
    new_mark,
    orders,
    texts_of,
    written,
)
from llamasrv.pipeline.decide.work import DecisionWork, ShownQuestion
from llamasrv.pipeline.loaded_model import LoadedModel
from llamasrv.pipeline.media import RequestMedia
from llamasrv.pipeline.sizes import are_long, is_long, refuse_endless

ENDS_KEPT = 16  # max prompt ends per model whose tokenised labels are cached
FEW = 8  # max questions to prepare on the hub

Prepared = tuple[list[int], list[ShownQuestion], Union[Thought, None]]


class DecisionBook:
    """One per process. Caches tokenised labels by model and prompt end."""

    def __init__(self) -> None:
        self._makers: WeakKeyDictionary[LoadedModel, dict[str, LabelMaker]] = WeakKeyDictionary()

    def submit(
        self,
        served: LoadedModel,
        request: DecideRequest,
        read: Callable[[GenerateRequest], tuple[GenerateRequest, RequestMedia, CacheKey]],
    ) -> DecisionWork:
        """`read` reads the media and documents of a request. Raises InvalidRequest."""
        mark = new_mark()
        seeing = {n: question for n, question in enumerate(request.questions) if has_media(question)}
        prompts = [conversation(request, mark)]
        prompts += [conversation(request, mark, question.instructions) for question in seeing.values()]
        carried = GenerateRequest(
            tuple(prompts), request.model, max_tokens=0, owner=request.owner, cache_salt=request.cache_salt
        )
        carried, media, cache_key = read(carried)
        first, *others = (prompt for prompt in carried.prompts if isinstance(prompt, ChatPrompt))
        prepare = partial(self._prepare, served, request, mark, first, dict(zip(seeing, others)), media)
        few = len(request.questions) * request.orders <= FEW and not is_long(first)
        short = few and not are_long(text for question in request.questions for text in texts_of(question))
        head, asked, thought = prepare() if short else off_hub(prepare)
        return DecisionWork(served, request, head, asked, cache_key, thought)

    def _prepare(
        self,
        served: LoadedModel,
        request: DecideRequest,
        mark: str,
        first: ChatPrompt,
        seeing: dict[int, ChatPrompt],
        media: RequestMedia,
    ) -> Prepared:
        """The tokens of the input and those of each question. `seeing`: the prompts of questions with images."""
        thinks = request.thinking > 0
        base = cut(served, first, mark, media, thinks=thinks)
        maker = self._maker(served, base.end)
        asked: list[ShownQuestion] = []
        for number, question in enumerate(request.questions):
            labels = maker.make(question.kind, len(question.options))
            for order in orders(question, request.orders):
                if number in seeing:
                    text = written(question, labels.texts, order, above=False)
                    found = cut(served, _ending_in(seeing[number], text), mark, media, thinks=thinks)
                    asked.append(ShownQuestion(number, order, labels, found.tail, found.spans))
                    continue
                text = written(question, labels.texts, order)
                try:
                    refuse_endless(text, served.vocab, served.context)
                except ContextTooLong as error:
                    raise error.but(param=question.param) from None
                own = served.vocab.tokenize(text, parse_special=False)
                longest = len(base.head) + len(own) + len(base.tail)
                if longest > served.context:  # before the others are tokenised
                    raise ContextTooLong(num_prompt=longest, context=served.context, param=question.param)
                asked.append(ShownQuestion(number, order, labels, [*own, *base.tail], base.spans))
        return base.head, asked, base.thought

    def _maker(self, served: LoadedModel, end: str) -> LabelMaker:
        makers = self._makers.setdefault(served, {})
        maker = makers.get(end)
        if maker is None:
            if len(makers) >= ENDS_KEPT:
                makers.clear()
            maker = makers[end] = LabelMaker(served.vocab, end)
        return maker


def _ending_in(prompt: ChatPrompt, text: str) -> ChatPrompt:
    """The prompt of a question with an image, including the instructions for the answer."""
    *turns, last = prompt.messages
    assert isinstance(last.content, tuple)
    return replace(prompt, messages=(*turns, replace(last, content=(*last.content, TextPart(text)))))
