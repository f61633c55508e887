"""Fields that have no effect are named in a header, in every dialect: unknown ones, and those that are ignored."""

from __future__ import annotations

import io
import json

import pytest
from serving import RunningService

from llamasrv.protocols.common.headers import IGNORED, MAX_NAMES
from llamasrv.web.service import WebOptions

HELLO = [{"role": "user", "content": "Hello"}]
SEARCHED = {
    "role": "user",
    "content": [{"type": "container_upload", "file_id": "file_1"}, {"type": "text", "text": "x"}],
}
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
    "/tokenize": {"content": "Hello"},
    "/detokenize": {"tokens": [72]},
    "/v1/messages/batches": {"requests": [{"custom_id": "a", "params": {"messages": HELLO, "max_tokens": 5}}]},
    "/v1/conversations": {"metadata": {"a": "b"}},
}


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    service = RunningService(web=WebOptions(files_folder=tmp_path_factory.mktemp("files"), files_bytes=1_000_000))
    yield service
    service.service.batches.close()
    service.close()


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
        ("/v1/messages/count_tokens", {"messages": [*HELLO, SEARCHED]}, "messages.container_upload"),
        ("/v1/messages/batches", {"requests": [{"custom_id": "a", "params": {}, "prio": 5}]}, "requests.prio"),
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


@pytest.mark.parametrize("headers, told", [({}, "owner"), ({"anthropic-version": "2023-06-01"}, "owner, purpose")])
def test_fields_of_an_upload_and_of_its_batch_are_reported(client, headers, told):
    line = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "Hello"}}
    form = {"owner": "me", "purpose": "batch", "file": (io.BytesIO(json.dumps(line).encode()), "a.jsonl")}
    reply = client.post("/v1/files", data=form, headers=headers)
    assert reply.status_code == 200 and reply.headers[IGNORED] == told
    if headers:
        form = {"file": (io.BytesIO(b"x"), "a.txt"), "expires_in_seconds": "3600"}
        lasting = client.post("/v1/files", data=form, headers=headers)
        assert IGNORED not in lasting.headers and lasting.get_json()["expires_at"]
    else:
        asked = {"input_file_id": reply.get_json()["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
        lifetime = {"output_expires_after": {"anchor": "created_at", "seconds": 3600}}
        made = client.post("/v1/batches", json={**asked, **lifetime})
        assert made.status_code == 200 and made.headers[IGNORED] == "output_expires_after"
