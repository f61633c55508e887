"""Fields that have no effect are named in a header, in every dialect: unknown ones, and those that are ignored."""

from __future__ import annotations

import pytest

from llamasrv.protocols.common.headers import IGNORED, MAX_NAMES

HELLO = [{"role": "user", "content": "Hello"}]
CONTENTS = [{"role": "user", "parts": [{"text": "Hello"}]}]
BODIES = {
    "/v1/chat/completions": {"messages": HELLO},
    "/chat/completions": {"messages": HELLO},
    "/v1/completions": {"prompt": "Hello"},
    "/completion": {"prompt": "Hello"},
    "/infill": {"input_prefix": "a", "input_suffix": "b"},
    "/v1/messages": {"messages": HELLO, "max_tokens": 5},
    "/v1/responses": {"input": "Hello"},
    "/v1/responses/compact": {"model": "fake", "input": "Hello"},
    "/api/chat": {"model": "fake", "messages": HELLO},
    "/api/generate": {"model": "fake", "prompt": "Hello"},
    "/v1beta/models/fake:generateContent": {"contents": CONTENTS},
    "/v1beta/models/fake:streamGenerateContent": {"contents": CONTENTS},
    "/v1beta/models/fake:countTokens": {"contents": CONTENTS},
    "/v1/messages/count_tokens": {"messages": HELLO},
    "/v1/responses/input_tokens": {"input": "Hello"},
    "/v1/chat/completions/input_tokens": {"messages": HELLO},
}


@pytest.mark.parametrize("path", BODIES)
def test_a_misspelt_field_is_reported(client, path):
    """`temprature` was dropped without a word, and its user looked for the fault in the model."""
    body = {**BODIES[path], "temprature": 0, "x\r\ny": [1], "nothing": None}
    reply = client.post(path, json=body)
    assert reply.status_code == 200 and reply.get_data()
    assert reply.headers[IGNORED] == "temprature, x??y"


@pytest.mark.parametrize("path", BODIES)
def test_a_request_that_is_understood_has_no_such_header(client, path):
    reply = client.post(path, json=BODIES[path])
    assert reply.status_code == 200 and reply.get_data() and IGNORED not in reply.headers


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/completions"])
def test_a_stream_tells_it_with_its_headers(client, path):
    reply = client.post(path, json={**BODIES[path], "stream": True, "topk": 5})
    assert reply.headers[IGNORED] == "topk" and reply.get_data()


@pytest.mark.parametrize(
    "path, more, told",
    [
        (
            "/api/chat",
            {"options": {"temperature": 0, "temprature": 0, "num_gpu": 99, "stop": ["x"]}},
            "options.num_gpu, options.temprature",
        ),
        ("/api/generate", {"options": {"num_gpu": 99, "num_thread": 4}}, "options.num_gpu, options.num_thread"),
        ("/api/generate", {"options": {"num_gpu": None}}, None),
        (
            "/v1beta/models/fake:generateContent",
            {"generationConfig": {"temperature": 0, "max_tokens": 5, "top_k": 1}},
            "generationConfig.maxTokens",
        ),
        ("/v1beta/models/fake:generateContent", {"safety_settings": []}, None),
        ("/v1beta/models/fake:generateContent", {"generationConfig": None, "contents": CONTENTS[0]}, None),
        ("/v1beta/models/fake:countTokens", {"labels": {"a": "b"}}, "labels"),
        (
            "/v1beta/models/fake:generateContent",
            {"contents": [{"parts": [{"text": "Hi", "video_metadata": {"fps": 1}}]}]},
            "contents.parts.videoMetadata",
        ),
        (
            "/v1/chat/completions",
            {"stream": True, "stream_options": {"include_obfuscation": True}},
            "stream_options.include_obfuscation",
        ),
        ("/v1/chat/completions", {"safety_identifier": "x", "store": False}, "safety_identifier"),
        ("/v1/responses", {"reasoning": {"context": "all_turns", "effort": "low"}}, "reasoning.context"),
        ("/v1/responses/input_tokens", {"image": {"size": "1"}}, "image"),
        ("/v1/messages", {"thinking": {"type": "adaptive", "block_binding": {"a": 1}}}, "thinking.block_binding"),
        ("/v1/messages/count_tokens", {"speed": "fast"}, "speed"),
        ("/v1/chat/completions/input_tokens", {"topk": 5}, "topk"),
    ],
)
def test_options_within_a_field_are_reported_with_their_field(client, path, more, told):
    reply = client.post(path, json={**BODIES[path], **more})
    assert reply.status_code == 200 and reply.headers.get(IGNORED) == told and reply.get_data()


def test_there_is_an_end_to_the_list(client):
    body = {**BODIES["/v1/chat/completions"], **{f"field_{i}_{'x' * 200}": 1 for i in range(2000)}}
    told = client.post("/v1/chat/completions", json=body).headers[IGNORED].split(", ")
    assert len(told) == MAX_NAMES + 1 and told[-1] == "..." and max(map(len, told)) < 64
