"""The command line: exit codes, one line for each refusal, and the commands on a fake or tiny model."""

from __future__ import annotations

import fcntl
import http.client
import json
import os
import pty
import re
import resource
import select
import signal
import socket
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from model.tiny_models import llama

from llamasrv import cli
from llamasrv.chat.round_trip import KINDS
from llamasrv.commands import bench, server
from llamasrv.commands.chat import split_url
from llamasrv.config import OPTIONS, check, paths
from llamasrv.domain.option import PREFIX
from llamasrv.engine.backend import context
from llamasrv.errors import ConfigError
from llamasrv.store import DailyUsage, StoreOptions, day_of, open_store


@pytest.fixture
def run(capsys, monkeypatch):
    """Runs a command in this process: (exit code, standard output, standard error)."""
    for name in [name for name in os.environ if name.startswith(PREFIX)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(check, "in_container", lambda: False)

    def call(*arguments):
        with pytest.raises(SystemExit) as end:
            cli.main([str(argument) for argument in arguments])
        out = capsys.readouterr()
        return end.value.code, out.out, out.err

    return call


@pytest.fixture
def tiny(tmp_path):
    return llama(tmp_path / "tiny.gguf")


def command(*arguments, **options):
    clean = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    return subprocess.run(
        [sys.executable, "-m", "llamasrv", *map(str, arguments)],
        env=clean,
        capture_output=True,
        text=True,
        timeout=100,
        **options,
    )


def one_line(code, out, err):
    """The refusal, which must be all that was printed."""
    assert out == "" and err.count("\n") == 1 and err.startswith("llamasrv: "), (out, err)
    return code, err.removeprefix("llamasrv: ").strip()


# Refusals


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (["serve", "--prot", "1"], 78, "--prot: unknown option; did you mean --port?"),
        (["serve", "--port", "x"], 78, "--port 'x': must be a whole number, 0 to 65535"),
        (["serve", "--port"], 78, "requires an argument"),
        (["serve", "--flash-attn", "of"], 78, "--flash-attn 'of': must be one of auto, on, off; did you mean off?"),
        (["serve", "--config", "/none.toml"], 78, "/none.toml: No such file or directory"),
        (["serve", "--model", "/none.gguf"], 78, "/none.gguf: No such file or directory"),
        (["serve", "/dev"], 78, "/dev: a folder, not a file; --models-dir /dev serves the models in it"),
        (["check", "/none.gguf"], 78, "/none.gguf: No such file or directory"),
        (["serve", "--fake", "--chat-template", "nope"], 78, "neither Jinja source nor one of bailing, "),
        (["serve", "--fake", "--chat-template-file", "/none"], 78, "'/none': No such file or directory"),
        (["serve", "--fake", "--api-key-file", "/none"], 78, "'/none': No such file or directory"),
        (["serve", "--fake", "--host", "0.0.0.0"], 78, "no API key is set"),
        (["serve", "demo", "more"], 64, "unexpected extra argument"),
        (["sevre"], 64, "No such command 'sevre'"),
        (["bench", "--fake"], 78, "no kernels"),
        (["bench", "m.gguf", "--sequences", "1,x"], 78, "must be numbers from 1 to 256"),
        (["chat", "ftp://host", "--fake"], 78, "not a valid server URL"),
    ],
)
def test_it_refuses(run, arguments, code, line):
    assert one_line(*run(*arguments))[0] == code
    assert line in one_line(*run(*arguments))[1]


def test_without_a_model_it_says_what_to_give(run, monkeypatch):
    monkeypatch.setattr(paths, "demo_model", lambda: None)
    code, line = one_line(*run("serve"))
    assert code == 78 and "--model FILE.gguf" in line


def test_a_port_in_use_is_an_error(run):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, line = one_line(*run("serve", "--fake", "--port", port))
    assert code == 78 and line == f"cannot listen on 127.0.0.1 port {port}: Address already in use"


