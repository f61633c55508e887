"""What people type first, coming from Ollama, llama-server, vLLM or LM Studio, on models that are on the disk already."""

from __future__ import annotations

import io
import json
import os
import random
import subprocess
import sys
import threading
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
import store_homes
from model.tiny_models import llama
from models.test_stores import OllamaStore

from llamasrv import cli, startup
from llamasrv.config import OPTIONS, load, paths
from llamasrv.config.foreign import foreign
from llamasrv.domain.option import PREFIX
from llamasrv.startup import model_list

UNANSWERED = "http://127.0.0.1:9"


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home folder with the demonstration model in Ollama's store and in the models folder."""
    store_homes.move_in(monkeypatch, tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    demo = paths.demo_model().read_bytes()
    store = OllamaStore(tmp_path / ".ollama" / "models")
    layers = [("model", store.blob(demo)), ("system", store.blob(b"Be brief."))]
    store.manifest("registry.ollama.ai/library/llama3.2/latest", layers)
    store.manifest("registry.ollama.ai/library/llama3.2/3b", [*layers, ("params", store.blob(b'{"top_k": 7}'))])
    folder = paths.models_dir() / "owner" / "pulled-GGUF"
    folder.mkdir(parents=True)
    (folder / "Pulled-Q8_0.gguf").write_bytes(demo)
    return tmp_path


@pytest.fixture
def run(home, capsys):
    """Runs a command in this process: (exit code, standard output, standard error)."""

    def call(*arguments):
        with pytest.raises(SystemExit) as end:
            cli.main(list(map(str, arguments)))
        out = capsys.readouterr()
        return end.value.code, out.out, out.err

    return call


def test_ls_shows_where_each_model_comes_from(run):
    code, out, _ = run("ls", "--json", "--port", "9")
    assert code == 0
    origins = {one["name"]: one["origin"] for one in json.loads(out)}
    assert origins == {"Pulled:Q8_0": "folder", "llama3.2:latest": "ollama", "llama3.2:3b": "ollama"}


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("llama3.2", "llama3.2:latest"),
        ("Llama3.2:3B", "llama3.2:3b"),
        ("registry.ollama.ai/library/llama3.2:3b", "llama3.2:3b"),
        ("pulled", "Pulled:Q8_0"),
        ("owner/pulled-GGUF", "Pulled:Q8_0"),
        ("pull", "Pulled:Q8_0"),
        ("demo", "demo"),
    ],
)
def test_a_model_is_found_by_name_and_by_its_unique_beginning(run, name, full):
    code, out, err = run("show", name, "--json", "--port", "9")
    assert code == 0, err
    assert json.loads(out)["name"] == full


@pytest.mark.parametrize(
    "name", ["hf.co/acme/eyes:Q8_0", "hf.co/acme/eyes", "hf:acme/eyes:q8_0", "hf:owner/pulled-GGUF"]
)
def test_a_repository_that_is_on_the_disk_is_not_downloaded(run, home, name):
    """Ollama lists what it has pulled from the Hub as hf.co/..., and that was refused."""
    store = OllamaStore(home / ".ollama" / "models")
    store.manifest("hf.co/acme/eyes/Q8_0", [("model", store.blob(paths.demo_model().read_bytes()))])
    code, out, err = run("show", name, "--json", "--port", "9")
    assert code == 0, err
    assert json.loads(out)["name"] in ("hf.co/acme/eyes:Q8_0", "owner/pulled-GGUF")


def test_names_of_the_list_come_before_what_files_say_of_themselves(run, home):
    store = OllamaStore(home / ".ollama" / "models")
    other = llama(home / "other.gguf")  # says that it is "tiny"
    store.manifest("registry.ollama.ai/library/tiny-chat/latest", [("model", store.blob(other.read_bytes()))])
    (paths.models_dir() / "elsewhere-F32.gguf").write_bytes(llama(home / "seed.gguf", seed=5).read_bytes())
    assert json.loads(run("show", "tin", "--json", "--port", "9")[1])["name"] == "tiny-chat:latest"


def test_a_model_of_ollama_is_served_with_its_system_prompt_and_parameters(run):
    facts = json.loads(run("show", "llama3.2:3b", "--json")[1])
    assert facts["system"] == "Be brief." and facts["sampling"] == {"top_k": 7}


