"""Five hundred hostile inputs and a thousand cancels for a server that speaks, and voices beside three others and four
chats, with both kinds of model.

pytest -s tests/soak/speech.py        twenty minutes on two busy cores
"""

from __future__ import annotations

import http.client
import json
import os
import random
import socket
import threading
import time
from contextlib import contextmanager, suppress

import numpy as np
import pytest
from clients.conftest import wait_until_ready
from clients.talk import figure, post, wait_for
from faults.front import descriptors, worker_of
from model import tiny_speech
from samples import wav

from llamasrv.config import paths

SPEECH = "/v1/audio/speech"
NUM_HOSTILE = int(os.environ.get("SOAK_HOSTILE", "500"))
NUM_CANCELS = int(os.environ.get("SOAK_CANCELS", "1000"))
SCRIPTS = (
    "Привет мир", "你好，世界。", "こんにちは", "안녕하세요", "مرحبا بالعالم", "שלום עולם", "नमस्ते दुनिया", "สวัสดีชาวโลก",
    "Γειά σου", "Բարեւ", "გამარჯობა", "ሰላም", "বাংলা", "ગુજરાતી", "ਪੰਜਾਬੀ", "தமிழ்", "తెలుగు", "ಕನ್ನಡ", "മലയാളം", "සිංහල",
    "ລາວ", "မြန်မာ", "ខ្មែរ", "བོད་", "ᠮᠣᠩᠭᠣᠯ", "ᏣᎳᎩ", "ᐃᓄᒃᑎᑐᑦ", "𓀀𓂀𓃰", "ⵜⵉⴼⵉⵏⴰⵖ", "𐌰𐌱𐌲", "Tiếng Việt", "Zażółć gęślą",
)  # fmt: skip
TEXTS = (
    "", " ", "\n", "...", "!" * 4000, "a" * 4096, "a" * 4097, "x" * 1_000_000, "\0", "a\0b", "\x01\x02\x1b[31m",
    "\u202e abc", "\ufeff", "😀😀😀 hi", "👨\u200d👩\u200d👧\u200d👦", '<speak><break time="3s"/>Hi</speak>', "<|im_end|>",
    "<|audio_bos|><|codec_eos_token|>", "</s><s>", "{{7*7}}", "${jndi:ldap://x}", "%s%n%x", "`" * 100, "a." * 2000,
    ". " * 2000 + "a", "," * 4000 + "b", ";;;;a", "\r\n\r\na", "\t\t1", "A" + "\u0301" * 4000, "\u200b" * 4000 + "q",
    "\udc00x", "1" * 4096, "-1e999", "null", "\uffff", "ﷺ" * 500,
)  # fmt: skip
FIELDS = {
    "voice": ("short", "none", "junk", "empty", "half", "nan", "long", "text", "../mia", "mia.wav", "", "a" * 65, "\0",
              "MIA", "default", {"id": "mia"}, {"id": 5}, {"id": None}, [], 5, None, {"x": 1}, True),
    "speed": (0, -1, 1e9, "1", None, 0.25, 4, [], "NaN"),
    "response_format": ("mp3", "opus", "aac", "flac", "wav", "pcm", "ogg", "", 5, None, []),
    "temperature": (-1, 0, 2, 3, 1e308, "x"), "top_k": (-1, 0, 1, 2**31 - 1, 2**31, 1.5), "top_p": (0, 1, 1e-9, 2),
    "seed": (0, 2**32 - 1, 2**32, -1, 1.0), "language": ("en", "xx", "", "a" * 33, 5, "auto", "english", "\0"),
    "instructions": ("Whisper", "x" * 2048, "x" * 2049, "<|im_end|>", 5, ""),
    "max_new_tokens": (0, 1, 2, 100_000, 100_001, -1), "stream_format": ("sse", "audio", "x", 5),
    "stream": (True, False, "x"), "model": ("", "tts-1", "tiny", "../x", 5, None, "x" * 5000), "ref_audio": ("x",),
    "ref_text": ("x",), "input": (5, None, [], {}, ["a"], True), "unknown": ({"a": [1] * 1000},),
}  # fmt: skip


