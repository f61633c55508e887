"""Chats that speak: a model that writes, and the fake speech model beside it, whose frames are the characters said."""

from __future__ import annotations

import base64
import io
import json
import wave

import numpy as np
import pytest
from fake_speech import FRAME, FakeSpeech
from samples import wav
from serving import RunningService, wait_until

from llamasrv.pipeline.media import MediaOptions
from llamasrv.web.service import WebOptions
from llamasrv.web.stored.spoken_answers import SECONDS, SpokenAnswers

CHAT = "/v1/chat/completions"
SPOKEN = {"modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "wav"}}


def text_in(pcm):
    samples = np.frombuffer(pcm, "<i2")
    assert not len(samples) % FRAME
    return "".join(chr(round(code * 256 / 32767)) for code in samples[::FRAME].tolist())


def said_in(data):
    """The text in a WAV file, whose head once said that it lasts for a day."""
    with wave.open(io.BytesIO(base64.b64decode(data))) as file:
        pcm = file.readframes(1 << 24)
        assert file.getnframes() * 2 == len(pcm)
    return text_in(pcm)


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    folder = tmp_path_factory.mktemp("voices")
    (folder / "mia.wav").write_bytes(wav(1.5))
    service = RunningService(voice=FakeSpeech(num_lanes=4), web=WebOptions(media=MediaOptions(voices=folder)))
    yield service
    service.service.pipeline.media.close()
    service.close()


@pytest.fixture
def chat(both):
    def chat(text="Hello there. How are you today, friend? Fine.", status=200, messages=None, **body):
        messages = messages or [{"role": "user", "content": text}]
        answer = both.client.post(CHAT, json={"model": "fake", "messages": messages, **SPOKEN, **body})
        answer.get_data()
        assert answer.status_code == status, answer.text
        return answer if status == 200 else answer.json["error"]

    yield chat
    both.check_at_rest()
    wait_until(lambda: both.voice_engine.num_open == 0)


def chunks_of(answer):
    return [json.loads(line[6:]) for line in answer.text.split("\n\n") if line and line != "data: [DONE]"]


def test_an_answer_is_spoken_whole(chat):
    body = chat().json
    message = body["choices"][0]["message"]
    audio = message["audio"]
    assert message["content"] is None and message["refusal"] is None
    assert audio["transcript"] == "You said: Hello there. How are you today, friend? Fine."
    said = said_in(audio["data"])
    assert said == "You said: Hello there.How are you today, friend?Fine."
    details = body["usage"]["completion_tokens_details"]
    assert details["audio_tokens"] == len(said) < body["usage"]["completion_tokens"]


def test_a_stream_brings_transcript_and_sound_and_then_when_it_expires(chat):
    chunks = chunks_of(chat(stream=True, audio={"voice": "mia", "format": "pcm16"}))
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": None}
    sounds = [delta["audio"] for delta in deltas if "audio" in delta]
    (id,) = {sound["id"] for sound in sounds}
    assert "".join(s.get("transcript", "") for s in sounds).startswith("You said: Hello there.")
    assert text_in(b"".join(base64.b64decode(s["data"]) for s in sounds if "data" in s)).endswith("friend?Fine.")
    assert sounds[-1].keys() == {"id", "expires_at"} and chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert not any(delta.get("content") for delta in deltas)


def test_the_next_turn_may_name_it_by_its_id(both, chat):
    audio = chat("One.").json["choices"][0]["message"]["audio"]
    turns = [
        {"role": "user", "content": "One."},
        {"role": "assistant", "audio": {"id": audio["id"]}},
        {"role": "user", "content": "Two."},
    ]
    chat(messages=turns)
    asked = both.client.post(
        "/apply-template",
        json={"model": "fake", "messages": [turns[0], {"role": "assistant", "content": "You said: One."}, turns[2]]},
    )
    tokens = both.client.post("/tokenize", json={"model": "fake", "content": asked.json["prompt"]}).json["tokens"]
    assert chat(messages=turns).json["usage"]["prompt_tokens"] == len(tokens)
    turns[1]["audio"]["id"] = "audio_unknown"
    error = chat(messages=turns, status=400)
    assert (error["param"], error["code"]) == ("messages[1].audio.id", "audio_not_found")
    turns[1]["audio"]["transcript"] = "You said: One."
    chat(messages=turns, modalities=["text"])


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"audio": None}, "audio"),
        ({"audio": {"voice": "zoe", "format": "wav"}}, "audio.voice"),
        ({"audio": {"voice": "mia", "format": "midi"}}, "audio.format"),
        ({"audio": {"voice": "mia", "model": "fake"}}, "audio.model"),
        ({"audio": {"voice": "mia", "speed": 9}}, "audio.speed"),
        ({"audio": {"voice": "mia", "language": "klingon"}}, "audio.language"),
        ({"modalities": ["text", "video"]}, "modalities[1]"),
        ({"n": 2}, "n"),
    ],
)
def test_what_cannot_be_spoken_is_refused_by_field(chat, body, param):
    error = chat(status=400, **body)
    assert (error["param"], error["type"]) == (param, "invalid_request_error"), error


def test_where_nothing_speaks_that_is_said(client):
    answer = client.post(CHAT, json={"messages": [{"role": "user", "content": "Hi"}], **SPOKEN})
    assert answer.status_code == 400 and answer.json["error"]["param"] == "modalities"
    assert "No model here speaks" in answer.json["error"]["message"]


