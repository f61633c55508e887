"""Where chat and engine meet: a GenerateRequest goes in, domain events come out; the same for every protocol.

Finds the model and starts the kind of run that the request asks for. Whatever is wrong with a request is raised by
`submit`, before anything runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from llamasrv.concurrency import off_hub
from llamasrv.domain.decide import DecideRequest
from llamasrv.domain.events import Usage
from llamasrv.domain.request import ClassifyRequest, EmbedRequest, GenerateRequest, Message, RerankRequest
from llamasrv.domain.sequence_spec import CacheKey, Urgency
from llamasrv.domain.speech import SpeechRequest
from llamasrv.errors import LlamasrvError, Unsupported
from llamasrv.models.model import Model
from llamasrv.models.registry import Registry
from llamasrv.pipeline.cache_report import CacheBook
from llamasrv.pipeline.compacted_run import CompactedRun, in_background, write_ahead
from llamasrv.pipeline.compaction import LongConversation, SummaryBook
from llamasrv.pipeline.decide.book import DecisionBook
from llamasrv.pipeline.decide.work import DecisionWork
from llamasrv.pipeline.documents import DocumentReader
from llamasrv.pipeline.embed import ClassificationWork, EmbeddingWork, RankingWork, check_media
from llamasrv.pipeline.loaded_model import LoadedModel
from llamasrv.pipeline.loaded_models import LoadedModels
from llamasrv.pipeline.media import NO_MEDIA, MediaOptions, MediaReader, RequestMedia
from llamasrv.pipeline.read_aloud import ReadAloud, text_to_read
from llamasrv.pipeline.run import Run, RunInfo
from llamasrv.pipeline.search_run import SearchRun
from llamasrv.pipeline.sizes import has_parts
from llamasrv.pipeline.speech import AnswerVoice, SpeechWork, VoiceBook
from llamasrv.pipeline.spoken_run import SpokenRun
from llamasrv.pipeline.submitter import RequestStarter, Submitter, edited_request, is_chat

_Owned = GenerateRequest | EmbedRequest | RerankRequest | ClassifyRequest | DecideRequest | SpeechRequest


class Pipeline:
    """One per process. Safe to use from many greenlets or threads."""

    def __init__(self, registry: Registry, media: MediaOptions | None = None) -> None:
        self.registry = registry
        self.media = MediaReader(media)
        options = self.media.options
        self.voices = VoiceBook(options.voices, self.media.decoder, uploads=options.voice_uploads)
        self.documents = DocumentReader(self.media.decoder, self.media.options.sources, self.media.held.check)
        self.cache_book = CacheBook()
        self.decision_book = DecisionBook()
        self.summaries = SummaryBook()
        self.in_background = in_background
        self.permit: Callable[[str, Model], None] = lambda owner, model: None  # raises if the owner may not use it
        self.models = LoadedModels(registry)
        self._submitter = Submitter(
            registry,
            self.models,
            media=self.media,
            documents=self.documents,
            cache_book=self.cache_book,
            summaries=self.summaries,
            fall_behind=lambda talk: self._write_ahead(talk, None, Urgency.URGENT),
        )
        self.open, self.peek, self.lease = self.models.open, self.models.peek, self.models.lease
        if registry.loader is not None:
            registry.loader.on_load.append(self._warm_decoder)

    @contextmanager
    def _lease_for(self, request: _Owned, *, keep_alive: float | None = None) -> Iterator[LoadedModel]:
        """As `lease`, for the model of a request whose owner may use it."""
        self.permit(request.owner, self.registry.for_request(request.model))
        with self.lease(request.model, keep_alive=keep_alive) as served:
            yield served

    def _warm_decoder(self, model: Model) -> None:
        """Spare the first image the start of a process."""
        if model.details.projector is not None:
            self.media.decoder.warm()

    def count(self, request: GenerateRequest, owner: str = "") -> int:
        """Number of tokens of all prompts that `submit` would take from that owner."""
        return sum(map(len, self.encoded(request, owner)))

    def encoded(self, request: GenerateRequest, owner: str = "") -> list[list[int]]:
        """The tokens of the prompts that `submit` would take from that owner, including prompts that are too long.
        Those of images and sounds are negative."""
        with self._lease_for(request._replace(owner=owner)) as served:
            request = served.model.settings.chat_defaults.of(request)
            media = NO_MEDIA
            if has_parts(request.prompts):
                request, media = self._submitter.with_media(
                    self._submitter.readable(request, served), served, to_count=True
                )
            request, _ = edited_request(request, served, media)
            choice, prompts = request.tool_choice, request.prompts
            return off_hub(lambda: [served.encode(prompt, choice, media) for prompt in prompts])

    def submit(
        self,
        request: GenerateRequest,
        *,
        on_start: Callable[[RunInfo], None] | None = None,
        explain: Callable[[LlamasrvError], LlamasrvError] | None = None,
    ) -> Run:
        """Start a generation. Raises whatever can be known to be wrong with it. If the model is not loaded, its loading
        begins, and errors show as the run's first event. `on_start` is called when the engine has taken it, before
        there are events; `explain` rewords an error for the caller."""
        if request.speech is not None and request.speech.may_read and self._only_speaks(request.model):
            return self._read_aloud(request, on_start, explain)
        if request.speech is not None:
            voice = self._voice_for(request.speech, request.owner, explain)
            try:
                text = self.submit(request._replace(speech=None), on_start=on_start, explain=explain)
            except BaseException:
                voice.close()
                raise
            return SpokenRun(text, voice)
        model = self.registry.for_request(request.model)
        self.permit(request.owner, model)
        model.touch(request.keep_alive)
        if request.edits is not None and request.edits.compact is not None and is_chat(request):
            starter_of = partial(RequestStarter, self._submitter, model)
            return CompactedRun(
                request, starter_of, book=self.summaries, ahead=self._look_ahead, on_start=on_start, explain=explain
            )
        if request.searches:
            return SearchRun(
                request, partial(RequestStarter, self._submitter, model), on_start=on_start, explain=explain
            )
        return Run(RequestStarter(self._submitter, model, request), on_start=on_start, explain=explain)

    def _look_ahead(self, talk: LongConversation, turn: Message, usage: Usage) -> None:
        """After an answer: if the conversation nears its limit, write its summary and compute the shortened prompt
        while the engine is idle, or beside others if it is urgent."""
        if talk.is_near(turn, usage):
            self._write_ahead(talk, turn, talk.urgency(turn, usage))

    def _write_ahead(self, talk: LongConversation, turn: Message | None, urgency: Urgency) -> None:
        self.in_background(partial(write_ahead, talk, turn, self.summaries, self.submit, urgency))

    def submit_embed(self, request: EmbedRequest) -> EmbeddingWork:
        with self._lease_for(request, keep_alive=request.keep_alive) as served:
            check_media(served, request)
            return EmbeddingWork(served, request, self.media.read(request.prompts, served.projector))

    def submit_decide(self, request: DecideRequest) -> DecisionWork:
        """Start to answer questions. Raises whatever can be known to be wrong with it."""
        with self._lease_for(request, keep_alive=request.keep_alive) as served:

            def read(carried: GenerateRequest) -> tuple[GenerateRequest, RequestMedia, CacheKey]:
                carried = served.model.settings.chat_defaults.of(carried)
                media = NO_MEDIA
                if has_parts(carried.prompts):
                    carried, media = self._submitter.with_media(self._submitter.readable(carried, served), served)
                return carried, media, self._submitter.cache_key(served.model, carried)

            return self.decision_book.submit(served, request, read)

    def submit_rerank(self, request: RerankRequest) -> RankingWork:
        with self._lease_for(request, keep_alive=request.keep_alive) as served:
            return RankingWork(served, request)

    def submit_speech(self, request: SpeechRequest) -> SpeechWork:
        """Start to speak. Raises whatever can be known to be wrong with it."""
        with self._lease_for(request) as served:
            return SpeechWork(served, request, self.voices)

    def _only_speaks(self, name: str | None) -> bool:
        return "speech" in self.registry.for_request(name).details.capabilities

    def _read_aloud(
        self,
        request: GenerateRequest,
        on_start: Callable[[RunInfo], None] | None,
        explain: Callable[[LlamasrvError], LlamasrvError] | None,
    ) -> Run:
        """Waits for the model to be loaded. Errors about the speech name fields that begin with `speech`."""
        try:
            speech = text_to_read(request)
            try:
                with self._lease_for(speech) as served:
                    return ReadAloud(SpeechWork(served, speech, self.voices), served, on_start)
            except LlamasrvError as error:
                field = error.param
                raise error.but(param="prompt" if field == "input" else field and f"speech.{field}") from None
        except LlamasrvError as error:
            raise (error if explain is None else explain(error)) from None

    def _voice_for(
        self, speech: SpeechRequest, owner: str, explain: Callable[[LlamasrvError], LlamasrvError] | None
    ) -> AnswerVoice:
        """The voice of an answer; waits for its model to be loaded. Fields in errors begin with `speech`."""
        try:
            name = speech.model
            if name is None:
                speaking = self.speaking()
                if not speaking:
                    raise Unsupported(
                        "No model here speaks: answers are text only. The operator can serve a speech model "
                        "(Qwen3-TTS, Pocket TTS) beside this one."
                    )
                name = speaking[0].name
            self.permit(owner, self.registry.for_request(name))
            with self.lease(name) as served:
                return AnswerVoice(served, speech, self.voices)
        except LlamasrvError as error:
            own = error.but(param="speech" if error.param is None else f"speech.{error.param}")
            raise (own if explain is None else explain(own)) from None

    def speaking(self) -> list[Model]:
        """The models that speak."""
        return [model for model in self.registry.models if "speech" in model.details.capabilities]

    def voice_names(self, name: str | None) -> list[str]:
        """The voices that anyone may ask for. Loads nothing: the model's own are known while it is loaded. Raises
        ModelNotFound."""
        speaking = self.speaking()
        if name is None and speaking:
            name = speaking[0].name
        served = self.peek(name) if name is not None else None
        backend = None if served is None else served.engine.speaker.backend
        return self.voices.names(() if backend is None else backend.speakers)

    def submit_classify(self, request: ClassifyRequest) -> ClassificationWork:
        """Start a classification. Raises whatever can be known to be wrong with it."""
        with self._lease_for(request, keep_alive=request.keep_alive) as served:
            return ClassificationWork(served, request)
