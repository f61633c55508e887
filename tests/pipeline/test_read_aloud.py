"""A model that only speaks, asked for an answer in Google's dialect: it reads the texts aloud."""

from __future__ import annotations

import base64
import json

import numpy as np
import pytest
from fake_speech import FRAME, FakeSpeech
from serving import RunningService, wait_until


@pytest.fixture(scope="module")
def both():
    service = RunningService(voice=FakeSpeech(num_lanes=2))
    yield service
    service.close()


@pytest.fixture
def ask(both):
    def ask(status=200, method="generateContent", text="Say it.", model="voice", body=None, **config):
        body = {
            "contents": [{"parts": [{"text": text}]}],
            "generationConfig": {"responseModalities": ["AUDIO"], **config},
            **(body or {}),
        }
        answer = both.client.post(f"/v1beta/models/{model}:{method}", json=body)
        answer.get_data()
        assert answer.status_code == status, answer.text
        return answer if status == 200 else answer.json["error"]

    yield ask
    both.check_at_rest()
    wait_until(lambda: both.voice_engine.num_open == 0)


def said(parts):
    pcm = b"".join(base64.b64decode(part["inlineData"]["data"]) for part in parts)
    return "".join(chr(round(code * 256 / 32767)) for code in np.frombuffer(pcm, "<i2")[::FRAME].tolist())


def test_the_text_is_said_as_it_stands(ask):
    answer = ask().json
    assert answer["modelVersion"] == "voice" and answer["candidates"][0]["finishReason"] == "STOP"
    assert said(answer["candidates"][0]["content"]["parts"]) == "Say it."
    assert answer["usageMetadata"]["candidatesTokensDetails"][0] == {"modality": "AUDIO", "tokenCount": 7}


def test_it_is_said_in_a_stream(ask):
    frames = ask(method="streamGenerateContent?alt=sse").text.split("\n\n")
    chunks = [json.loads(frame[6:]) for frame in frames if frame.strip()]
    parts = [part for chunk in chunks for part in chunk["candidates"][0]["content"]["parts"] if "inlineData" in part]
    assert said(parts) == "Say it." and chunks[-1]["candidates"][0]["finishReason"] == "STOP"


def test_how_it_is_said_reaches_the_model(ask, both):
    voice = {"voiceConfig": {"prebuiltVoiceConfig": {"voiceName": "vivian"}}, "languageCode": "de-DE"}
    system = {"systemInstruction": {"parts": [{"text": "Whisper."}]}}
    answer = ask(body=system, speechConfig=voice, temperature=0.5, seed=3, maxOutputTokens=4).json
    assert said(answer["candidates"][0]["content"]["parts"]) == "Say "
    assert answer["candidates"][0]["finishReason"] == "MAX_TOKENS"
    spec = both.voice_engine.speaker.backend.specs[-1]
    assert (spec.speaker, spec.language, spec.instructions) == ("vivian", "german", "Whisper.")
    assert (spec.seed, spec.temperature) == (3, 0.5)


@pytest.mark.parametrize(
    ("config", "param"),
    [
        ({"responseMimeType": "application/json"}, "responseMimeType"),
        ({"stopSequences": ["x"]}, "stopSequences"),
        ({"presencePenalty": 1.0}, "presencePenalty"),
        ({"responseLogprobs": True}, "responseLogprobs"),
        ({"thinkingConfig": {"thinkingBudget": 5}}, "thinkingConfig"),
        ({"candidateCount": 2}, "candidateCount"),
        ({"text": " ... "}, "contents"),
        ({"text": "a" * 4097}, "contents"),
        ({"speechConfig": {"voiceConfig": {"prebuiltVoiceConfig": {"voiceName": "zoe"}}}}, "voiceName"),
        ({"body": {"tools": [{"functionDeclarations": [{"name": "f"}]}]}}, "tools"),
        ({"body": {"contents": [{"role": "user", "parts": [{"text": "a"}]}, {"role": "model", "parts": [{"text": "b"}]}]}},
         "contents"),
        ({"body": {"contents": [{"parts": [{"inlineData": {"mimeType": "image/png", "data": "AAAA"}}]}]}}, "contents"),
    ],
)  # fmt: skip
def test_what_cannot_be_said_is_refused_by_field(ask, config, param):
    error = ask(400, **config)
    assert param in error["details"][0]["fieldViolations"][0]["field"], error


def test_the_list_of_models_says_what_it_can(both):
    models = {one["baseModelId"]: one for one in both.client.get("/v1beta/models").json["models"]}
    methods = {name: one["supportedGenerationMethods"] for name, one in models.items()}
    assert methods == {"fake": ["generateContent", "countTokens"], "voice": ["generateContent"]}


def test_a_model_that_writes_answers_and_the_other_speaks(ask):
    answer = ask(model="fake", text="Hi").json
    assert said(answer["candidates"][0]["content"]["parts"]) == "You said: Hi"


def test_a_client_that_leaves_ends_it(ask, both):
    body = {"contents": [{"parts": [{"text": "word " * 700}]}], "generationConfig": {"responseModalities": ["AUDIO"]}}
    answer = both.client.post("/v1beta/models/voice:streamGenerateContent?alt=sse", json=body, buffered=False)
    next(answer.response)
    answer.close()
    wait_until(lambda: both.voice_engine.num_open == 0)
