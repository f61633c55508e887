"""Documents that can fail: tables, routes, the map, commands, examples and versions against the code."""

from __future__ import annotations

import ast
import configparser
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from llamasrv import cli
from llamasrv.config import docgen, keys, load, manual
from llamasrv.domain.events import Usage
from llamasrv.domain.key import SCOPES
from llamasrv.engine.backend.fake import open_fake_backend
from llamasrv.engine.engine import Engine
from llamasrv.models.model import Model
from llamasrv.models.registry import Registry
from llamasrv.web.app import create_app
from llamasrv.web.ops.request_log import RequestLog, RequestStats
from llamasrv.web.service import Service

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text("utf-8")
ENDPOINTS = (ROOT / "llamasrv/protocols/README.md").read_text("utf-8")
GUIDE = (ROOT / "conf/README.md").read_text("utf-8")
MANUAL = "\n".join(manual.page_text(page) for page in manual.GUIDE)
DOCUMENTS = README + ENDPOINTS + MANUAL


def blocks(language, text=DOCUMENTS):
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def section(title, text):
    return re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)[1]


@pytest.mark.parametrize("name", docgen.DOCUMENTS)
def test_the_tables_of_a_document_are_those_of_the_code(name):
    """Renew them with `python -m llamasrv.config.docgen`."""
    text = (ROOT / name).read_text("utf-8")
    assert docgen.renewed(name, text) == text
    assert all(f"<!-- {table} -->" in text for table in docgen.DOCUMENTS[name])


def test_the_example_configuration_is_that_of_the_code():
    assert (ROOT / "conf/llamasrv.toml").read_text("utf-8") == docgen.as_toml()


def test_the_document_of_endpoints_names_every_route_and_no_other():
    app = create_app(Service.of(Registry([Model("fake", engine=Engine(open_fake_backend))])))
    served = {(m, r.rule) for r in app.url_map.iter_rules() for m in r.methods - {"HEAD", "OPTIONS"}}
    named = {
        (method, path)
        for methods, paths in re.findall(r"^\| ([A-Z ]+) \| ([^|]+) \|", section("Endpoints", ENDPOINTS), re.MULTILINE)
        for method in methods.split()
        for path in re.findall(r"`(/[^`]*)`", paths)
    }
    assert named == served


def test_the_map_names_every_part_and_no_other():
    map_ = re.search(r"```\nllamasrv/\n(.*?)```", README, re.DOTALL)[1]
    package = {p.name for p in (ROOT / "llamasrv").iterdir() if p.suffix == ".py" or (p / "__init__.py").is_file()}
    package -= {"__init__.py", "__main__.py"}
    inside = {
        name
        for line in map_.splitlines()
        if line.startswith("  ")
        for name in re.findall(r"\b(\w+\.py|\w+)(?=/|\b)", line)
    }
    assert {name.rstrip("/") for name in package} <= inside
    first_words = {line.split()[0].rstrip("/") for line in map_.splitlines()}
    assert all((ROOT / "llamasrv" / name).exists() or (ROOT / name).exists() for name in first_words)


def test_commands_in_the_documents_exist():
    named = set(re.findall(r"bin/llamasrv (\w+)", DOCUMENTS))
    assert {"serve", "chat", "bench", "check"} <= named <= set(cli.cli.commands)


def test_set_up_is_two_commands_and_ci_runs_the_second():
    commands = [line for block in blocks("sh")[:2] for line in block.strip().splitlines()]
    assert len(commands) == 2 and all(command.startswith("python3 -m venv .venv && ") for command in commands)
    assert f"tests='{commands[1]}'" in (ROOT / ".ci/run").read_text("utf-8")


def test_the_lowest_versions_that_are_tested_are_those_that_are_promised():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    promised = {
        re.split(r"[>=<,;]+", line)[0]: re.search(r">=([\d.]+)", line)[1]
        for line in setup["options"]["install_requires"].split("\n")
        if line and not line.startswith("#")
    }
    tox = configparser.ConfigParser(interpolation=None)
    tox.read(ROOT / "tox.ini")
    tested = dict(re.findall(r"^([\w.-]+)==([\d.]+)", tox["testenv:min"]["deps"], re.MULTILINE))
    assert tested == promised