def test_an_ambiguous_beginning_names_the_candidates(run, home):
    extra = paths.models_dir() / "owner" / "pulled-GGUF" / "Pulled-F16.gguf"
    extra.write_bytes(paths.demo_model().read_bytes())
    code, _, err = run("check", "--model", "pul")
    assert code == 78 and "Pulled:F16, Pulled:Q8_0" in err and "give more of it" in err


def test_ollamas_own_store_may_be_the_models_folder(run, home):
    """It silently served the demonstration model."""
    code, out, _ = run("models", "--json", "--models-dir", home / ".ollama" / "models", "--port", "9")
    assert code == 0 and {one["name"] for one in json.loads(out)} == {"llama3.2:latest", "llama3.2:3b"}


def test_models_of_other_programs_are_served_on_request(run):
    names = lambda *more: {one["name"] for one in json.loads(run("models", "--json", "--port", "9", *more)[1])}  # noqa: E731
    assert names() == {"Pulled:Q8_0"}
    assert names("--models-from", "ollama") == {"Pulled:Q8_0", "llama3.2:latest", "llama3.2:3b"}
    assert names("--models-from", "lmstudio,hub") == {"Pulled:Q8_0"}


def test_a_modelfile_makes_a_model(run, home):
    (home / "Modelfile").write_text(
        'FROM llama3.2:3b\n# comment\nPARAMETER temperature 0.5\nPARAMETER stop "<x>"\nPARAMETER stop END\n'
        'SYSTEM """Two\n"lines"."""\nMESSAGE user Hi\nMESSAGE assistant """Ahoy\nthere"""\n'
    )
    assert run("create", "pirate", "-f", home / "Modelfile")[0] == 0
    facts = json.loads(run("show", "pirate", "--json")[1])
    assert facts["system"] == 'Two\n"lines".' and facts["stop"] == ["<x>", "END"]
    assert facts["sampling"] == {"top_k": 7, "temperature": 0.5} and "Ahoy\\nthere" in facts["template"]


def test_a_created_model_is_found_like_any_other(run, home):
    """`run` and `rm` knew none that `create` had made."""
    (home / "Modelfile").write_text('FROM llama3.2:3b\nSYSTEM Arr.\nPARAMETER num_ctx 512\nPARAMETER stop "<x>"\n')
    run("create", "Pirate", "-f", home / "Modelfile")
    facts = json.loads(run("check", "--model", "pir", "--json")[1])["model"]
    assert facts["name"] == "Pirate" and "512 cells" in facts["served context"]
    model = model_list.the_one(startup.filled_in(load({"model_path": "pirate"}, environ={})))
    assert model.settings.derived.stop == ("<x>",) and "Arr." in model.settings.chat_template
    assert model.settings.sampling == {"top_k": 7}
    (home / "again").write_text(run("show", "pirate", "--modelfile")[1])
    run("create", "again", "-f", home / "again")
    assert run("show", "again", "--modelfile")[1] == (home / "again").read_text()
    assert run("rm", "-y", "pirate", "again")[0] == 0 and "pirate" not in run("ls", "--port", "9")[1].lower()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("FRUM x", "line 1: 'FRUM' is no instruction"),
        ("SYSTEM Hi", "FROM is missing"),
        ("FROM nothing", "no local model 'nothing'"),
        ("FROM llama3.2\nPARAMETER temperature hot", 'option "temperature" must be of type'),
        ("FROM llama3.2\nTEMPLATE {{ .Prompt }}", "written in Go's syntax"),
        ("FROM llama3.2\nADAPTER x.gguf", "line 2: ADAPTER: give adapters to the server"),
        ('FROM llama3.2\nMESSAGE user """Hi', '""" without its end'),
        ("FROM", "FROM without a value"),
    ],
)
def test_what_a_modelfile_cannot_have_is_refused_with_its_place(run, home, text, line):
    (home / "Modelfile").write_text(text)
    code, out, err = run("create", "pirate", "-f", home / "Modelfile")
    assert code == 78 and out == "" and line in err and err.count("\n") == 1


def test_models_of_other_programs_are_not_deleted(run, home):
    code, _, err = run("rm", "-y", "llama3.2")
    assert code == 78 and "belongs to ollama" in err
    assert run("rm", "-y", "pulled")[0] == 0 and not list(paths.models_dir().rglob("*.gguf"))


