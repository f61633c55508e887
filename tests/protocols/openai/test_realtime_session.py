"""Settings and items of Realtime sessions, without a socket."""

from __future__ import annotations

import base64
import re

import pytest
import typing_extensions

from llamasrv.errors import InvalidRequest
from llamasrv.protocols.openai.realtime.items import (
    MS_BYTES,
    ConversationItem,
    RealtimeConversation,
    chat_messages,
    new_item,
)
from llamasrv.protocols.openai.realtime.response import RealtimeResponse
from llamasrv.protocols.openai.realtime.session import chat_tools, new_session, updated
from llamasrv.web.sockets.realtime import _HANDLERS

TOOL = {"type": "function", "name": "look", "description": "Looks.", "parameters": {"type": "object"}}


def session(**given):
    return updated(new_session("sess_1", "m", speaks=True, transcribes=False), {"type": "realtime", **given})


def message(role, kind, text, **more):
    key = "transcript" if kind == "output_audio" else "text"
    return {"type": "message", "role": role, "content": [{"type": kind, key: text}], **more}


def test_what_is_set_is_shown_and_the_rest_stays():
    after = session(instructions="Be short.", tools=[TOOL], audio={"output": {"voice": {"id": "mia"}, "speed": 1.5}})
    assert after["instructions"] == "Be short." and after["audio"]["output"]["voice"] == "mia"
    assert after["audio"]["input"]["turn_detection"]["type"] == "server_vad"
    again = updated(after, {"type": "realtime", "audio": {"input": {"turn_detection": None, "noise_reduction": {}}}})
    assert again["audio"]["input"]["turn_detection"] is None and again["audio"]["input"]["noise_reduction"] is None
    assert again["audio"]["output"] == after["audio"]["output"] and again["tools"] == [TOOL]


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"type": "transcription"}, "session.type"),
        ({"instructions": 5}, "session.instructions"),
        ({"output_modalities": ["video"]}, "session.output_modalities"),
        ({"max_output_tokens": 0}, "session.max_output_tokens"),
        ({"tools": [{"type": "mcp"}]}, "session.tools[0].type"),
        ({"tool_choice": "look"}, "session.tool_choice"),
        ({"prompt": {"id": "x"}}, "session.prompt"),
        ({"parallel_tool_calls": "no"}, "session.parallel_tool_calls"),
        (
            {"audio": {"input": {"turn_detection": {"type": "server_vad", "create_response": 0}}}},
            "session.audio.input.turn_detection.create_response",
        ),
        ({"audio": {"input": {"format": {"type": "audio/g722"}}}}, "session.audio.input.format.type"),
        ({"audio": {"output": {"format": {"type": ["audio/pcmu"]}}}}, "session.audio.output.format.type"),
        ({"audio": {"input": {"format": {"type": "audio/pcm", "rate": 8000}}}}, "session.audio.input.format.rate"),
        ({"audio": {"input": {"format": {"type": "audio/pcmu", "rate": 24000}}}}, "session.audio.input.format.rate"),
        ({"audio": {"input": {"turn_detection": {"type": "x"}}}}, "session.audio.input.turn_detection.type"),
        (
            {"audio": {"input": {"turn_detection": {"type": "server_vad", "threshold": 2}}}},
            "session.audio.input.turn_detection.threshold",
        ),
        ({"audio": {"output": {"speed": 9}}}, "session.audio.output.speed"),
        (
            {"audio": {"input": {"turn_detection": {"type": "semantic_vad", "eagerness": {"a": 1}}}}},
            "session.audio.input.turn_detection.eagerness",
        ),
        ({"audio": []}, "session.audio"),
    ],
)
def test_what_cannot_be_set_is_named(given, param):
    if given == {"audio": []}:
        given = {"audio": [1]}
    with pytest.raises(InvalidRequest) as caught:
        session(**given)
    assert caught.value.param == param


def test_the_formats_of_telephones_are_taken_for_each_direction():
    after = session(audio={"input": {"format": {"type": "audio/pcmu", "rate": 8000}}})
    assert after["audio"]["input"]["format"] == {"type": "audio/pcmu"} and after["audio"]["output"]["format"] == _PCM
    after = updated(
        after, {"audio": {"input": {"format": {"type": "audio/pcm"}}, "output": {"format": {"type": "audio/pcma"}}}}
    )
    assert after["audio"]["input"]["format"] == _PCM and after["audio"]["output"]["format"] == {"type": "audio/pcma"}