def test_a_response_is_spoken_whole_and_can_be_sent_back(both, chat):
    asked = {"model": "fake", "input": "Hello there.", "modalities": ["text", "audio"], "audio": {"format": "wav"}}
    body = both.client.post("/v1/responses", json=asked).json
    text, sound = body["output"][-1]["content"]
    assert text["text"] == sound["transcript"] == "You said: Hello there."
    assert said_in(sound["data"]) == "You said: Hello there."
    stored = both.client.get(f"/v1/responses/{body['id']}").json
    assert [part["type"] for part in stored["output"][-1]["content"]] == ["output_text"]
    turns = [{"role": "user", "content": "Hello there."}, *body["output"], {"role": "user", "content": "More."}]
    again = both.client.post("/v1/responses", json={"model": "fake", "input": turns}).json
    turns[1]["content"] = [text]
    assert (
        again["usage"]["input_tokens"]
        == both.client.post("/v1/responses", json={"model": "fake", "input": turns}).json["usage"]["input_tokens"]
    )
    error = both.client.post("/v1/responses", json={**asked, "background": True}).json["error"]
    assert error["param"] == "modalities"


def test_a_response_is_spoken_in_events(both, chat):
    asked = {"model": "fake", "input": "Hello there.", "modalities": ["text", "audio"], "audio": {}, "stream": True}
    answer = both.client.post("/v1/responses", json=asked)
    events = [json.loads(frame.partition("data: ")[2]) for frame in answer.text.split("\n\n") if "data: {" in frame]
    kinds = [event["type"] for event in events]
    assert kinds[-1] == "response.completed" and kinds.count("response.audio.done") == 1
    sound = b"".join(base64.b64decode(e["delta"]) for e in events if e["type"] == "response.audio.delta")
    said = "".join(e["delta"] for e in events if e["type"] == "response.audio.transcript.delta")
    assert text_in(sound) == said == "You said: Hello there."
    assert events[-1]["response"]["usage"]["output_tokens_details"]["reasoning_tokens"] == 0


def gemini(both, method, status=200, modalities=("AUDIO",), **config):
    body = {
        "contents": [{"parts": [{"text": "Hello there."}]}],
        "generationConfig": {"responseModalities": list(modalities), **config},
    }
    answer = both.client.post(f"/v1beta/models/fake:{method}", json=body)
    answer.get_data()
    assert answer.status_code == status, answer.text
    return answer


def heard(parts):
    inline = [part["inlineData"] for part in parts if "inlineData" in part]
    assert {one["mimeType"] for one in inline} == {"audio/L16;codec=pcm;rate=24000"}
    return text_in(b"".join(base64.b64decode(one["data"]) for one in inline))


def test_geminis_answers_are_spoken(both, chat):
    voice = {"voiceConfig": {"prebuiltVoiceConfig": {"voiceName": "mia"}}, "languageCode": "en-US"}
    answer = gemini(both, "generateContent", speechConfig=voice).json
    parts = answer["candidates"][0]["content"]["parts"]
    assert heard(parts) == "You said: Hello there." and len(parts) == 1
    counts = {one["modality"]: one["tokenCount"] for one in answer["usageMetadata"]["candidatesTokensDetails"]}
    assert counts["AUDIO"] == 22
    frames = gemini(both, "streamGenerateContent?alt=sse", modalities=("TEXT", "AUDIO")).text.split("\n\n")
    chunks = [json.loads(frame[6:]) for frame in frames if frame.strip()]
    parts = [part for chunk in chunks for one in chunk["candidates"] for part in one["content"]["parts"]]
    assert heard(parts) == "".join(part.get("text", "") for part in parts) == "You said: Hello there."


def test_what_gemini_cannot_have_spoken_is_refused_by_field(both, client):
    voice = {"voiceConfig": {"prebuiltVoiceConfig": {"voiceName": "Zephyr9"}}}
    assert "voiceName" in gemini(both, "generateContent", 400, speechConfig=voice).text
    assert (
        "multiSpeaker" in gemini(both, "generateContent", 400, speechConfig={"multiSpeakerVoiceConfig": {"a": 1}}).text
    )
    assert "responseModalities" in gemini(both, "generateContent", 400, modalities=("IMAGE",)).text
    assert "candidateCount" in gemini(both, "generateContent", 400, candidateCount=2).text
    body = {"contents": [{"parts": [{"text": "Hi"}]}], "generationConfig": {"responseModalities": ["AUDIO"]}}
    answer = client.post("/v1beta/models/fake:generateContent", json=body)
    assert answer.status_code == 400 and "No model here speaks" in answer.text


def test_calls_make_no_sound(chat):
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    message = chat(tools=tools, tool_choice="required").json["choices"][0]["message"]
    assert message["tool_calls"] and message["content"] is None and "audio" not in message


def test_a_client_that_leaves_ends_both(both):
    body = {"model": "fake", "messages": [{"role": "user", "content": "Hello there. " * 30}], **SPOKEN, "stream": True}
    with both.client.post(CHAT, json=body) as answer:
        next(iter(answer.response))
        answer.close()
    wait_until(lambda: both.engine.num_open == 0 and both.voice_engine.num_open == 0)
    both.check_at_rest()


def test_transcripts_are_an_owners_own_and_expire_and_are_bounded():
    now = [100.0]
    book = SpokenAnswers(most=2, most_chars=10, clock=lambda: now[0])
    assert book.keep("me", "a", "one") == 100 + SECONDS
    assert book.find("me", "a") == "one" and book.find("you", "a") is None
    book.keep("me", "b", "two")
    book.keep("me", "c", "three")
    assert [book.find("me", id) for id in "abc"] == [None, "two", "three"]
    book.keep("me", "d", "sixsix")
    assert [book.find("me", id) for id in "bcd"] == [None, None, "sixsix"]
    now[0] += SECONDS
    assert book.find("me", "d") is None