# The ten first commands of each program, what they come to here (an exit code, a part of the output), and slips. What
# `serve` would serve is printed by the fixture `served`.
FIRST_COMMANDS = [
    # Ollama
    ("serve", 0, "serves None on 8080"),
    ("pull 127.0.0.1:9/library/llama3.2", 69, "cannot reach 127.0.0.1:9"),
    ("run nothing", 78, "no file and no local model 'nothing'; here: Pulled:Q8_0, llama3.2"),
    ("list --port 9", 0, "llama3.2:3b"),
    ("ps --port 9", 69, "no server responds at http://127.0.0.1:9; start one with `llamasrv serve`"),
    ("show llama3.2 --port 9", 0, "quantization"),
    ("stop llama3.2 --port 9", 69, "no server responds"),
    ("rm nothing -y", 78, "no model 'nothing'"),
    ("create mine", 78, "Modelfile"),
    ("create mine -q q4_0", 78, "`llamasrv quantize IN OUT TYPE`"),
    ("show llama3.2:3b --modelfile --port 9", 0, "PARAMETER top_k 7"),
    ("show llama3.2:3b --system --port 9", 0, "Be brief."),
    ("list llama --port 9", 0, "llama3.2:latest"),
    ("run llama3.2 --keepalive 5m Hi", 78, "`llamasrv serve --keep-alive SECONDS`"),
    ("run llama3.2 --format xml Hi", 78, "must be json or a JSON schema"),
    ("run llama3.2 --think=much Hi", 78, "must be one of true, false, none, minimal, low"),
    ("pull --insecure x", 78, "all others over HTTPS"),
    ("cp a b", 64, "llamasrv create NAME --from MODEL"),
    ("push me/model", 64, "models are not uploaded from here"),
    ("signin", 64, "this server has no account"),
    ("-v", 0, "llamasrv "),
    ("whoami", 64, "this server has no account"),
    ("embed llama3.2 Hi", 64, "POST /v1/embeddings"),
    ("run llama3.2 --insecure Hi", 78, "all others over HTTPS"),
    ("run llama3.2 --dimensions 3 Hi", 78, "POST /v1/embeddings"),
    ("run llama3.2 --experimental Hi", 78, "`llamasrv serve --tools`"),
    ("stop", 78, "Missing argument 'MODEL'; `llamasrv help stop` shows how"),
    # llama-server
    ("-m demo.gguf", 0, "serves demo.gguf on 8080"),
    ("demo.gguf", 0, "serves demo.gguf on 8080"),
    ("-hf owner/model:Q4_K_M", 0, "serves owner/model:Q4_K_M on 8080"),
    ("-m demo.gguf -c 8192 -ngl 99 -fa on --jinja", 0, "serves demo.gguf on 8080"),
    ("-m demo.gguf -np 4 --cont-batching --metrics --slots", 0, "serves demo.gguf on 8080"),
    ("-m demo.gguf --host 127.0.0.1 --port 8081 --api-key k", 0, "serves demo.gguf on 8081"),
    ("-m demo.gguf --embedding --pooling mean -ub 4096", 0, "serves demo.gguf on 8080"),
    ("-m demo.gguf --mmproj eyes.gguf --no-mmap --mlock", 0, "serves demo.gguf on 8080"),
    ("--list-devices", 0, ""),
    ("--version", 0, "llamasrv "),
    ("-m demo.gguf -p Hi -n 32", 78, "`llamasrv run MODEL TEXT`"),
    ("-m demo.gguf -cnv", 78, "`llamasrv run MODEL` chats"),
    ("-m demo.gguf --grammar x", 78, "send grammar with the request"),
    # vLLM
    ("serve pulled", 0, "serves pulled on 8080"),
    ("serve pulled --max-model-len 8192 --dtype auto --gpu-memory-utilization 0.9", 0, "serves pulled on 8080"),
    ("serve pulled --served-model-name a b --api-key k --port 8000", 0, "serves pulled as a, b on 8000"),
    ("serve pulled -tp 2 --enable-auto-tool-choice --tool-call-parser hermes", 0, "serves pulled on 8080"),
    ("serve pulled --enable-lora --lora-modules sql=sql.gguf", 0, "serves pulled on 8080"),
    ("serve pulled --quantization awq", 78, "choose with hf:OWNER/REPO:QUANT"),
    ("serve Qwen/Qwen3-8B", 0, "serves Qwen/Qwen3-8B on 8080"),
    ("check --model Qwen/Qwen3-8B", 78, "`llamasrv pull hf:Qwen/Qwen3-8B:QUANT` downloads one"),
    ("bench nothing.gguf", 78, "nothing.gguf: No such file or directory"),
    ("complete", 64, "llamasrv run MODEL TEXT"),
    ("serve --help=all", 0, "Topic engine"),
    ("bench serve --model x", 78, "`llamasrv bench URL` measures a running server"),
    ("bench http://[::1", 78, "http://[::1: not a valid server URL"),
    ("chat --url http://127.0.0.1:9 -q Hi", 1, "http://127.0.0.1:9: Connection refused"),
    ("run-batch -i in.jsonl", 64, "POST /v1/batches"),
    ("collect-env", 64, "llamasrv doctor"),
    # LM Studio
    ("server start --port 1234", 64, "use `llamasrv serve`"),
    ("server status", 64, "llamasrv ps"),
    ("ls --port 9", 0, "llama3.2:3b"),
    ("ls --llm --port 9", 0, "llama3.2:3b"),
    ("ls --embedding --port 9", 0, "capabilities"),
    ("chat --url http://127.0.0.1:9 -p Hi --system-prompt short", 1, "Connection refused"),
    ("runtime ls", 64, "llamasrv doctor"),
    ("load x --gpu max", 64, "llamasrv serve MODEL"),
    ("serve pulled --gpu max --context-length 4096 --identifier me", 0, "serves pulled as me on 8080"),
    ("unload --all", 64, "llamasrv stop MODEL"),
    ("get x", 64, "llamasrv pull"),
    ("status", 64, "llamasrv ps"),
    ("import x.bin", 64, "llamasrv serve FILE.gguf"),
    ("log stream", 64, "--log-file FILE"),
    ("version", 64, "llamasrv --version"),
    ("chat --stats", 78, "`llamasrv run --verbose MODEL TEXT`"),
    ("dev", 64, "use `llamasrv serve`"),
    ("clone x", 64, "use `llamasrv pull NAME`"),
    ("bootstrap", 64, "llamasrv doctor"),
    ("link enable", 64, "--host ADDRESS --api-key-file FILE"),
    # slips
    ("help", 0, "Usual commands"),
    ("help xyzzy", 78, "nothing in the manual has these words"),
    ("sevre", 64, "did you mean serve?"),
    ("", 0, "Usual commands"),
    ("llama3.2:3b", 64, "use `llamasrv run llama3.2:3b`"),
    ("serve a --model b", 78, "two models: a and --model b; give one of them"),
    ("run", 78, "run: name a model: Pulled:Q8_0, llama3.2"),
    ("models rm nothing -y", 78, "no model 'nothing'"),
    ("check --model nothing.gguf", 78, "nothing.gguf: No such file or directory"),
]


