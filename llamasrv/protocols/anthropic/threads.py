"""Message threads: the server keeps the conversation between turns, so that a request carries only what is new.

`{"type": "create"}` keeps a turn under the id of its reply; `{"type": "continue", "previous_message_id"}` continues
there. A turn is kept as it stood on the wire. Whatever goes wrong has an `error_code` in its details at which the SDKs
send the whole conversation instead. Knows no store: earlier turns come as values.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from llamasrv.errors import InvalidRequest, NotFound
from llamasrv.protocols.common.schema import Invalid, WireField, expect

FIXED = ("system", "tools")
"""Fields that a thread is created with. Later turns may leave them out, or repeat them as they were."""


class ThreadNotFound(NotFound):
    code = "thread_not_found"
    details = {"error_code": "thread_not_found"}


class ThreadContinued(InvalidRequest):
    code = "thread_already_continued"
    details = {"error_code": "thread_already_continued"}


class ThreadChanged(InvalidRequest):
    code = "thread_fingerprint_mismatch"
    details = {"error_code": "thread_fingerprint_mismatch"}


class ThreadUnsupported(InvalidRequest):
    """This server has no store for threads."""

    code = "thread_unsupported_request"
    details = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}


class Thread(NamedTuple):
    """What `thread` asks for. `previous` None: a new thread."""

    previous: str | None = None


class ThreadField(WireField):
    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> Thread:
        return thread_of(value)


def thread_of(value: Any) -> Thread:
    expect(dict, value)
    kind, previous = value.get("type"), value.get("previous_message_id")
    if kind == "create":
        return Thread()
    if kind != "continue":
        raise Invalid("expected 'create' or 'continue'.", "type")
    expect(str, previous, "previous_message_id")
    return Thread(previous)


def previous_of(body: Mapping[str, Any]) -> str | None:
    """The id of the reply that a request continues: its thread has to be read before the request can be."""
    thread = body.get("thread")
    previous = thread.get("previous_message_id") if type(thread) is dict and thread.get("type") == "continue" else None
    return previous if type(previous) is str else None


class Turn(NamedTuple):
    """One stored turn: what was sent, what was answered, and what the thread was created with."""

    messages: list[Any]
    content: list[dict[str, Any]]
    fixed: dict[str, Any]
    continued: bool = False  # another turn continues from here

    @property
    def conversation(self) -> list[Any]:
        """The turn's messages followed by the reply. If the last message is the assistant's, the reply continues it."""
        last = self.messages[-1]
        if last["role"] != "assistant":
            return [*self.messages, {"role": "assistant", "content": self.content}]
        begun = last["content"]
        blocks = [{"type": "text", "text": begun}] if type(begun) is str else list(begun)
        said = list(self.content)
        if blocks and said and blocks[-1]["type"] == said[0]["type"] == "text":
            blocks[-1] = {"type": "text", "text": blocks[-1]["text"] + said.pop(0)["text"]}
        return [*self.messages[:-1], {"role": "assistant", "content": [*blocks, *said]}]

    def pack(self) -> bytes:
        return orjson.dumps(self._asdict())

    @classmethod
    def unpack(cls, data: bytes) -> Turn:
        return cls(**orjson.loads(data))


class Continued(NamedTuple):
    """The value of `messages` in a request that continues a thread: the earlier turns' messages, and the new ones."""

    earlier: list[Any]
    sent: Any


def new_turn(body: Mapping[str, Any], earlier: Sequence[Turn]) -> Turn:
    """The turn that a request begins, without its reply."""
    fixed = earlier[0].fixed if earlier else {name: body[name] for name in FIXED if body.get(name) is not None}
    return Turn(list(body["messages"]), [], fixed)


def whole_body(body: Mapping[str, Any], earlier: Sequence[Turn]) -> Mapping[str, Any]:
    """The request together with everything its thread holds. Raises ThreadChanged, ThreadContinued."""
    if not earlier:
        return body
    if earlier[-1].continued:
        raise ThreadContinued(
            "This response has already been continued: continue the thread's latest one, or send the whole "
            'conversation with \'thread\': {"type": "create"}.',
            param="thread.previous_message_id",
        )
    fixed = earlier[0].fixed
    changed = [name for name in FIXED if body.get(name) is not None and body[name] != fixed.get(name)]
    if changed:
        raise ThreadChanged(
            f"{' and '.join(map(repr, changed))} differ from what the thread was created with: leave them out, or send "
            'the whole conversation with \'thread\': {"type": "create"}.',
            param=changed[0],
        )
    if body.get("messages") is None:
        return {**body, **fixed}
    messages = [message for turn in earlier for message in turn.conversation]
    return {**body, **fixed, "messages": Continued(messages, body["messages"])}


def not_found(id: str) -> ThreadNotFound:
    return ThreadNotFound(
        f"No thread is kept for the message '{id[:80]}': send the whole conversation with "
        '\'thread\': {"type": "create"}.',
        param="thread.previous_message_id",
    )


def new_message_id() -> str:
    """Cannot be guessed: without API keys, knowing the id is enough to continue the thread."""
    return f"msg_{secrets.token_hex(24)}"