def test_the_oldest_and_the_newest_python_that_are_promised_are_tested():
    """On 3.13 every line of the log failed, and nothing had run there."""
    setup = (ROOT / "setup.cfg").read_text("utf-8")
    promised = re.findall(r"Python :: (3\.\d+)$", setup, re.MULTILINE)
    oldest, newest = promised[0], promised[-1]
    assert f"python_requires = >={oldest}" in setup and f"Python {oldest} to {newest}," in README
    tox = configparser.ConfigParser(interpolation=None)
    tox.read(ROOT / "tox.ini")
    assert tox["testenv:min"]["base_python"].split()[0] == f"python{oldest}"
    assert tox["testenv:newest"]["base_python"].split()[0] == f"python{newest}"
    assert f"oldest=$(python {oldest}) newest=$(python {newest})\n" in (ROOT / ".ci/run").read_text("utf-8")
    workflow = (ROOT / ".github/workflows/ci.yml").read_text("utf-8")
    assert f'["{oldest}", "{newest}"]' in workflow


def test_every_import_of_the_package_is_a_declared_dependency():
    from test_layers import HOMES

    names = {
        "opentelemetry": "opentelemetry-sdk",
        "llama_cpp": "llama-cpp-python",
        "huggingface_hub": "huggingface-hub",
        "prometheus_client": "prometheus-client",
        "PIL": "pillow",
        "markdown_it": "markdown-it-py",
        "backports": "backports.zstd",
        "compression": "backports.zstd",
        "tomllib": "tomli",  # before Python 3.11
        "re2": "google-re2",
        "yaml": "pyyaml",
    }
    setup = (ROOT / "setup.cfg").read_text("utf-8")
    required, _, extras = setup.partition("install_requires =")[2].partition("[options.extras_require]")
    used = {library for library in HOMES if _is_used(library)}
    for library in used:
        listed = extras if library in ("redis", "psycopg", "opentelemetry", "av") else required
        assert re.search(rf"^\s+{names.get(library, library)}(\[\w+\])?[>=]", listed, re.MULTILINE), library


def _is_used(library):
    pattern = re.compile(rf"^\s*(?:import|from) {library}\b", re.MULTILINE)
    return any(
        pattern.search(path.read_text("utf-8"))
        for path in (ROOT / "llamasrv").rglob("*.py")
        if "demo" not in path.parts
    )


def test_the_files_for_operators_agree_with_the_defaults():
    nginx = (ROOT / "conf/nginx.conf").read_text("utf-8")
    assert "server 127.0.0.1:8080 " in nginx
    settings = load(environ={})
    largest = max(settings.limits.body_bytes, settings.media.body_bytes), settings.store.files_bytes
    assert re.findall(r"client_max_body_size (\w+);", nginx) == [f"{largest[0] >> 20}m", f"{largest[1] >> 30}g"]
    service = (ROOT / "conf/llamasrv.service").read_text("utf-8")
    assert "RestartPreventExitStatus=78" in service


# Examples


def whole_commands(block):
    """The commands of a block; one in quotes may go over several lines."""
    begun = ""
    for line in block.splitlines():
        begun += line
        if begun.count("'") % 2 == 0:
            yield begun
            begun = ""
        else:
            begun += "\n"


SAID = (
    "You said: Hello",
    "[DONE]",
    "and so on",
    '"name":"get_weather"',
    '"x_label_mass":',
    r'"content":"{\"name\":',
    '"text":"yes"',
    '"text":"no"',
)


