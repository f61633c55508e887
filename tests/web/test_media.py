"""Images and sounds in every dialect, on the fake model, whose projector writes "[image]" for one."""

from __future__ import annotations

import base64
import io
import json

import pytest
from PIL import Image
from samples import png, wav

from llamasrv.engine.backend.fake_projector import FakeProjector
from llamasrv.media.sources import Sources
from llamasrv.pipeline.media import MediaOptions
from llamasrv.pipeline.unseen import UNREADABLE
from llamasrv.protocols.limits import Limits
from llamasrv.web.service import WebOptions

IMAGE, SOUND = png(640, 320), wav(2.0)
IN_BASE64, SOUND_IN_BASE64 = base64.b64encode(IMAGE).decode(), base64.b64encode(SOUND).decode()
URL = f"data:image/png;base64,{IN_BASE64}"
ROWS = 16 * 10
ASKED = "What is it?"
MARK = "<__media_secret__>"
PARTS = [{"type": "text", "text": ASKED}, {"type": "image_url", "image_url": {"url": URL}}]


@pytest.fixture(scope="module")
def seeing():
    from serving import RunningService

    service = RunningService(projector=FakeProjector(), web=WebOptions(limits=Limits(media_marker=MARK)))
    yield service
    service.close()
    service.service.pipeline.media.close()


@pytest.fixture
def ask(seeing):
    def ask(path, body, status=200):
        answer = seeing.client.post(path, json={"model": "fake", **body})
        assert answer.status_code == status, answer.json
        return answer.json

    return ask


def chat(parts, **more):
    return {"messages": [{"role": "user", "content": parts}], "max_tokens": 200, **more}


def anthropic(content, **more):
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 200, **more}


BLOCKS = [
    {"type": "text", "text": ASKED},
    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": IN_BASE64}},
]
RESPONSE = [
    {"role": "user", "content": [{"type": "input_text", "text": ASKED}, {"type": "input_image", "image_url": URL}]}
]


def test_one_image_counts_the_same_in_every_dialect_and_as_the_counts_say(ask):
    from_chat = ask("/v1/chat/completions", chat(PARTS))
    assert from_chat["choices"][0]["message"]["content"] == f"You said: {ASKED}[image]"
    count = from_chat["usage"]["prompt_tokens"]
    assert count > ROWS
    told = [
        ask("/v1/chat/completions/input_tokens", chat(PARTS))["input_tokens"],
        ask("/v1/responses", {"input": RESPONSE})["usage"]["input_tokens"],
        ask("/v1/responses/input_tokens", {"input": RESPONSE})["input_tokens"],
        ask("/v1/messages/count_tokens", anthropic(BLOCKS))["input_tokens"],
        ask("/api/chat", {"messages": [{"role": "user", "content": ASKED, "images": [IN_BASE64]}], "stream": False})[
            "prompt_eval_count"
        ],
        ask("/api/generate", {"prompt": ASKED, "images": [IN_BASE64], "stream": False})["prompt_eval_count"],
    ]
    usage = ask("/v1/messages", anthropic(BLOCKS))["usage"]
    told.append(usage["input_tokens"] + usage["cache_read_input_tokens"] + usage.get("cache_creation_input_tokens", 0))
    assert told == [count] * len(told)


def test_it_is_encoded_once_for_all(seeing, ask):
    parts = [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(png(33, 65)).decode()}}
    ]
    before = len(seeing.backend.projector.encoded)
    for text in ("a", "b", "c"):
        ask("/v1/chat/completions", chat([*parts, {"type": "text", "text": text}]))
    assert len(seeing.backend.projector.encoded) == before + 1