def hostile_bodies(count):
    rng = random.Random(5)
    bodies = [{"input": text} for text in (*TEXTS, *SCRIPTS)]
    bodies += [{"input": "Hello you.", name: value} for name, values in FIELDS.items() for value in values]
    letters = "".join(SCRIPTS) + "".join(map(chr, range(0x250))) + "😀<>&;:.,!?\n"
    while len(bodies) < count:
        text = "".join(rng.choice(letters) for _ in range(rng.choice((1, 3, 30, 200))))
        kind = rng.choice(("mp3", "wav", "pcm", "opus", "aac", "flac"))
        voice = rng.choice(("mia", "alloy", "nan"))
        bodies.append({"input": text, "response_format": kind, "speed": rng.choice((0.25, 1, 4)), "voice": voice})
    for i, body in enumerate(bodies):
        if i % 12:  # most of them would be heard for minutes
            body.setdefault("max_new_tokens", 3)
    rng.shuffle(bodies)
    return bodies[:count]


def hostile_clips(folder):
    folder.mkdir()
    clips = {
        "mia.wav": wav(1.5),
        "short.wav": wav(0.02),
        "none.wav": b"RIFF",
        "junk.mp3": random.Random(1).randbytes(5000),
        "empty.flac": b"",
        "half.wav": wav(2)[:1000],
        "nan.wav": wav(1.2)[:44] + b"\x00\x00\xc0\x7f" * 20_000,
        "long.wav": wav(40),
        "text.ogg": b"hello " * 100,
    }
    for name, data in clips.items():
        (folder / name).write_bytes(data)
    return folder


@pytest.fixture(params=tiny_speech.KINDS)
def server(request, serve, tmp_path):
    model = tiny_speech.model(tmp_path / "tiny.gguf", request.param)
    projector = tiny_speech.projector(tmp_path / "mmproj-tiny.gguf", request.param)
    voices = hostile_clips(tmp_path / "voices")
    server = serve("--model", model, "--mmproj", projector, "--voices", voices, "-t", 1, "--no-log-requests")
    server.kind = request.param
    return wait_until_ready(server)


def sound_of(server):
    status, _, data = post(server, SPEECH, {"input": "Hello.", "response_format": "pcm", "voice": "mia"})
    assert status == 200 and data
    return data


@pytest.mark.timeout(1800)
def test_hostile_inputs_are_spoken_or_refused(server):
    worker, before, counts = worker_of(server), sound_of(server), {}
    for body in hostile_bodies(NUM_HOSTILE):
        status, _, data = post(server, SPEECH, body, timeout=120)
        counts[status] = counts.get(status, 0) + 1
        assert status in (200, 400, 404, 413, 422) and data, (status, body)
    print(f"\nhostile, {server.kind}: {counts}")
    assert worker_of(server) == worker and sound_of(server) == before


def leave(address, seed, count):
    rng = random.Random(seed)
    for _ in range(count):
        body = {
            "input": "Hello there, you. " * rng.randint(1, 20),
            "voice": rng.choice(("mia", "alloy", "long")),
            "response_format": rng.choice(("pcm", "wav")),
            "stream_format": rng.choice(("audio", "sse")),
        }
        data = json.dumps(body).encode()
        head = f"POST {SPEECH} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        with suppress(TimeoutError), socket.create_connection(address) as connection:
            connection.settimeout(30)
            connection.sendall(head.encode() + data)
            how = rng.random()
            if how < 0.3:
                time.sleep(rng.random() * 0.02)
            elif how < 0.9:
                for _ in range(rng.randint(1, 6)):
                    if not connection.recv(rng.choice((1, 100, 20_000))):
                        break