def test_curl_examples_work_as_written(serve, tmp_path):
    if shutil.which("curl") is None:
        pytest.skip("needs curl")
    server = serve("--fake")
    commands = [
        command
        for block in blocks("sh")
        for command in whole_commands(block)
        if command.startswith("curl ") and "localhost:80" in command and "https:" not in command and "$" not in command
    ]
    assert len(commands) >= 3
    for command in commands:
        for place in ("http://localhost:8080", "http://localhost:8000"):  # itself, and nginx in front of it
            command = command.replace(place, server.url)
        done = subprocess.run(
            [*shlex.split(command), "-sS", "--fail-with-body"], capture_output=True, text=True, timeout=60, cwd=tmp_path
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        assert any(said in done.stdout for said in SAID), (command, done.stdout)


def test_python_examples_work_as_written(serve):
    pytest.importorskip("openai")
    server = serve("--fake")
    for example in blocks("python"):
        code = example.replace("http://localhost:8080", server.url)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert done.stdout == "You said: Tell me a story"


PAGES = [
    "CHANGES.md",
    ".github/CONTRIBUTING.md",
    ".github/SECURITY.md",
    *(f"conf/{page}.md" for page in manual.GUIDE if page != "README"),
    *sorted(
        str(p.relative_to(ROOT))
        for p in {*ROOT.glob("**/README.md"), *ROOT.glob("llamasrv/**/*.md")}
        if not {".tox", ".venv", "build"} & set(p.parts)
    ),
]


@pytest.mark.parametrize("path", PAGES)
def test_links_between_documents_lead_somewhere(path):
    document = ROOT / path
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", document.read_text("utf-8")):
        assert (document.parent / target).exists(), target


def test_the_first_page_stays_short():
    assert len(README.encode()) < 12 * 1024


def test_the_guide_stays_readable():
    """The details are on pages beside it, which it names."""
    assert len(GUIDE.encode()) < 16 * 1024
    assert all(f"({page}.md)" in GUIDE for page in (*manual.GUIDE, *manual.REFERENCE) if page != "README")


def test_the_manual_lists_its_chapters():
    chapters = re.findall(r"^## (.+)$", GUIDE, re.MULTILINE)
    listed = re.findall(r"^- \[(.+)\]\(#(.+)\)$", section("Contents", GUIDE), re.MULTILINE)
    assert ["Contents", *(name for name, _ in listed)] == chapters
    assert all(link == re.sub(r"[^a-z0-9 -]", "", name.lower()).replace(" ", "-") for name, link in listed)


def test_the_manual_names_every_field_and_scope_of_the_keys_file():
    rows = re.findall(r"^\| `(\w+)` \|", section("Keys", MANUAL), re.MULTILINE)
    assert rows == [*keys.FIELDS, *SCOPES]


def test_the_manual_names_every_field_of_the_log_line():
    entry = RequestLog({}, RequestStats())
    entry.owner = entry.model = entry.reason = entry.error = entry.field = "x"
    entry.asked, entry.usage = ("GET", "/x"), Usage(forgotten_tokens=1, paused_seconds=1.0)
    entry.cache = SimpleNamespace(change=lambda: "tools")
    lines = section("What the fields of a log line mean", MANUAL).splitlines()
    named = [name for line in lines for name in re.findall(r"`(\w+)`", line.split("|")[1] if "|" in line else "")]
    assert sorted(named) == sorted(entry._fields(404, 1.0))


# Names between back-ticks

FOREIGN = {
    "keys.toml", "hosted_vllm/", "timings/prompt_n",  # the user's own file; other programs' names, which look like paths
    "OLLAMA_HOST", "UV_INDEX", "CLAUDE_STREAM_IDLE_TIMEOUT_MS", "llama_get_memory_breakdown", "full_dispatch_request",
    "dispatch_request", "get_print", "opencode.json", "stream_idle_timeout_ms", "tools/server/tests",
}  # fmt: skip
A_PATH = re.compile(r"[\w.][\w./-]*\.(py|md|toml|cfg|ini|jinja|json|yml)|(?:[\w-]+/)+[\w-]*")
A_SYMBOL = re.compile(
    r"_?[A-Z][a-z]\w*[A-Z]\w*(\(\))?|[A-Za-z_]\w*(\.[A-Za-z_]\w*)+(\(\))?|(?!llamasrv_)\w+_\w+(\(\))?"
)


@pytest.fixture(scope="module")
def here():
    """All paths of the project, and all words in its code but in this file."""
    skipped = {".git", ".tox", ".venv", "__pycache__", "build"}
    paths = {p.relative_to(ROOT).as_posix() for p in ROOT.rglob("*") if not skipped & set(p.relative_to(ROOT).parts)}
    code = [ROOT / p for p in paths if p.endswith(".py") and p.startswith(("llamasrv/", "tests/"))]
    words = {w for p in code if p != Path(__file__) for w in re.findall(r"\b[A-Za-z_]\w*", p.read_text("utf-8"))}
    ends = {"/".join(p.split("/")[i:]) for p in paths for i in range(p.count("/") + 1)}
    return ends, words


def is_there(name, here):
    ends, words = here
    if A_PATH.fullmatch(name):
        return re.sub(r"^(\.\./)+", "", name).rstrip("/") in ends
    return not A_SYMBOL.fullmatch(name) or all(part in words for part in name.removesuffix("()").split("."))


def missing(text, here):
    named = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    return sorted({name for name in named if name not in FOREIGN and not is_there(name, here)})


@pytest.mark.parametrize("path", PAGES)
def test_names_and_paths_between_back_ticks_exist(path, here):
    """Only what looks like a path, a dotted name, or a name of several words: a single word may be anything, and
    metrics are made from the names of counters."""
    assert not missing((ROOT / path).read_text("utf-8"), here)


def test_so_do_those_in_the_first_docstring_of_a_module(here):
    for module in (ROOT / "llamasrv").rglob("*.py"):
        text = ast.get_docstring(ast.parse(module.read_text("utf-8"))) or ""
        assert not missing(text, here), module


def test_a_name_that_is_gone_is_found(here):
    assert missing("`engine/gone_by.py` `EngineCore.flee` `Engine.submit` `tests/test_docs.py`", here) == [
        "EngineCore.flee",
        "engine/gone_by.py",
    ]
