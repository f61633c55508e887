"""Continues a long conversation from a summary of its older turns, written before it is needed.

    below AHEAD of the limit    nothing
    from AHEAD on               after an answer, the summary is written while the engine is idle, like a batch, from the
                                cached prefix; then the shortened conversation is computed, also while idle, and again
                                after each answer; beside other requests once it is urgent, as the limit or the end of
                                the context is near (engine/step/scheduler.py)
    beyond the limit            the request is answered from the shortened conversation, once that is computed up to the
                                last answer, or all of it but a short one; until then uncompacted, while it fits the
                                context, and computed for the next one meanwhile; if no summary was begun, it is written
                                first

A summary is keyed by the messages that it replaces, so all requests of a conversation use the same one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from threading import Lock

from llamasrv.domain.context_edits import Compact
from llamasrv.domain.events import Usage
from llamasrv.domain.request import ChatPrompt, GenerateRequest, Message, ToolChoice
from llamasrv.domain.sequence_spec import Urgency
from llamasrv.domain.summary import MOST_WORDS, SUMMARISE, head_of, last_request, length_of, summarised, whole_cut
from llamasrv.pipeline.context_edits import WINDOW_SHARE
from llamasrv.pipeline.fingerprint import conversation_keys

AHEAD = 0.7
"""Share of the limit from which on a summary is written while the engine is idle."""
SHORT_ANSWER = 0.2
"""Max length of the last answer, as a share of the new messages, for both to be computed in one request, which happens
without a pause between turns. After a longer answer, that turn took 1.7 times as long as the one before."""
FAR_BEYOND = 2.0
"""Factor of the limit from which on the last answer may be longer, and work ahead may slow other requests down."""
WRITING_SHARE = 0.9
"""Share of the context to which a conversation may grow while its summary is being written, or what follows from it
computed; further if its answer fits whole."""
MOST_SUMMARIES = 512
MOST_BYTES = 16 << 20  # of all summaries
MOST_JOBS = 16  # max idle-time jobs at once
JOB_SECONDS = 300.0  # time limit of one
SUMMARY_TOKENS = 2000  # max
SUMMARY_SHARE = 0.2  # max share of the limit
GAIN = 0.2
"""Min share of the limit that a summary must replace; otherwise each turn would write one and lose its prefix."""


@dataclass(slots=True)
class Summary:
    """`text` is empty while it is being written, or if that failed."""

    text: str = ""
    usage: Usage = Usage()
    is_written: bool = False
    is_used: bool = False  # an answer was computed from it
    has_job: bool = False  # one writes it, or computes the prompt that follows from it
    urgency: Urgency = Urgency.NONE  # of its job
    hurry: Callable[[Urgency], None] | None = None  # makes what the job has under way urgent
    latest: tuple[LongConversation, Message | None] | None = None  # what the job computes next: a conversation, and its
    # answer if there is one already
    num_computed: int = 0  # messages of the conversation up to which the prompt that follows from it was computed
    most_words: int = 0  # max characters of the user's own words to quote; 0: not decided yet


class SummaryBook:
    """The latest summaries, by the keys of the messages that they replace. One per process; any thread."""

    def __init__(self, *, most: int = MOST_SUMMARIES, most_bytes: int = MOST_BYTES, most_jobs: int = MOST_JOBS) -> None:
        self._most, self._most_bytes, self._most_jobs = most, most_bytes, most_jobs
        self._by_key: OrderedDict[bytes, Summary] = OrderedDict()
        self._num_bytes = self.num_jobs = 0
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._by_key)

    def find(self, key: bytes) -> Summary | None:
        with self._lock:
            found = self._by_key.get(key)
            if found is not None:
                self._by_key.move_to_end(key)
            return found

    def join(self, key: bytes, talk: LongConversation, turn: Message | None, urgency: Urgency = Urgency.NONE) -> bool:
        """True: the caller is the job of this summary now; its first `next_turn` is this one. False: the summary has a
        job, which gets the turn; or it could not be written, or there are MOST_JOBS."""
        with self._lock:
            summary = self._by_key.get(key)
            if summary is not None and summary.has_job:
                summary.latest = talk, turn
                summary.urgency = max(summary.urgency, urgency)
                if summary.urgency and summary.hurry is not None:
                    summary.hurry(summary.urgency)
                return False
            if self.num_jobs >= self._most_jobs or (summary is not None and not summary.text):
                return False
            if summary is None:
                summary = self._by_key[key] = Summary()
            summary.has_job, summary.latest, summary.urgency = True, (talk, turn), urgency
            self.num_jobs += 1
            self._shrink()
            return True

    def put(self, key: bytes, text: str, usage: Usage) -> None:
        """An empty text records a failure, so that it is not tried again."""
        with self._lock:
            summary = self._by_key.setdefault(key, Summary())
            summary.text, summary.usage, summary.is_written = text, usage, True
            self._num_bytes += len(text.encode("utf-8", "surrogatepass"))
            self._shrink()

    def started(self, key: bytes, hurry: Callable[[Urgency], None]) -> None:
        """The job of this summary has started something; `hurry` makes it urgent."""
        with self._lock:
            summary = self._by_key.get(key)
            if summary is not None:
                summary.hurry = hurry
                if summary.urgency:
                    hurry(summary.urgency)

    def computed(self, key: bytes, num_messages: int) -> None:
        """The prompt that follows from this summary was computed, up to there."""
        with self._lock:
            summary = self._by_key.get(key)
            if summary is not None:
                summary.num_computed = num_messages

    def next_turn(self, key: bytes) -> tuple[LongConversation, Message | None] | None:
        """How far the conversation has come: its latest turn if the job has not had it. None: the job is done."""
        with self._lock:
            summary = self._by_key.get(key)
            if summary is None:
                return None
            latest, summary.latest = summary.latest, None
            summary.has_job = latest is not None
            return latest

    def end_job(self, key: bytes) -> None:
        """Its job has ended, done or not. A summary that is not written is dropped: another request may try again."""
        with self._lock:
            self.num_jobs -= 1
            summary = self._by_key.get(key)
            if summary is None:
                return
            summary.has_job, summary.latest, summary.hurry = False, None, None
            if not summary.is_written:
                self._drop(key)

    def _shrink(self) -> None:
        while len(self._by_key) > 1 and (len(self._by_key) > self._most or self._num_bytes > self._most_bytes):
            self._drop(next(iter(self._by_key)))

    def _drop(self, key: bytes) -> None:
        summary = self._by_key.pop(key, None)
        if summary is not None:
            self._num_bytes -= len(summary.text.encode("utf-8", "surrogatepass"))


class LongConversation:
    """One conversation and its summaries."""

    def __init__(
        self,
        request: GenerateRequest,
        compact: Compact,
        book: SummaryBook,
        *,
        sent: Sequence[Message],
        model: str,
        context: int,
    ) -> None:
        """`sent`: the messages as the client sent them, before other edits; summaries are keyed by these."""
        prompt = request.prompts[0]
        assert isinstance(prompt, ChatPrompt)
        self.request = request
        self.prompt = prompt
        self.messages = prompt.messages
        self.limit = max(1, min(compact.max_tokens, int(WINDOW_SHARE * context)))
        self._order = compact.order or SUMMARISE
        self._book = book
        self._context = context
        most = request.max_tokens or context
        self._room = max(int(WRITING_SHARE * context), context - most)
        self._summary_tokens = max(16, min(SUMMARY_TOKENS, context // 8, int(SUMMARY_SHARE * self.limit)))
        about = (request.owner, model, request.cache_salt, repr(request.adapters), self._order)
        self._per_token = 3.0  # characters per token, until a prompt has been counted
        self.keys = conversation_keys(sent, *about)  # keys[n - 1]: of its first n messages
        self.is_behind = False  # beyond its limit, and answered as it is: its summary's prompt is not computed yet
        self.look()

    def look(self) -> None:
        """Look up the summaries, by the number of messages that they replace."""
        self.used, self.ready, self.writing = 0, 0, 0
        for number in range(len(self.keys), head_of(self.messages), -1):
            summary = self._book.find(self.keys[number - 1])
            if summary is None or whole_cut(self.messages, number) < number:
                continue
            if not summary.is_written:
                self.writing = self.writing or number
            elif summary.text and summary.is_used:
                self.used = number
                break
            elif summary.text and not self.ready:
                self.ready = number

    @property
    def has_job(self) -> bool:
        """Whether its next summary is being written, or the prompt that follows from it computed."""
        number = self.ready or self.writing
        return bool(number) and self.summary(number).has_job

    def summary(self, number: int) -> Summary:
        found = self._book.find(self.keys[number - 1])
        return found or Summary()

    def use(self, number: int) -> None:
        self.used, self.ready = number, 0
        self.summary(number).is_used = True

    def shortened(self, number: int, *more: Message) -> ChatPrompt:
        """The prompt with a summary for its first messages (0: none)."""
        messages: Sequence[Message] = self.messages
        if number:
            summary = self.summary(number)
            # Decided once, so that all requests have the same text and share its prefix.
            summary.most_words = summary.most_words or max(1, int(MOST_WORDS * self.limit * self._per_token))
            messages = summarised(messages, number, summary.text, summary.most_words)
        return replace(self.prompt, messages=(*messages, *more))

    def order(self, number: int) -> GenerateRequest:
        """The request for a summary of the first messages. Its prompt extends the one in the cache."""
        request = self.request
        messages = self.shortened(self.used).messages
        end = len(messages) - (len(self.messages) - number)
        prompt = replace(
            self.prompt,
            messages=(*messages[:end], Message("user", self._order)),
            template_kwargs={**self.prompt.template_kwargs, "enable_thinking": False, "thinking": False},
            add_generation_prompt=True,
            continue_final_message=False,
        )
        return GenerateRequest(
            (prompt,),
            model=request.model,
            max_tokens=self._summary_tokens,
            cache_salt=request.cache_salt,
            timeout=request.timeout,
            owner=request.owner,
            tool_choice=ToolChoice("none", shown=True),
            keep_alive=request.keep_alive,
            adapters=request.adapters,
            shorten=True,
        )

    def plan(self, count: Callable[[ChatPrompt], int]) -> int:
        """Number of first messages to summarise before the request can be answered; 0 if it can be answered now, from
        `shortened(used)`."""
        before = self.shortened(self.used)
        length = count(before)
        self._per_token = sum(map(length_of, before.messages)) / max(1, length)
        if length <= self.limit:
            return 0
        begun = self.has_job or bool(self.ready) and self.summary(self.ready).num_computed > 0
        if length <= self._room and begun and not self._is_computed(length):
            self.is_behind = bool(self.ready)
            return 0  # neither wait for a second summary nor compute what the job computes; JOB_SECONDS bound it
        if self.ready:
            self.use(self.ready)
            return 0
        number = last_request(self.messages)
        if not self._is_worth_it(number):
            return 0
        return 0 if self.summary(number).is_written else number  # written, but unusable: it failed

    def is_near(self, turn: Message, usage: Usage) -> bool:
        """After an answer: whether a summary should be written by now."""
        size = usage.prompt_tokens + usage.completion_tokens
        return size >= AHEAD * self.limit or size + self._growth(turn) > self.limit

    def urgency(self, turn: Message, usage: Usage) -> Urgency:
        """After an answer: urgent if the next request probably passes the limit; pressing if this is far beyond it, or
        the context might end before a summary is written at the pace of this conversation."""
        size, growth = usage.prompt_tokens + usage.completion_tokens, self._growth(turn)
        num_turns = self._summary_tokens / max(1, usage.completion_tokens)  # meanwhile, if there is no pause
        if size > FAR_BEYOND * self.limit or size + num_turns * growth > self._room:
            return Urgency.PRESSING
        return Urgency.URGENT if size + growth > self.limit else Urgency.NONE

    def _is_computed(self, length: int) -> bool:
        """Whether the prompt that follows from the next summary was computed up to the last answer, or all of it but a
        short one."""
        answered, computed = self._num_answered(), self.summary(self.ready).num_computed if self.ready else 0
        if not self.ready or computed >= answered:
            return bool(self.ready)
        missing, new = (
            sum(map(length_of, part)) for part in (self.messages[computed:answered], self.messages[answered:])
        )
        return computed == answered - 1 and (missing <= SHORT_ANSWER * new or length > FAR_BEYOND * self.limit)

    def _num_answered(self) -> int:
        """Number of messages up to the last answer."""
        at = len(self.messages)
        while at > 0 and self.messages[at - 1].role != "assistant":
            at -= 1
        return at

    def _growth(self, turn: Message) -> float:
        """Tokens that the last request and its answer added."""
        at = max(self._num_answered(), head_of(self.messages))
        return sum(map(length_of, (*self.messages[at:], turn))) / self._per_token

    def ahead(self) -> int:
        """Number of first messages to summarise while the engine is idle; 0: none."""
        if self.ready or self.writing:
            return 0
        number = whole_cut(self.messages, len(self.messages))
        return number if self._is_worth_it(number) else 0

    def _is_worth_it(self, number: int) -> bool:
        start = max(self.used, head_of(self.messages))
        return sum(map(length_of, self.messages[start:number])) > GAIN * self.limit * self._per_token