def test_the_sound_of_an_item_is_in_the_format_of_the_session():
    part = {"type": "input_audio", "audio": base64.b64encode(b"abc").decode()}
    item = new_item({"type": "message", "role": "user", "content": [part]}, lambda octets: octets.upper() * 2)
    assert item.audio == b"ABCABC"
    with pytest.raises(InvalidRequest):
        new_item({"type": "message", "role": "user", "content": [part]})


class Doubled:
    """Gives what it was fed at the call after."""

    def __init__(self):
        self.held = b""

    def encode(self, pcm):
        out, self.held = self.held, pcm
        return out

    def end(self):
        return self.encode(b"")


def test_an_answer_is_heard_in_the_format_of_the_session_to_its_end():
    sent = []
    settings = {**session(), "output_modalities": ["audio"], "output": {"format": {"type": "audio/pcmu"}, "voice": "a"}}
    response = RealtimeResponse(
        lambda kind, **fields: sent.append((kind, fields)),
        settings,
        RealtimeConversation(),
        is_apart=False,
        encoder=Doubled(),
    )
    response.begin()
    for piece in (b"one ", b"two "):
        data = base64.b64encode(piece).decode()
        response.chunk({"choices": [{"delta": {"audio": {"data": data}}}]})
    response.end()
    assert [base64.b64decode(fields["delta"]) for kind, fields in sent if kind == "response.output_audio.delta"] == [
        b"one ",
        b"two ",
    ]
    kinds = [kind for kind, _ in sent]
    assert kinds.index("response.output_audio.done") > kinds.index("response.output_audio.delta")


def test_items_become_a_chat():
    audio = base64.b64encode(bytes(4800)).decode()
    items = [
        new_item(message("system", "input_text", "Rules.")),
        new_item({"type": "message", "role": "user", "content": [{"type": "input_audio", "audio": audio}]}),
        new_item(message("assistant", "output_audio", "Let me look.")),
        new_item({"type": "function_call", "name": "look", "arguments": "{}", "call_id": "call_1"}),
        new_item({"type": "function_call_output", "call_id": "call_1", "output": "A cat."}),
        new_item(
            {
                "type": "message",
                "role": "user",
                "content": [{"type": "input_audio", "audio": audio, "transcript": "And now?"}],
            }
        ),
    ]
    chat = chat_messages(items, "Be short.")
    assert [one["role"] for one in chat] == ["system", "system", "user", "assistant", "tool", "user"]
    (heard,) = chat[2]["content"]
    assert base64.b64decode(heard["input_audio"]["data"])[:4] == b"RIFF"
    assert chat[3]["content"] == "Let me look." and chat[3]["tool_calls"][0]["function"]["name"] == "look"
    assert chat[5]["content"] == "And now?"
    tools = chat_tools(session(tools=[TOOL], tool_choice={"type": "function", "name": "look"}))
    assert tools["tools"][0]["function"]["name"] == "look" == tools["tool_choice"]["function"]["name"]


def test_items_stand_where_they_are_put_and_are_bounded():
    conversation = RealtimeConversation(most_items=4)
    ids = [f"item_{i}" for i in range(4)]
    items = [new_item(message("user", "input_text", id, id=id)) for id in ids]
    assert [
        conversation.add(items[0]),
        conversation.add(items[1]),
        conversation.add(items[2], "item_0"),
        conversation.add(items[3], "root"),
    ] == [None, "item_0", "item_0", None]
    assert [one["content"] for one in conversation.messages("")] == ["item_3", "item_0", "item_2", "item_1"]
    with pytest.raises(InvalidRequest):
        conversation.add(items[0])
    assert conversation.size == sum(item.size for item in items) > 4 * len("item_0")
    conversation.delete("item_2")
    assert conversation.size == sum(item.size for item in items) - items[2].size
    with pytest.raises(InvalidRequest):
        conversation.find("item_2")
    conversation.add(new_item(message("user", "input_text", "x")))
    with pytest.raises(InvalidRequest, match="at most 4"):
        conversation.add(new_item(message("user", "input_text", "x")))


def spoken(text, ms, status="completed"):
    wire = {
        "id": "a",
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": [{"type": "output_audio", "transcript": text}],
    }
    item = ConversationItem(wire)
    item.spoken_bytes = ms * MS_BYTES
    return item