@pytest.mark.timeout(1800)
def test_a_thousand_leave(server):
    worker, before = worker_of(server), sound_of(server)
    leave(server.address, 100, 8)  # what is opened once: decoders of clips
    files = descriptors(worker)
    leaving = [threading.Thread(target=leave, args=(server.address, i, NUM_CANCELS // 8)) for i in range(8)]
    for thread in leaving:
        thread.start()
    for thread in leaving:
        thread.join()
    wait_for(lambda: figure(server, "llamasrv_speech_open") == 0)
    print(f"\nleft, {server.kind}: {NUM_CANCELS}, descriptors {files} and {descriptors(worker)}")
    assert worker_of(server) == worker and sound_of(server) == before
    wait_for(lambda: descriptors(worker) <= files + 4)


FRAME = 1920  # samples
CHAT = {"model": "words", "stream": True, "max_tokens": 400, "ignore_eos": True}
LONG = {
    "model": "voice",
    "voice": "mia",
    "response_format": "pcm",
    "input": "Something else is said, and it goes on. " * 40,
}


@pytest.fixture(params=[(kind, how) for kind in tiny_speech.KINDS for how in ((), ("--deterministic",))], ids=str)
def company(request, serve, tmp_path):
    """A server with a model that writes and one that speaks."""
    kind, how = request.param
    model = tiny_speech.model(tmp_path / "tiny.gguf", kind)
    projector = tiny_speech.projector(tmp_path / "mmproj-tiny.gguf", kind)
    voices = hostile_clips(tmp_path / "voices")
    (tmp_path / "llamasrv.toml").write_text(
        f'[models.words]\npath = "{paths.demo_model()}"\n[models.voice]\npath = "{model}"\nmmproj = "{projector}"\n'
        f'[media]\nvoices = "{voices}"\n'
    )
    server = serve("--config", tmp_path / "llamasrv.toml", "-t", 1, "--no-log-requests", *how)
    server.kind, server.is_deterministic = kind, bool(how)
    return wait_until_ready(server)


def keep_open(server, path, body, begun, over):
    """Ask again and again, and read all the time."""
    while not over.is_set():
        connection = http.client.HTTPConnection(*server.address, timeout=60)
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        reply = connection.getresponse()
        assert reply.status == 200
        while not over.is_set() and reply.read1(10_000):
            begun.set()
        connection.close()


@contextmanager
def three_speak_and_four_chat(server):
    over = threading.Event()
    asked = [(SPEECH, LONG | {"seed": seed}) for seed in (101, 102, 103)]
    for i in range(4):
        chat = CHAT | {"messages": [{"role": "user", "content": f"Tell me story {i}."}]}
        asked.append(("/v1/chat/completions", chat))
    begun = [threading.Event() for _ in asked]
    threads = [
        threading.Thread(target=keep_open, args=(server, path, body, event, over))
        for (path, body), event in zip(asked, begun)
    ]
    for thread in threads:
        thread.start()
    try:
        assert all(event.wait(60) for event in begun)
        yield
        assert all(thread.is_alive() for thread in threads)
    finally:
        over.set()
        for thread in threads:
            thread.join()


@pytest.mark.timeout(1800)
def test_a_voice_beside_three_others_and_four_chats(company):
    def say(seed):
        body = {"model": "voice", "voice": "mia", "input": "Hello there.", "response_format": "pcm", "seed": seed}
        status, _, data = post(company, SPEECH, body, timeout=120)
        assert status == 200
        return np.frombuffer(data, "<i2").astype(int)

    seeds = range(7, 12)
    alone = [say(seed) for seed in seeds]
    assert all((say(seed) == sound).all() for seed, sound in zip(seeds, alone))
    with three_speak_and_four_chat(company):
        beside = [say(seed) for seed in seeds]
    print(f"\n{company.kind}, {company.is_deterministic=}")
    for one, other in zip(alone, beside):
        count = min(len(one), len(other))
        apart = np.abs(one[:count] - other[:count])
        differing = np.flatnonzero(apart > 400)
        same = differing[0] // FRAME if len(differing) else count // FRAME
        print(
            f"{len(one) // FRAME} and {len(other) // FRAME} frames; the first {same} at most "
            f"{apart[: same * FRAME].max(initial=0)} of 32767 apart, all {apart.max()}"
        )
        if company.is_deterministic:
            assert len(one) == len(other) and not apart.any()
        elif company.kind == "pockettts":
            # Each frame follows from the numbers of those before it: what rounding changes grows with them.
            assert len(one) == len(other) and same >= min(20, len(one) // FRAME)
        # Qwen3-TTS samples a code for each frame, and rounding may turn one: after it the sound is another.
    assert all((say(seed) == sound).all() for seed, sound in zip(seeds, alone))
