"""`llamasrv bench URL`: what clients of a server get under a load profile."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from llamasrv import cli
from llamasrv.commands.bench_url import TimedRequest, figures, percentiles, usual_requests
from llamasrv.commands.load_profiles import PROFILES, conversations


class OtherServer(BaseHTTPRequestHandler):
    """Another make: refuses fields it does not know, counts nothing, ends the third answer with an error."""

    bodies: list[dict] = []
    context: int | None = None
    tokens_per_word = 0

    def do_GET(self):
        entry = {"id": "theirs", "max_model_len": self.context}
        self._send("application/json", json.dumps({"data": [entry]}).encode())

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if "ignore_eos" in body:
            self.send_error(400)
            return
        self.bodies.append(body)
        events = [{"choices": [{"delta": {"content": word}}]} for word in ("a ", "b")]
        events += [{"error": {"message": "out of memory"}}] * (len(self.bodies) == 4)
        words = sum(len(message["content"].split()) for message in body["messages"])
        events += [{"choices": [], "usage": {"prompt_tokens": words * self.tokens_per_word}}] * bool(
            self.tokens_per_word
        )
        self._send("text/event-stream", b"".join(b"data: " + json.dumps(one).encode() + b"\n\n" for one in events))

    def _send(self, kind, data):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


@pytest.fixture
def other():
    OtherServer.bodies, OtherServer.context, OtherServer.tokens_per_word = [], None, 0
    with ThreadingHTTPServer(("127.0.0.1", 0), OtherServer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()


@pytest.fixture
def bench(capsys):
    def call(*arguments):
        with pytest.raises(SystemExit) as end:
            cli.main(["bench", *arguments])
        out = capsys.readouterr()
        return end.value.code, out.out, out.err

    return call


def test_it_measures_this_server(bench, serve):
    line = "--profile chat --sequences 1,2 --requests 6 --tokens 8 --json".split()
    code, out, err = bench(serve("--fake").url, *line)
    assert code == 0, err
    report = json.loads(out)
    assert (report["model"], report["profile"]) == ("fake", "chat")
    for level, row in zip((1, 2), report["levels"]):
        assert (row["concurrency"], row["requests"], row["failed"]) == (level, 6, 0)
        assert row["output_tokens"] == 48 and row["cached_tokens"] > 0
        assert row["ttft_ms"]["p50"] > 0 and row["itl_ms"]["p99"] <= row["itl_ms"]["max"] <= row["e2e_ms"]["max"]


def test_it_measures_a_server_of_another_make_and_counts_failures(bench, other):
    code, out, _ = bench(other, "--profile", "batch", "--sequences", "1", "--requests", "4", "--json")
    row = json.loads(out)["levels"][0]
    assert code == 1 and (row["requests"], row["failed"], row["output_tokens"]) == (3, 1, 6)
    assert "out of memory" in row["first_error"]
    assert all(body["model"] == "theirs" and body["stream"] for body in OtherServer.bodies)


@pytest.mark.parametrize(("flags", "why"), [((), "wants a key: --api-key"), (("--api-key", "x"), "refuses this key")])
def test_a_server_with_keys_wants_one(bench, serve, tmp_path, flags, why):
    file = tmp_path / "keys.txt"
    file.write_text("secret")
    code, _, err = bench(serve("--fake", "--api-key-file", file).url, *flags)
    assert code == 78 and why in err and err.count("\n") == 1


def test_the_table_shows_rates_and_percentiles(bench, other):
    code, out, _ = bench(other, "--profile", "rag", "--sequences", "1", "--requests", "1", "--rate", "1000")
    assert code == 0 and "requests/s" in out and "first token, ms: p99" in out


@pytest.mark.parametrize("profile", PROFILES)
def test_every_profile_is_measured(bench, other, profile):
    code, out, err = bench(other, "--profile", profile, "--sequences", "1", "--requests", "2", "--json")
    row = json.loads(out)["levels"][0]
    assert code == 0 and (row["requests"], row["failed"]) == (2, 0), err
    sent = [sum(len(one["content"].split()) for one in body["messages"]) for body in OtherServer.bodies[1:]]
    assert max(sent) < PROFILES[profile].longest() and min(sent) >= PROFILES[profile].shared


def test_a_profile_that_is_longer_than_the_context_is_refused_before_anything_is_sent(bench, other):
    OtherServer.context = 4096
    code, _, err = bench(other, "--profile", "agents", "--sequences", "1")
    assert code == 78 and "profile agents needs a context of about 5012 tokens; theirs has 4096" in err
    assert not OtherServer.bodies


def test_so_is_one_whose_words_have_too_many_tokens(bench, other):
    """Every request of `rag` was refused by the server, whose tokenizer makes 2.5 tokens of a word."""
    OtherServer.context, OtherServer.tokens_per_word = 8192, 3
    code, _, err = bench(other, "--profile", "agents", "--sequences", "1")
    assert code == 78 and "profile agents needs a context of about 14012 tokens; theirs has 8192" in err
    assert len(OtherServer.bodies) == 1 and err.count("\n") == 1


def test_the_same_seed_sends_the_same_prompts(bench, other):
    for _ in range(2):
        bench(other, "--profile", "batch", "--sequences", "1", "--requests", "1", "--seed", "7")
    first, second = (OtherServer.bodies[i]["messages"] for i in (1, 3))
    assert first == second


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("http://127.0.0.1:9", "127.0.0.1:9: Connection refused"),
        ("http://127.0.0.1:9 --text setup.cfg", "--text: measures a model, not a URL"),
        ("--fake --requests 3", "--requests: needs the URL of a running server"),
        ("--fake --profile rag", "--profile: needs the URL of a running server"),
        ("http://127.0.0.1:9 --profile nonsense", "is not one of"),
        ("http://127.0.0.1:9 --sequences 0", "numbers from 1 to 256"),
    ],
)
def test_what_cannot_be_measured_says_why(bench, line, why, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "setup.cfg").write_text("x")
    code, _, err = bench(*line.split())
    assert code == 78 and why in err and err.count("\n") == 1


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_makes_the_requests_that_were_asked_for(name):
    made = list(conversations(PROFILES[name], 11, 1))
    assert sum(len(one.messages) for one in made) == 11
    assert len({one.system for one in made}) == 1
    assert made == list(conversations(PROFILES[name], 11, 1)) != list(conversations(PROFILES[name], 11, 2))


@pytest.mark.parametrize("level", [1, 8, 256])
@pytest.mark.parametrize("name", PROFILES)
def test_as_many_conversations_run_at_once_as_the_number_says(name, level):
    """Eight at once of `agents` were four: each conversation has eight requests, and 32 were sent."""
    requests = usual_requests(PROFILES[name], level)
    assert len(list(conversations(PROFILES[name], requests, 1))) >= 2 * level


def test_figures_are_of_the_answers_that_succeeded():
    good, bad = TimedRequest(sent=1.0), TimedRequest(sent=1.0)
    good.arrivals, good.prompt_tokens, good.completion_tokens = [1.5, 1.75, 2.0], 10, 5
    bad.error = "status 500"
    found = figures([good, bad], 2, 2.0)
    assert (found["requests"], found["failed"], found["first_error"]) == (1, 1, "status 500")
    assert (found["requests_per_second"], found["output_tokens_per_second"]) == (0.5, 2.5)
    assert found["ttft_ms"]["mean"] == 500 and found["itl_ms"]["max"] == 250 and found["tpot_ms"]["p50"] == 125


def test_percentiles_are_values_that_were_seen():
    assert percentiles([]) is None
    assert percentiles([i / 1000 for i in range(100)]) == {"mean": 49.5, "p50": 50, "p90": 90, "p99": 99, "max": 99}