@pytest.mark.parametrize("length", [0, 100, 2000])
def test_a_broken_model_file_is_an_error_with_a_reason(run, tiny, length):
    tiny.write_bytes(tiny.read_bytes()[:length])
    code, line = one_line(*run("serve", "--model", tiny))
    assert code == 78
    assert line.startswith(f"{tiny}: ") and ("empty" in line or "truncated" in line)


def test_a_wrong_option_ends_a_real_start_before_anything_is_loaded():
    began = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    done = command("serve", "--prot", "1")
    assert done.returncode == 78 and resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - began < 1
    assert done.stderr == "llamasrv: --prot: unknown option; did you mean --port?\n"


def test_a_broken_model_ends_a_real_start_without_a_traceback(tiny):
    tiny.write_bytes(b"GGUF" + bytes(100))
    done = command("serve", "--model", tiny)
    assert done.returncode == 78
    assert done.stderr.count("\n") == 1 and "Traceback" not in done.stderr


# Help


def test_all_of_the_help_shows_every_option_and_its_default(run):
    code, out, _ = run("serve", "--help-all")
    text = " ".join(out.split())
    assert code == 0
    for option in OPTIONS:
        assert all(flag in text for flag in option.flags if option.kind != "bool"), option.name
        assert option.long_flag in text and " ".join(option.help.split()) in text
    assert "[8080]" in text


def test_it_prints_the_version(run):
    assert re.fullmatch(r"llamasrv \d+\.\d+\.\d+\n", run("--version")[1])


@pytest.mark.parametrize("flag", ["-np", "-tb", "-ub", "-ngl", "-fa", "-ctk", "-ctv"])
def test_flags_of_llama_server_with_one_dash_are_known(run, flag):
    assert flag in run("serve", "--help-all")[1]
    value = {"-fa": "on", "-ctk": "q8_0", "-ctv": "q8_0"}.get(flag, "4")
    assert run("check", "--fake", flag, value)[0] == 0


# check


def test_check_shows_model_and_memory(run, tiny):
    code, out, _ = run("check", "--model", tiny, "-c", 1000, "--parallel", 4)
    assert code == 0
    assert re.search(r"served context\W+1024 tokens per sequence, 1024 cells", out)
    for name in ("architecture", "weights", "KV (1024 cells", "work buffers", "needed", "free on this machine"):
        assert name in out


@pytest.mark.parametrize(
    "arguments, line",
    [
        (["--device", "GPU7"], "unknown device 'GPU7'; "),
        (["--tensor-split", "1,1,1,1,1,1,1,1,1"], "--tensor-split names 9 devices; there are "),
        (["--main-gpu", "99"], "--main-gpu 99 does not exist; there are "),
        (["--override-tensor", "ffn=GPU7"], "unknown buffer type 'GPU7'; the types are CPU"),
        (["--override-tensor", "nothing_of_it=CPU"], "no tensor of "),
        (["--override-tensor", "(=CPU"], "--override-tensor '(=CPU': "),
        (["--tensor-split", "1,1", "--n-gpu-layers", "0"], "no layer is placed on a device"),
    ],
)
@pytest.mark.parametrize("command", ["check", "serve"])
def test_a_placement_that_the_machine_does_not_have_is_refused(run, tiny, command, arguments, line):
    code, told = one_line(*run(command, "--model", tiny, "--port", "0", *arguments))
    assert code == 78 and line in told


def test_check_renders_a_template_and_says_what_is_wrong_with_it(run):
    """It read the template, and a model whose template takes minutes passed."""
    code, _, err = run("check", "--chat-template", "{% for i in range(99999) %}{{ 'x' * 9999999 }}{% endfor %}")
    assert code == 78 and "few words" in err


def test_check_shows_which_turns_of_a_template_come_back(run):
    code, out, _ = run("check", "--chat-template", "chatml")
    trips = json.loads(out)["round_trip"]
    assert code == 0 and set(trips) == set(KINDS)
    assert trips["text"] == trips["call"] == "ok" and "lost" not in trips.values()