def test_what_was_not_heard_is_cut_by_whole_words():
    item = spoken("one two three four", 1800)
    item.truncate(900)
    assert item.wire["content"][0]["transcript"] == "one two"
    with pytest.raises(InvalidRequest, match="already shorter than 2000ms"):
        item.truncate(2000)
    item.truncate(0)
    assert item.wire["content"][0]["transcript"] == ""
    broken = spoken("word " * 60, 1000, "incomplete")  # its text was ahead of its sound
    broken.truncate(1000)
    assert 0 < len(broken.wire["content"][0]["transcript"]) <= 16


def test_calls_beside_a_message_have_items_of_their_own():
    sent = []
    settings = {**session(), "output": session()["audio"]["output"], "metadata": None, "output_modalities": ["text"]}
    response = RealtimeResponse(
        lambda kind, **fields: sent.append((kind, fields)), settings, RealtimeConversation(), is_apart=False
    )
    response.begin()
    function = {"name": "look", "arguments": ""}
    for delta in (
        {"role": "assistant", "content": None},
        {"content": "Wait."},
        {"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": function}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]},
    ):
        response.chunk({"choices": [{"delta": delta, "finish_reason": None}]})
    response.chunk({"choices": [{"delta": {}, "finish_reason": "tool_calls"}]})
    response.end()
    (_, last) = sent[-1]
    assert [item["type"] for item in last["response"]["output"]] == ["message", "function_call"]
    done = [fields for kind, fields in sent if kind == "response.function_call_arguments.done"]
    assert done[0]["arguments"] == "{}" and done[0]["output_index"] == 1 and done[0]["call_id"] == "call_1"
    assert last["response"]["status"] == "completed"


def test_the_oldest_sound_goes_first_and_its_transcript_stays():
    conversation = RealtimeConversation(most_audio=10_000)
    audio = base64.b64encode(bytes(4800)).decode()
    part = {"type": "input_audio", "audio": audio, "transcript": "Hello."}
    items = [new_item({"type": "message", "role": "user", "content": [part]}) for _ in range(3)]
    for item in items:
        conversation.add(item)
    assert [len(item.audio) for item in items] == [0, 4800, 4800]
    assert conversation.size == sum(item.size for item in items) and items[0].transcript == "Hello."


_PCM = {"type": "audio/pcm", "rate": 24000}
_LIVEKIT = {
    "model": "gpt-realtime",
    "output_modalities": ["audio"],
    "max_output_tokens": "inf",
    "tool_choice": "auto",
    "tools": [TOOL],
    "tracing": None,
    "truncation": "auto",
    "instructions": "Be kind.",
    "audio": {
        "input": {
            "format": _PCM,
            "noise_reduction": {"type": "near_field"},
            "transcription": {"model": "gpt-4o-mini-transcribe"},
            "turn_detection": {
                "type": "semantic_vad",
                "create_response": True,
                "eagerness": "medium",
                "interrupt_response": True,
            },
        },
        "output": {"format": _PCM, "speed": 1.0, "voice": "marin"},
    },
}
_PIPECAT = {
    "object": "realtime.session",
    "output_modalities": ["text"],
    "instructions": "Be kind.",
    "tools": [],
    "tool_choice": "none",
    "max_output_tokens": 4096,
    "prompt": None,
    "include": None,
    "expires_at": None,
    "audio": {
        "input": {
            "format": _PCM,
            "transcription": {"model": "gpt-4o-transcribe", "language": None, "prompt": None},
            "noise_reduction": None,
            "turn_detection": {
                "type": "server_vad",
                "threshold": 0.5,
                "prefix_padding_ms": 300,
                "silence_duration_ms": 800,
            },
        },
        "output": {"format": _PCM, "voice": "alloy"},
    },
}


@pytest.mark.parametrize("given", [_LIVEKIT, _PIPECAT])
def test_the_settings_of_voice_frameworks_are_taken(given):
    after = session(**given)
    assert after["instructions"] == "Be kind." and after["audio"]["input"]["noise_reduction"] is None
    assert after["audio"]["input"]["turn_detection"]["silence_duration_ms"] in (700, 800)
    assert after["audio"]["output"]["voice"] == given["audio"]["output"]["voice"]


