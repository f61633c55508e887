"""A long conversation goes on from a summary of its older turns, which is written before it is needed.

    below 70 % of the limit     nothing
    from there on               when an answer has ended, the summary is written in the gaps, as batches are, behind the
                                prefix that is in the cache; then the shortened conversation is computed, also in the
                                gaps, after each answer again
    beyond the limit            the request is answered from the shortened conversation; where no summary is there yet,
                                it is written first

A summary is found by the messages that it stands for, so every request of a conversation goes on from the same one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from threading import Lock

from llamasrv.domain.context_edits import Compact
from llamasrv.domain.events import Usage
from llamasrv.domain.request import ChatPrompt, GenerateRequest, Message, ToolChoice
from llamasrv.domain.summary import MOST_WORDS, SUMMARISE, head_of, last_request, length_of, summarised, whole_cut
from llamasrv.pipeline.context_edits import WINDOW_SHARE
from llamasrv.pipeline.fingerprint import conversation_keys

AHEAD = 0.7
"""Of the limit: from here on a summary is written in the gaps."""
WAITS = 1.1
"""Of the limit: so long a conversation may become while its summary is being written."""
MOST_SUMMARIES = 512
MOST_BYTES = 16 << 20  # of all summaries
MOST_JOBS = 4  # in the gaps at once
JOB_SECONDS = 300.0
SUMMARY_TOKENS = 2000
GAIN = 0.2
"""Of the limit: what a summary must stand for at least, or each turn would write one and lose its prefix by it."""


@dataclass(slots=True)
class Summary:
    """`text` is empty while it is being written, or if that failed."""

    text: str = ""
    usage: Usage = Usage()
    is_written: bool = False
    is_used: bool = False  # an answer has gone on from it
    most_words: int = 0  # characters of the user's own beside it; 0: nobody has needed them yet


class SummaryBook:
    """The latest summaries, by the keys of the conversations that they stand for. One per process; any thread."""

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

    def begin(self, key: bytes) -> bool:
        """False if it is there, or under way."""
        with self._lock:
            if key in self._by_key:
                return False
            self._by_key[key] = Summary()
            self._shrink()
            return True

    def put(self, key: bytes, text: str, usage: Usage) -> None:
        """Without a text it has failed: nobody tries again."""
        with self._lock:
            summary = self._by_key.setdefault(key, Summary())
            summary.text, summary.usage, summary.is_written = text, usage, True
            self._num_bytes += len(text.encode("utf-8", "surrogatepass"))
            self._shrink()

    def drop(self, key: bytes) -> None:
        """It was not written after all; somebody may try again."""
        with self._lock:
            self._remove(key)

    def take_job(self) -> bool:
        with self._lock:
            if self.num_jobs >= self._most_jobs:
                return False
            self.num_jobs += 1
            return True

    def end_job(self) -> None:
        with self._lock:
            self.num_jobs -= 1

    def _shrink(self) -> None:
        while len(self._by_key) > 1 and (len(self._by_key) > self._most or self._num_bytes > self._most_bytes):
            self._remove(next(iter(self._by_key)))

    def _remove(self, key: bytes) -> None:
        summary = self._by_key.pop(key, None)
        if summary is not None:
            self._num_bytes -= len(summary.text.encode("utf-8", "surrogatepass"))


class LongConversation:
    """One conversation, and the summaries of it that there are."""

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
        """`sent`: the messages as the client sent them, before other edits: summaries are found by these."""
        prompt = request.prompts[0]
        assert isinstance(prompt, ChatPrompt)
        self.request = request
        self.prompt = prompt
        self.messages = prompt.messages
        self.limit = max(1, min(compact.max_tokens, int(WINDOW_SHARE * context)))
        self._order = compact.order or SUMMARISE
        self._book = book
        self._context = context
        about = (request.owner, model, request.cache_salt, repr(request.adapters), self._order)
        self._per_token = 3.0  # characters of a token, until a prompt has been counted
        self.keys = conversation_keys(sent, *about)  # keys[n - 1]: of its first n messages
        self.look()

    def look(self) -> None:
        """Look up which summaries there are, by how many messages they stand for."""
        self.used, self.ready, self.is_writing = 0, 0, False
        for number in range(len(self.keys), head_of(self.messages), -1):
            summary = self._book.find(self.keys[number - 1])
            if summary is None or whole_cut(self.messages, number) < number:
                continue
            if not summary.is_written:
                self.is_writing = True
            elif summary.text and summary.is_used:
                self.used = number
                break
            elif summary.text and not self.ready:
                self.ready = number

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
            # Decided once: every request has to write it alike.
            summary.most_words = summary.most_words or max(1, int(MOST_WORDS * self.limit * self._per_token))
            messages = summarised(messages, number, summary.text, summary.most_words)
        return replace(self.prompt, messages=(*messages, *more))

    def order(self, number: int) -> GenerateRequest:
        """The request for a summary of the first messages. It goes on from the prompt that is in the cache."""
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
            max_tokens=max(16, min(SUMMARY_TOKENS, self._context // 8)),
            cache_salt=request.cache_salt,
            timeout=request.timeout,
            owner=request.owner,
            tool_choice=ToolChoice("none", shown=True),
            keep_alive=request.keep_alive,
            adapters=request.adapters,
            shorten=True,
        )

    def plan(self, count: Callable[[ChatPrompt], int]) -> int:
        """How many of the first messages have to be summarised before the request can be answered; 0 if it can be now,
        from `shortened(used)`."""
        before = self.shortened(self.used)
        length = count(before)
        self._per_token = sum(map(length_of, before.messages)) / max(1, length)
        if length <= self.limit:
            return 0
        if self.ready:
            self.use(self.ready)
            return 0
        if self.is_writing and length <= WAITS * self.limit:
            return 0
        number = last_request(self.messages)
        if not self._is_worth_it(number):
            return 0
        return 0 if self.summary(number).is_written else number  # it has failed

    def ahead(self) -> int:
        """How many of the first messages a summary should be written of in the gaps; 0: none."""
        if self.ready or self.is_writing:
            return 0
        number = whole_cut(self.messages, len(self.messages))
        return number if self._is_worth_it(number) else 0

    def _is_worth_it(self, number: int) -> bool:
        start = max(self.used, head_of(self.messages))
        return sum(map(length_of, self.messages[start:number])) > GAIN * self.limit * self._per_token