def test_check_says_whether_the_template_of_a_model_was_understood(run, tiny, tmp_path):
    """It said only that there is one."""
    code, out, _ = run("check", "--model", tiny)
    assert code == 0 and re.search(r"understood\W+yes", out) and "get_weather" in out
    assert json.loads(run("check", "--model", tiny, "--json")[1])["template"]["round_trip"]["call"] == "ok"


def test_check_refuses_what_serve_would_refuse(run, tiny):
    tiny.write_bytes(b"")
    assert one_line(*run("check", "--model", tiny))[0] == 78


def test_check_prints_the_settings_in_use_without_keys(run, tmp_path):
    path = tmp_path / "llamasrv.toml"
    path.write_text("[sampling]\ntemp = 0.3\n")
    code, out, _ = run("check", "--fake", "--print-config", "--config", path, "--api-key", "hush")
    assert code == 0 and "temp = 0.3" in out and "hush" not in out


# chat


def test_piped_chat_answers_once_and_plainly():
    done = command("chat", "--fake", input="Hello there")
    assert (done.returncode, done.stdout, done.stderr) == (0, "You said: Hello there\n", "")


def test_chat_answers_a_message_of_the_command_line(serve):
    """`llamasrv chat "Say hello"` took the message for a URL and ended in a traceback."""
    server = serve("--fake")
    done = command("chat", "--fake", "Say hello")
    assert (done.returncode, done.stdout, done.stderr) == (0, "You said: Say hello\n", "")
    done = command("chat", server.url, "Say", "it to him")
    assert (done.returncode, done.stdout, done.stderr) == (0, "You said: Say it to him\n", "")


@pytest.mark.parametrize(
    ("words", "url", "message"),
    [
        ((), None, None),
        (("hello",), None, "hello"),
        (("Say", "hello"), None, "Say hello"),
        (("http://host",), "http://host", None),
        (("https://host/v1", "Hi"), "https://host/v1", "Hi"),
        (("host.lan:8080",), "host.lan:8080", None),
        (("localhost",), "localhost", None),
        (("[::1]:8080", "Hi", "there"), "[::1]:8080", "Hi there"),
        (("note: this is text",), None, "note: this is text"),
        (("http://a page says so",), None, "http://a page says so"),
        (("ratio 4:3",), None, "ratio 4:3"),
    ],
)
def test_chat_tells_a_url_from_a_message(words, url, message):
    assert split_url(words) == (url, message)


def test_chat_talks_to_a_running_server(serve):
    server = serve("--fake", "--api-key", "k")
    done = command("chat", server.url, "--api-key", "k", input="Hi")
    assert (done.returncode, done.stdout) == (0, "You said: Hi\n")


def test_chat_tells_why_a_server_refused(serve):
    server = serve("--fake", "--api-key", "k")
    done = command("chat", server.url, "--api-key", "wrong", input="Hi")
    assert done.returncode == 1 and "key" in done.stderr.lower() and "Traceback" not in done.stderr


def test_chat_reports_that_no_server_answers():
    done = command("chat", "http://127.0.0.1:9", input="Hi")
    assert done.returncode == 1 and "refused" in done.stderr


class Terminal:
    """A command on a terminal: types lines, reads what is shown."""

    def __init__(self, *arguments):
        master, slave = pty.openpty()
        self.fd = master
        self.process = subprocess.Popen(
            [sys.executable, "-m", "llamasrv", *map(str, arguments)],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=self._as_a_shell_would,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
        )
        os.close(slave)
        self.raw = b""
        self.seen = 0

    @staticmethod
    def _as_a_shell_would():
        """So that Ctrl-C becomes a signal, and arrives even where the tests themselves run in the background."""
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    def until(self, text, timeout=30):
        """Read until `text` is shown; what was shown since the last call, up to it."""
        end = time.monotonic() + timeout
        while True:
            shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.raw.decode("utf-8", "replace"))
            at = shown.find(text, self.seen)
            if at >= 0:
                before, self.seen = self.seen, at + len(text)
                return shown[before : self.seen]
            assert time.monotonic() < end, shown[self.seen :]
            if select.select([self.fd], [], [], 0.1)[0]:
                self.raw += os.read(self.fd, 65536)

    def type(self, line):
        os.write(self.fd, line.encode() + b"\n")