@pytest.fixture
def served(monkeypatch):
    """`serve` prints what it would serve."""

    def serve(settings):
        name = settings.model.path or settings.model.hf_repo
        print(f"serves {name}{' as ' + ', '.join(settings.model.alias) if settings.model.alias else ''}", end=" ")
        print(f"on {settings.server.port}")

    monkeypatch.setattr("llamasrv.commands.serve.run", serve)


@pytest.mark.parametrize(("line", "code", "part"), FIRST_COMMANDS, ids=[line for line, *_ in FIRST_COMMANDS])
def test_the_first_commands_of_other_programs_work_or_say_what_to_type(run, served, line, code, part):
    status, out, err = run(*line.split())
    assert status == code and part in out + err
    assert code == 0 or err.count("\n") == 1


def test_ls_cuts_nothing_in_a_narrow_terminal(run, monkeypatch):
    """At 80 columns the abilities were cut, and a program that reads the list got folded lines."""
    assert "completion, tools, thinking" in run("ls", "--port", "9")[1]
    monkeypatch.setenv("COLUMNS", "60")
    assert "completion, tools, thinking" in run("ls", "--port", "9")[1]
    monkeypatch.setattr("rich.console.Console.is_terminal", True)
    out = run("ls", "--port", "9")[1]
    assert "…" not in out and all(word in out for word in ("completion,", "thinking,", "llama3.2:latest"))


def test_what_is_piped_in_comes_before_the_text(run, monkeypatch, tmp_path):
    (tmp_path / "in").write_text("Some text.\n")
    monkeypatch.setattr("llamasrv.commands.chat.run_model", lambda *given: print(given[1:4]))
    with (tmp_path / "in").open() as stream:
        monkeypatch.setattr("sys.stdin", stream)
        assert run("run", "llama3.2", "Say", "it")[1] == "('llama3.2', 'Some text.\\n\\nSay it', None)\n"