@pytest.mark.parametrize("junk", [None, True, 0, 1.5, "", "x", [], [None], {}, {"type": "x"}])
def test_nothing_in_an_item_is_more_than_an_invalid_request(junk):
    """A role that was an object ended the session: a TypeError, and an answer in HTTP on the WebSocket."""
    whole = {"id": "a", "type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}]}
    for name in whole:
        try:
            new_item({**whole, name: junk})
        except InvalidRequest:
            pass
    for part in ({"type": junk}, {"type": "input_text", "text": junk}, {"type": "input_audio", "audio": junk}, junk):
        with pytest.raises(InvalidRequest):
            new_item({**whole, "content": [{"type": "input_image", "image_url": []}, part]})


# What members of the SDK's unions can hold, by path. Items of MCP servers, and their tools, are refused by their type.
_HONOURED = {
    "session.type", "session.instructions", "session.output_modalities", "session.max_output_tokens", "session.tools",
    "session.tools.type", "session.tools.name", "session.tools.description", "session.tools.parameters",
    "session.tool_choice", "session.tool_choice.type", "session.tool_choice.name", "session.parallel_tool_calls",
    "session.reasoning", "session.reasoning.effort", "session.audio", "session.audio.input",
    "session.audio.input.format", "session.audio.input.format.type", "session.audio.input.format.rate",
    "session.audio.input.transcription", "session.audio.input.transcription.model",
    "session.audio.input.transcription.language", "session.audio.input.transcription.prompt",
    "session.audio.input.turn_detection", "session.audio.input.turn_detection.type",
    "session.audio.input.turn_detection.threshold", "session.audio.input.turn_detection.prefix_padding_ms",
    "session.audio.input.turn_detection.silence_duration_ms", "session.audio.input.turn_detection.eagerness",
    "session.audio.input.turn_detection.create_response", "session.audio.input.turn_detection.interrupt_response",
    "session.audio.output", "session.audio.output.format", "session.audio.output.format.type",
    "session.audio.output.format.rate", "session.audio.output.voice", "session.audio.output.voice.id",
    "session.audio.output.speed", "response.conversation", "response.input", "response.input.type",
    "response.metadata", "event_id", "type", "audio", "item_id", "response_id", "audio_end_ms", "content_index",
    "previous_item_id", "item.id", "item.type", "item.role", "item.name", "item.arguments", "item.call_id",
    "item.output", "item.content", "item.content.type", "item.content.text", "item.content.audio",
    "item.content.transcript", "item.content.image_url",
}  # fmt: skip
# The session shows null, or what is in force; an item is complete, and a picture is seen whole.
_SHOWN_AS_IT_IS = {
    "session.model", "session.include", "session.tracing", "session.truncation", "session.audio.input.noise_reduction",
    "session.audio.input.transcription.delay", "session.audio.input.transcription.keywords",
    "session.audio.input.transcription.languages", "session.audio.input.turn_detection.idle_timeout_ms",
    "item.object", "item.status", "item.content.detail",
}  # fmt: skip
_REFUSED = {
    "session.prompt",
    "session.tools.",
    "session.tool_choice.server_label",
    "item.approv",
    "item.server_label",
    "item.tools",
    "item.error",
    "item.reason",
}


def _paths(typed, path=""):
    for name, hint in typing_extensions.get_type_hints(typed).items():
        here = f"{path}.{name}" if path else name
        yield here
        inner = [hint]
        while inner:
            one = inner.pop()
            if typing_extensions.is_typeddict(one):
                yield from _paths(one, here)
            else:
                inner += [
                    argument for argument in typing_extensions.get_args(one) if not isinstance(argument, (str, int))
                ]


def test_every_member_of_the_clients_events_has_a_verdict():
    module = pytest.importorskip("openai.types.realtime.realtime_client_event_param")
    union = typing_extensions.get_args(module.RealtimeClientEventParam)
    kinds = {typing_extensions.get_args(typing_extensions.get_type_hints(one)["type"])[0] for one in union}
    assert kinds - {"output_audio_buffer.clear"} == set(_HANDLERS)  # over a WebSocket the client plays the sound
    unknown = set()
    for path in {path for one in union for path in _paths(one)}:
        # Settings of one answer are those of the session, and its input is items.
        same = re.sub(r"^response\.input\.(?!type$)", "item.", path)
        same = re.sub(r"^response\.(?!conversation|input|metadata)", "session.", same)
        is_known = same in _HONOURED or any(same == one or same.startswith(one + ".") for one in _SHOWN_AS_IT_IS)
        if not is_known and same not in ("session", "response", "item") and not same.startswith(tuple(_REFUSED)):
            unknown.add(path)
    assert not unknown