def test_chat_in_a_terminal_keeps_the_conversation_and_knows_its_commands(serve, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    server = serve("--fake")
    terminal = Terminal("chat", server.url)
    try:
        terminal.until("you ›")
        terminal.type("first words")
        assert "You said: first words" in terminal.until("tokens/s")
        terminal.type("/help")
        terminal.until("forget the conversation")
        terminal.type("/system Be brief")
        terminal.until("system prompt: Be brief")
        terminal.type("\x1b[200~two\nlines\x1b[201~")
        assert re.search(r"You said: two\s+lines", terminal.until("tokens/s"))
        terminal.type("/exit")
        assert terminal.process.wait(20) == 0
    finally:
        terminal.process.kill()
        terminal.process.wait()
        os.close(terminal.fd)


def test_ctrl_c_in_chat_stops_the_answer_and_not_the_conversation(serve, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    server = serve("--fake")
    terminal = Terminal("chat", server.url)
    try:
        terminal.until("you ›")
        terminal.type("x" * 3000)
        terminal.until("You said:")
        os.write(terminal.fd, b"\x03")
        terminal.until("stopped")
        terminal.until("you ›")
        terminal.type("still there?")
        terminal.until("You said: still there?")
        terminal.until("you ›")
        end = time.monotonic() + 20
        while terminal.process.poll() is None:  # a key that comes before the line editor is ready is lost
            assert time.monotonic() < end
            os.write(terminal.fd, b"\x04")
            time.sleep(0.1)
        assert terminal.process.returncode == 0
    finally:
        terminal.process.kill()
        terminal.process.wait()
        os.close(terminal.fd)


# bench


def test_bench_compares_the_kernels_with_the_server(tiny):
    done = command("bench", tiny, "--sequences", "1,2", "--tokens", "8", "-c", "512", "-t", "1")
    assert done.returncode == 0, done.stderr
    assert "kernels, tokens/s" in done.stdout and "over HTTP, tokens/s" in done.stdout
    rows = re.findall(r"│\s+(\d+) │\s+([\d,.]+) │\s+([\d,.]+) │\s+([\d.]+) │", done.stdout)
    assert [row[0] for row in rows] == ["1", "2"]
    assert all(float(value.replace(",", "")) > 0 for row in rows for value in row[1:3])


def test_bench_loads_a_model_once_at_a_time_where_two_do_not_fit(run, tiny, monkeypatch):
    loaded, beside = set(), []
    open_model, running = context.open_model, server.running

    def open_and_count(*arguments):
        kernels = open_model(*arguments)
        loaded.add(kernels)
        monkeypatch.setattr(kernels, "close", lambda close=kernels.close: (loaded.remove(kernels), close()))
        return kernels

    monkeypatch.setattr(bench.memory, "available_memory", lambda: 0)
    monkeypatch.setattr(context, "open_model", open_and_count)
    monkeypatch.setattr(server, "running", lambda settings: beside.append(len(loaded)) or running(settings))
    code, out, err = run("bench", tiny, "--sequences", "1,2", "--tokens", "8", "-c", "512", "-np", "2", "-t", "1")
    assert code == 0 and beside and not any(beside), err
    assert len(re.findall(r"│\s+\d+ │", out)) == 2


@pytest.mark.parametrize("cut", [1, 7, 64, 10_000])
def test_bench_counts_what_was_delivered_however_it_arrives(cut):
    """The server's own count of tokens, over the time in which all streams had begun and none had ended."""
    events = [b'data: {"choices":[{"text":"a"}],"usage":null}\n\n'] * 4
    events += [b'data: {"choices":[],"usage":{"completion_tokens":8}}\n\n', b"data: [DONE]\n\n"]
    wire = b"HTTP/1.1 200 OK\r\n\r\n" + b"".join(events)
    client = bench.BenchClient()
    for start in range(0, len(wire), cut):
        client.take(wire[start : start + cut])
    assert client.num_tokens() == 8
    shares = [share for _, share in client.progress()]
    assert shares == sorted(set(shares)) and shares[-1] == 1 and set(shares) <= {0.25, 0.5, 0.75, 1}
    assert cut > 7 or len(shares) == 4


def test_bench_counts_every_step_when_the_last_tokens_arrive_one_by_one():
    """Two streams of a token each 0.1 s: 20 tokens/s, although the second is written a little after the first."""
    clients = []
    for late in (0.0, 0.002):
        client = bench.BenchClient(body=bytearray(b"HTTP/1.1 200 OK\r\n\r\n"))
        client.body += bench.EVENT + b'"usage":{"completion_tokens":10}}\n'
        client.arrivals = [(0.1 * i + late, i) for i in range(1, 11)]
        client.num_events = 11
        clients.append(client)
    assert bench.rate(clients) == pytest.approx(20, rel=0.01)


def test_bench_reports_an_error_of_the_server():
    client = bench.BenchClient()
    client.take(b"HTTP/1.1 401 Unauthorized\r\n\r\n{}")
    with pytest.raises(ConfigError, match="401 Unauthorized"):
        client.num_tokens()


# serve, with a real model


def test_serve_answers_with_a_real_model(serve, tiny):
    server = serve("--model", tiny, "--alias", "tiny", "--parallel", 2)
    assert re.search(r"serves tiny .*context 2048 tokens, 2 in parallel, \d+ threads", server.wait_for("serves"))
    connection = http.client.HTTPConnection(*server.address, timeout=30)
    body = {"model": "tiny", "prompt": "Once", "max_tokens": 5, "ignore_eos": True}
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    reply = json.loads(connection.getresponse().read())
    connection.close()
    assert reply["usage"]["completion_tokens"] == 5


def test_shipped_files_are_found():
    assert (paths.templates_dir() / "chat" / "chatml.jinja").is_file()
    assert (paths.conf_dir() / "gunicorn.conf.py").is_file()
    assert paths.demo_model() is None or paths.demo_model().is_file()
    assert Path(paths.__file__).parents[1].name == "llamasrv"


@pytest.mark.skipif(paths.demo_model() is None, reason="this build carries no demonstration model")
def test_serve_without_a_model_serves_the_demonstration_and_says_so(serve):
    server = serve()
    assert "serves demo " in server.wait_for("serves")
    server.wait_for("llamasrv serve --model FILE.gguf")
    connection = http.client.HTTPConnection(*server.address, timeout=30)
    connection.request("GET", "/props")
    assert "demonstration model" in json.loads(connection.getresponse().read())["notice"]
    connection.close()


def test_the_operator_bounds_the_length_of_answers(serve):
    server = serve("--fake", "--max-answer-tokens", 4)
    connection = http.client.HTTPConnection(*server.address, timeout=30)
    for wish in ({}, {"max_tokens": 100}, {"max_tokens": 2}):
        connection.request("POST", "/v1/completions", json.dumps({"prompt": "Hello", **wish}))
        reply = json.loads(connection.getresponse().read())
        assert reply["usage"]["completion_tokens"] == min(4, wish.get("max_tokens", 4))
    connection.close()


def test_the_operator_says_how_long_an_answer_is_where_the_request_does_not(serve):
    """llama-server's --n-predict: a request may ask for more."""
    server = serve("--fake", "--n-predict", 4)
    connection = http.client.HTTPConnection(*server.address, timeout=30)
    for wish, count in (({}, 4), ({"max_tokens": 9}, 9), ({"max_tokens": 2}, 2)):
        connection.request("POST", "/v1/completions", json.dumps({"prompt": "Hello", "ignore_eos": True, **wish}))
        assert json.loads(connection.getresponse().read())["usage"]["completion_tokens"] == count
    connection.close()


def test_doctor_shows_facts_for_a_report_and_no_secrets(run, tiny, tmp_path):
    log = tmp_path / "log"
    log.write_text("x ERROR an old one\nx WARNING not that\nx ERROR the last one\nx INFO nor that\n")
    code, out, _ = run("doctor", "--model", tiny, "--api-key", "sk-secret", "--log-file", log, "--port", "1", "-t", "1")
    assert code == 0 and "sk-secret" not in out
    for told in (
        "llama-cpp-python 0.",
        "CPUs",
        "LLAMASRV_API_KEY=***",
        f"{tiny.stem}: ",
        "no server responds at",
        "the last one",
    ):
        assert told in out, told
    assert "an old one" not in out and "not that" not in out


def test_usage_is_a_table_by_key_and_model(run, tmp_path):
    url = f"sqlite:///{tmp_path}/responses.db"
    store = open_store(url, StoreOptions())
    store.add_usage([DailyUsage(day_of(time.time()), "ann", "m", 2, 1200, 100, 30, 3600.0)])
    store.close()
    code, out, _ = run("usage", "--store", url)
    assert code == 0 and all(told in out for told in ("ann", "1,200", "1.00")) and "day" not in out
    assert "day" in run("usage", "--store", url, "--by", "day,key")[1]
    assert run("usage", "--store", url, "--by", "colour")[0] == 78
    assert run("usage", "--store", "memory")[0] == 78


def test_usage_has_costs_where_models_have_prices(run, tiny, tmp_path):
    store = open_store(url := f"sqlite:///{tmp_path}/responses.db", StoreOptions())
    day = day_of(time.time())
    store.add_usage(
        [
            DailyUsage(day, "ann", "paid", 1, 1_000_000, 200_000, 500_000, 1.0),
            DailyUsage(day, "ann", "free", 1, 1_000, 0, 0, 1.0),
        ]
    )
    store.close()
    config = tmp_path / "llamasrv.toml"
    config.write_text(f"""
        server.currency = "EUR"
        models.paid = {{path = "{tiny}", prices = {{input = 2, cached = 0.5, output = 4}}}}
        models.free = {{path = "{tiny}"}}
    """)
    wish = ("usage", "--store", url, "--config", config)
    code, out, _ = run(*wish)
    assert code == 0 and "cost (EUR)" in out and "3.7000" in out
    by_model = {row["model"]: row["cost"] for row in json.loads(run(*wish, "--json")[1])}
    assert by_model == {"paid": pytest.approx(3.7), "free": None}
    assert json.loads(run(*wish, "--by", "key", "--json")[1])[0].items() >= {"cost": 3.7, "currency": "EUR"}.items()


def test_json_has_what_the_tables_have(run, tiny, tmp_path):
    store = open_store(url := f"sqlite:///{tmp_path}/responses.db", StoreOptions())
    store.add_usage([DailyUsage(day_of(time.time()), "ann", "m", 2, 1200, 100, 30, 3600.0)])
    store.close()

    def answer(*arguments):
        code, out, _ = run(*arguments, "--json")
        assert code == 0
        return json.loads(out)

    (row,) = answer("usage", "--store", url)
    assert row == {
        "key": "ann",
        "model": "m",
        "requests": 2,
        "prompt_tokens": 1200,
        "cached_tokens": 100,
        "generated_tokens": 30,
        "seconds": 3600.0,
        "cost": None,
        "currency": "USD",
    }
    (model,) = answer("models", "--model", tiny, "--port", "1")
    assert (model["name"], model["state"], model["size"]) == ("tiny", "no server", tiny.stat().st_size)
    checked = answer("check", "--model", tiny)
    assert checked["valid"] and checked["model"]["architecture"] == "llama"
    assert 0 < checked["memory"]["devices"]["host"]["needed"] < checked["memory"]["devices"]["host"]["may_use"]
    assert answer("check", "--fake") == {"valid": True}
    assert answer("doctor", "--model", tiny, "--port", "1")["models"][0].startswith("tiny: llama")
    (level,) = answer("bench", tiny, "--sequences", "1", "--tokens", "8")["levels"]
    assert level["sequences"] == 1 and level["kernels"] > 0 and level["ratio_min"] <= level["ratio"]