def test_the_next_turn_finds_it_cached(ask):
    first = chat([{"type": "text", "text": "Look closely"}, PARTS[1]])
    answer = ask("/v1/chat/completions", first)
    said = answer["choices"][0]["message"]["content"]
    messages = [*first["messages"], {"role": "assistant", "content": said}, {"role": "user", "content": "And now?"}]
    usage = ask("/v1/chat/completions", {"messages": messages, "max_tokens": 50})["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] > ROWS


def test_a_sound_is_heard(ask):
    part = {"type": "input_audio", "input_audio": {"data": SOUND_IN_BASE64, "format": "wav"}}
    answer = ask("/v1/chat/completions", chat([part, {"type": "text", "text": "?"}]))
    assert answer["choices"][0]["message"]["content"] == "You said: [audio]?"
    again = ask("/v1/responses", {"input": [{"role": "user", "content": [part, {"type": "input_text", "text": "?"}]}]})
    assert again["output"][-1]["content"][0]["text"] == "You said: [audio]?"
    assert again["usage"]["input_tokens"] == answer["usage"]["prompt_tokens"]


def test_it_streams(seeing):
    answer = seeing.client.post("/v1/chat/completions", json=chat(PARTS, stream=True))
    assert answer.status_code == 200 and answer.data.endswith(b"data: [DONE]\n\n")


def test_an_image_in_a_tools_result_is_shown_behind_it(ask):
    messages = [
        {"role": "user", "content": "Take a picture"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "camera", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": [BLOCKS[1]]}]},
    ]
    answer = ask("/v1/messages", {"messages": messages, "max_tokens": 100})
    assert answer["content"][0]["text"] == "You said: [image]"


CALL = {"id": "t1", "type": "function", "function": {"name": "read_file", "arguments": "{}"}}


def chat_result(content):
    messages = [{"role": "user", "content": "Look"}, {"role": "assistant", "content": None, "tool_calls": [CALL]}]
    return {"messages": [*messages, {"role": "tool", "tool_call_id": "t1", "content": content}], "max_tokens": 20}


def anthropic_result(content):
    use = {"type": "tool_use", "id": "t1", "name": "read_file", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": content}
    turns = [("user", "Look"), ("assistant", [use]), ("user", [result])]
    return {"messages": [{"role": role, "content": content} for role, content in turns], "max_tokens": 20}


def response_result(output):
    called = {"type": "function_call", "call_id": "t1", "name": "read_file", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "t1", "output": output}
    return {"input": [{"role": "user", "content": "Look"}, called, result], "max_output_tokens": 20}


def gemini_result(response, *behind, **more):
    parts = [
        ("user", {"text": "Look"}),
        ("model", {"functionCall": {"name": "read_file", "args": {}}}),
        ("user", {"functionResponse": {"name": "read_file", "response": response, **more}}, *behind),
    ]
    return {"contents": [{"role": role, "parts": parts} for role, *parts in parts]}


def ollama_result(content, **more):
    call = {"function": {"name": "read_file", "arguments": {}}}
    messages = [{"role": "user", "content": "Look"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    return {
        "messages": [*messages, {"role": "tool", "tool_name": "read_file", "content": content, **more}],
        "stream": False,
    }


INLINE = {"inlineData": {"mimeType": "image/png", "data": IN_BASE64}}
SENTENCE = "[a picture: this model does not see]"
RESULTS = {
    "/v1/messages": (anthropic_result([BLOCKS[1]]), anthropic_result(SENTENCE)),
    "/v1/messages/count_tokens": (anthropic_result([BLOCKS[1]]), anthropic_result(SENTENCE)),
    "/v1/chat/completions": (chat_result([PARTS[1]]), chat_result(SENTENCE)),
    "/apply-template": (chat_result([PARTS[1]]), chat_result(SENTENCE)),
    "/v1/responses": (
        response_result([{"type": "input_image", "image_url": URL}]),
        response_result(SENTENCE),
    ),
    "/v1beta/models/fake:generateContent": (
        gemini_result({"output": ""}, parts=[INLINE]),
        gemini_result({"output": SENTENCE}),
    ),
    "/v1beta/models/fake:generateContent?behind": (
        gemini_result({"output": ""}, INLINE),
        gemini_result({"output": SENTENCE}),
    ),
    "/v1beta/models/fake:countTokens": (
        gemini_result({"output": ""}, parts=[INLINE]),
        gemini_result({"output": SENTENCE}),
    ),
    "/api/chat": (ollama_result("", images=[IN_BASE64]), ollama_result(SENTENCE)),
}


def size_of(body):
    """The prompt, or how many tokens it has."""
    if "usage" in body:
        usage = body["usage"]
        names = ("prompt_tokens", "input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
        return sum(usage.get(name, 0) for name in names)
    if "usageMetadata" in body:
        return body["usageMetadata"]["promptTokenCount"]
    return next(body[name] for name in ("prompt", "input_tokens", "totalTokens", "prompt_eval_count") if name in body)


@pytest.mark.parametrize("path", RESULTS)
def test_a_picture_that_a_tool_returned_does_not_end_the_session_of_a_blind_model(client, path):
    """An agent read a picture's file: the 400 came back with every later request, because the result is in the history."""
    shown, written = (client.post(path, json={"model": "fake", **body}) for body in RESULTS[path])
    assert shown.status_code == 200, shown.get_data(as_text=True)
    assert size_of(shown.get_json()) == size_of(written.get_json())


def test_data_that_a_tool_returned_and_nobody_can_read_does_not_end_the_session(client):
    pdf = {"inlineData": {"mimeType": "application/pdf", "data": "JVBERi0="}}
    said = gemini_result({"output": "[data of type application/pdf: it cannot be read here]"})
    path = "/v1beta/models/fake:countTokens"
    found = [
        client.post(path, json=one)
        for one in (gemini_result({"output": ""}, pdf), gemini_result({"output": ""}, parts=[pdf]), said)
    ]
    assert [one.status_code for one in found] == [200] * 3 and len({size_of(one.get_json()) for one in found}) == 1
    own = gemini_result({"output": ""}, {"text": "And this?"}, pdf)
    assert client.post(path, json=own).status_code == 400
    mine = gemini_result({"output": ""}, {"text": "And this?"}, INLINE)
    assert "--mmproj" in client.post(path, json=mine).get_json()["error"]["message"]


@pytest.mark.parametrize("path", [path for path in RESULTS if path != "/apply-template"])
def test_a_model_that_sees_is_shown_what_a_tool_returned(ask, path):
    shown, written = RESULTS[path]
    assert size_of(ask(path, shown)) >= size_of(ask(path, written)) + ROWS - len(SENTENCE)


NO_PICTURE = base64.b64encode(b"no picture").decode()


@pytest.mark.parametrize("path", [path for path in RESULTS if path != "/apply-template"])
def test_a_broken_picture_that_a_tool_returned_does_not_end_the_session(ask, path):
    sentence = UNREADABLE["image"]
    shown, written = (json.loads(json.dumps(body)) for body in RESULTS[path])
    shown = json.loads(json.dumps(shown).replace(IN_BASE64, NO_PICTURE))
    written = json.loads(json.dumps(written).replace(SENTENCE, sentence))
    assert size_of(ask(path, shown)) == size_of(ask(path, written))


def test_a_tools_picture_is_counted_alone_by_geminis_clients(client):
    body = gemini_result({"output": ""}, parts=[INLINE])
    lone = client.post("/v1beta/models/fake:countTokens", json={"contents": body["contents"][2:]})
    assert lone.status_code == 200 and lone.get_json()["totalTokens"] > len(SENTENCE)


@pytest.mark.parametrize(
    "path, body",
    [
        ("/v1/messages", anthropic(BLOCKS)),
        ("/v1/chat/completions", chat(PARTS)),
        ("/v1/responses", {"input": RESPONSE}),
        ("/v1beta/models/fake:generateContent", {"contents": [{"role": "user", "parts": [INLINE]}]}),
        ("/api/chat", {"messages": [{"role": "user", "content": "", "images": [IN_BASE64]}]}),
    ],
)
def test_a_users_own_picture_is_still_refused(client, path, body):
    reply = client.post(path, json={"model": "fake", **body})
    assert reply.status_code == 400 and "no vision projector" in reply.get_data(as_text=True)


def source(data):
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}


UNDECODABLE = [
    source(NO_PICTURE),
    source(base64.b64encode(IMAGE[:60]).decode()),
    {"type": "image", "source": {"type": "url", "url": "https://elsewhere.example/x.png"}},
    {"type": "image", "source": {"type": "file", "file_id": "file_1"}},
]
MALFORMED = [
    source("?"),
    source(""),
    source(None),
    {"type": "image"},
    {"type": "image", "source": {"type": "file"}},
]


@pytest.mark.parametrize("block", UNDECODABLE)
def test_the_model_learns_that_a_tools_picture_cannot_be_decoded(ask, block):
    answer = ask("/v1/messages", anthropic_result([block]))
    assert answer["usage"]["input_tokens"] > 0


@pytest.mark.parametrize(
    "make, block",
    [*((anthropic, block) for block in UNDECODABLE + MALFORMED), *((anthropic_result, block) for block in MALFORMED)],
)
def test_claude_code_finds_its_words_for_a_picture_that_cannot_be_read(ask, make, block):
    """It takes the picture out and asks again. Without these words the session was lost."""
    error = ask("/v1/messages", make([block]), 400)["error"]
    assert error["message"].startswith("Could not process image. ")
    assert error["type"] == "invalid_request_error"


def test_claude_code_finds_its_words_where_the_model_does_not_see(client):
    error = client.post("/v1/messages", json={"model": "fake", **anthropic(BLOCKS)}).get_json()["error"]
    assert error["message"].startswith("Could not process image. This model has no vision projector")


def test_llama_cpps_clients_put_marks_into_raw_text(ask):
    body = {"prompt": {"prompt_string": f"A {MARK} B", "multimodal_data": [IN_BASE64]}, "n_predict": 4}
    answer = ask("/completion", body)
    assert answer["tokens_evaluated"] == len("A [image] B") + ROWS
    sound = {"prompt_string": f"{MARK}{MARK}", "multimodal_data": [SOUND_IN_BASE64, IN_BASE64]}
    assert ask("/completion", {"prompt": sound, "n_predict": 4})["tokens_evaluated"] == len("[audio][image]") + 4 + ROWS
    plain = ask("/completion", {"prompt": {"prompt_string": f"A {MARK}"}, "n_predict": 1})
    assert plain["tokens_evaluated"] == len(f"A {MARK}")


@pytest.mark.parametrize("prompt", [f"{MARK} {MARK}", "none"])
def test_marks_and_data_must_be_as_many(ask, prompt):
    error = ask("/completion", {"prompt": {"prompt_string": prompt, "multimodal_data": [IN_BASE64]}}, 400)["error"]
    assert "multimodal_data" in error["message"] and MARK in error["message"]


def test_apply_template_shows_the_mark_which_completion_takes(ask):
    prompt = ask("/apply-template", {"messages": chat(PARTS)["messages"]})["prompt"]
    assert prompt.count(MARK) == 1
    counted = ask("/v1/chat/completions/input_tokens", chat(PARTS))["input_tokens"]
    body = {"prompt": {"prompt_string": prompt, "multimodal_data": [IN_BASE64]}, "n_predict": 2}
    assert ask("/completion", body)["tokens_evaluated"] == counted


def test_what_the_model_takes_is_reported_everywhere(seeing):
    get = lambda path: seeing.client.get(path).json  # noqa: E731
    props = get("/props")
    assert props["modalities"] == {"vision": True, "video": False, "audio": True} and props["media_marker"] == MARK
    for path in ("/v1/models", "/models"):
        listed = get(path)
        assert {"completion", "multimodal"} <= set(listed["models"][0]["capabilities"])
        assert listed["data"][0]["architecture"]["input_modalities"] == ["text", "image", "audio"]
    assert {"vision", "audio"} <= set(seeing.client.post("/api/show", json={"model": "fake"}).json["capabilities"])
    assert {"vision", "audio"} <= set(get("/api/tags")["models"][0]["capabilities"])


def test_a_model_that_takes_text_says_so(client):
    assert client.get("/props").json["modalities"] == {"vision": False, "video": False, "audio": False}
    assert client.get("/v1/models").json["models"][0]["capabilities"] == ["completion"]


REFUSED = {
    "/v1/chat/completions": (chat(PARTS), "messages[0].content[1].image_url.url"),
    "/v1/responses": ({"input": RESPONSE}, "input[0].content[1].image_url"),
    "/v1/messages": (anthropic(BLOCKS), "messages[0].content[1].source.data"),
    "/api/chat": ({"messages": [{"role": "user", "content": "x", "images": [IN_BASE64]}]}, "messages[0].images[0]"),
    "/api/generate": ({"prompt": "x", "images": [IN_BASE64]}, "images[0]"),
    "/completion": (
        {"prompt": {"prompt_string": "<__media__>", "multimodal_data": [IN_BASE64]}},
        "prompt.multimodal_data[0]",
    ),
    "/v1/messages/count_tokens": (anthropic(BLOCKS), "messages[0].content[1].source.data"),
    "/v1/chat/completions/input_tokens": (chat(PARTS), "messages[0].content[1].image_url.url"),
}


@pytest.mark.parametrize("path", REFUSED)
def test_a_model_without_a_projector_says_what_it_lacks(client, path):
    body, place = REFUSED[path]
    answer = client.post(path, json={"model": "fake", **body})
    assert answer.status_code == 400
    assert "This model has no vision projector; it cannot take images. Start it with --mmproj." in answer.text
    if path.startswith(("/v1/chat", "/v1/responses")):
        assert answer.json["error"]["param"] == place


BROKEN = {
    "no image": b"not an image at all",
    "half an image": IMAGE[: len(IMAGE) // 2],
    "a program": b"\x7fELF" + bytes(200),
    "a film": b"\0\0\0\x20ftypisom" + bytes(100),
    "empty": b"",
}


@pytest.mark.parametrize("what", BROKEN)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/api/chat", "/v1/responses"])
def test_what_is_no_image_is_a_clear_400(seeing, what, path):
    data = base64.b64encode(BROKEN[what]).decode()
    bodies = {
        "/v1/chat/completions": chat([{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}]),
        "/v1/messages": anthropic(
            [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}]
        ),
        "/api/chat": {"messages": [{"role": "user", "content": "x", "images": [data]}]},
        "/v1/responses": {
            "input": [
                {"role": "user", "content": [{"type": "input_image", "image_url": f"data:image/png;base64,{data}"}]}
            ]
        },
    }
    answer = seeing.client.post(path, json={"model": "fake", **bodies[path]})
    assert answer.status_code == 400, answer.text
    assert "image" in answer.text


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com/cat.png",
        "http://127.0.0.1/x.png",
        "file:///etc/passwd",
        "malformed!",
        "data:text/html;base64,aGVsbG8=",
    ],
)
def test_urls_of_others_are_refused_by_name(ask, url):
    error = ask("/v1/chat/completions", chat([{"type": "image_url", "image_url": {"url": url}}]), 400)["error"]
    assert error["param"] == "messages[0].content[0].image_url.url"


def test_files_of_the_media_folder_are_read(start, tmp_path):
    (tmp_path / "cat.png").write_bytes(IMAGE)
    running = start(projector=FakeProjector(), web=WebOptions(media=MediaOptions(sources=Sources(tmp_path))))
    body = chat([{"type": "image_url", "image_url": {"url": "file://cat.png"}}])
    assert running.client.post("/v1/chat/completions", json=body).status_code == 200
    for url in ("file://dog.png", "file://../x", "file:///etc/passwd"):
        body = chat([{"type": "image_url", "image_url": {"url": url}}])
        assert running.client.post("/v1/chat/completions", json=body).status_code == 400
    running.service.pipeline.media.close()


def test_an_image_that_is_longer_than_the_context_is_refused_with_its_count(ask):
    big = base64.b64encode(png(512, 512)).decode()
    part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{big}"}}
    error = ask("/v1/chat/completions", chat([part] * 5), 400)["error"]
    assert error["code"] == "context_length_exceeded" and error["n_prompt_tokens"] > 5 * 256


def test_few_details_take_fewer_tokens(ask):
    out = io.BytesIO()
    Image.new("RGB", (2000, 1000)).save(out, "PNG")
    url = "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()
    counts = [
        ask(
            "/v1/chat/completions/input_tokens",
            chat([{"type": "image_url", "image_url": {"url": url, "detail": detail}}]),
        )["input_tokens"]
        for detail in ("low", "auto", "high")
    ]
    assert counts[1] == counts[2] and counts[1] - counts[0] == 16 * 16 - 16 * 8