@pytest.mark.parametrize(
    ("stream", "line"),
    [(None, "standard input is closed"), (io.TextIOWrapper(io.BytesIO(b"\xff")), "standard input: not UTF-8 text")],
)
def test_a_standard_input_that_cannot_be_read_is_one_line(run, monkeypatch, stream, line):
    monkeypatch.setattr("sys.stdin", stream)
    monkeypatch.setattr("llamasrv.commands.server.running", lambda settings: nullcontext("http://127.0.0.1:9"))
    code, _, err = run("run", "llama3.2", "--port", "9")
    assert (code, err) == (78, f"llamasrv: {line}\n")


def test_run_prints_the_answer(home):
    clean = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)} | {"HOME": str(home)}
    done = subprocess.run(
        [sys.executable, "-m", "llamasrv", "run", "llama3.2", "Say hello", "--temp", "0", "--port", "9"],
        env=clean,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0 and done.stdout.lower().startswith("hello"), done.stderr


def test_no_command_line_ends_in_a_traceback(run, monkeypatch):
    """Random words from the vocabulary of all flags; commands that would start something only parse."""
    monkeypatch.setattr("llamasrv.startup.prepare", lambda settings: settings)
    monkeypatch.setattr("llamasrv.commands.serve.run", lambda settings: None)
    rng = random.Random(7)
    flags = [flag for option in OPTIONS for flag in option.flags]
    flags += [name for flag in foreign() for name in (*flag.names, *flag.negations)]
    words = ["", "-", "x", "0", "-1", "1e999", "auto", "a=b", "é", "{", "/", "llama3.2", "999999999999999999999", "--"]
    commands = ["serve", "models", "ls", "show", "ps", "stop", "create", "key", "usage", "parse", "nonsense"]
    for _ in range(500):
        line = [rng.choice(commands)] + [rng.choice(rng.choice([flags, words])) for _ in range(rng.randrange(5))]
        if "--port" not in line:
            line += ["--port", "9"]
        assert run(*line)[0] in (0, 1, 2, 64, 69, 78), line


@pytest.mark.parametrize(
    ("target", "words", "code", "line"),
    [
        ("full", ["help"], 74, "llamasrv: standard output: No space left"),
        ("full", [], 74, "llamasrv: standard output: No space left"),
        ("pipe", ["help"], 1, ""),
        ("pipe", [], 1, ""),
    ],
)
def test_output_that_cannot_be_written_is_no_traceback(target, words, code, line):
    """`llamasrv help | head -1`, a full disk, and the help of a bare `llamasrv` there ended in one."""
    into = os.open("/dev/full", os.O_WRONLY)
    if target == "pipe":
        reader, into = os.pipe()
        os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "llamasrv", *words], stdout=into, stderr=subprocess.PIPE, text=True, timeout=60
    )
    os.close(into)
    assert (done.returncode, done.stderr.count("\n")) == (code, bool(line)) and done.stderr.startswith(line)


def test_a_path_that_is_not_utf_8_is_shown(home):
    """`show` ended in a traceback where the terminal's encoding is UTF-8."""
    (paths.models_dir() / os.fsdecode(b"bad\xff-Q8_0.gguf")).write_bytes(paths.demo_model().read_bytes())
    done = subprocess.run(
        [sys.executable, "-m", "llamasrv", "show", "bad", "--port", "9"],
        env={"HOME": str(home), "PATH": "", "PYTHONIOENCODING": "utf-8:strict"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "") and "bad_:Q8_0" in done.stdout and "bad\\udcff" in done.stdout


def test_an_error_that_cannot_be_printed_keeps_its_exit_code():
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "llamasrv", "nonsense"], stdout=subprocess.PIPE, stderr=full, text=True, timeout=60
        )
    assert (done.returncode, done.stdout) == (64, "")


@pytest.mark.parametrize("reply", [b"[]", b"no JSON", b'{"data": 7}', b'{"data": [7, {"id": null}, {"name": "x"}]}'])
def test_ls_bears_another_program_at_the_address(run, reply):
    class Other(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(reply)

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Other) as other:
        threading.Thread(target=other.handle_request, daemon=True).start()
        code, out, _ = run("ls", "--port", other.server_port)
    assert code == 0
    assert "no server" in out
