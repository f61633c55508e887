"""The search in the manual, and the answers that it has to find."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import llamasrv
from llamasrv import cli
from llamasrv.config import manual

SCREEN = 40  # lines

# In the words of the manual, and in those of somebody who does not know them yet; what the section must say.
QUESTIONS = [
    ("limit a key to 10 requests a minute", "Limit a key to 10 requests a minute", "--requests-per-minute 10"),
    ("throttle a user", "Limit a key to 10 requests a minute", "--requests-per-minute"),
    ("rate limits", "Limit a key to 10 requests a minute", "--tokens-per-minute"),
    ("two models on one GPU", "Two models on one GPU", "serve --models-dir models --memory-limit"),
    ("why was my request slow", "Why was my request slow", "| `queue` |"),
    ("slow answer", "Why was my request slow", "| `prefill` |"),
    ("high latency", "Why was my request slow", "--log-slow-seconds"),
    ("rotate keys without downtime", "Rotate keys without downtime", "/admin/reload"),
    ("revoke a leaked key", "Rotate keys without downtime", "delete the table"),
    ("api token expire", "Rotate keys without downtime", "`expires` ends a key"),
    ("who uses how much", "Who uses how much", "llamasrv usage"),
    ("cost per customer", "Who uses how much", "--by key,model"),
    ("three machines", "Three machines", "--store redis://"),
    ("high availability", "Three machines", "nginx.conf"),
    ("log fields", "What the fields of a log line mean", "`prefill`"),
    ("what do the columns of the logs mean", "What the fields of a log line mean", "`finish`"),
    ("upgrading", "Upgrade", "llamasrv check"),
    ("how do I upgrade to a new version", "Upgrade", "--drain-timeout"),
    ("move to a newer version", "Upgrade", "CHANGES.md"),
    ("backup", "Backup", ".backup"),
    ("what should I back up", "Backup", "keys.toml"),
    ("troubleshoot", "Troubleshooting", "llamasrv help"),
    ("error message", "Troubleshooting", "| 429 |"),
    ("out of memory", "It runs out of memory", "--ctx-size"),
    ("OOM", "It runs out of memory", "llamasrv check"),
    ("no GPU found", "No GPU is found", "--list-devices"),
    ("GPU is not used", "No GPU is found", "GGML_CUDA"),
    ("https", "HTTPS", "--ssl-cert-file"),
    ("TLS certificate", "HTTPS", "--ssl-key-file"),
    ("behind a proxy", "Behind a proxy", "--allowed-hosts"),
    ("websocket", "Behind a proxy", "/v1/realtime"),
    ("throttle one customer", "Limit a key to 10 requests a minute", "--requests-per-minute"),
    ("restrict how often a client may ask", "Limit a key to 10 requests a minute", "--requests-per-minute"),
    ("run an embedding model and a chat model together", "Two models on one GPU", "--memory-limit"),
    ("more traffic than one box can take", "Three machines", "nginx.conf"),
    ("how do I turn thinking off", "Turn reasoning off", "--reasoning off"),
    ("structured output", "Get JSON that fits a schema", "response_format"),
    ("json output guaranteed", "Get JSON that fits a schema", "output_config.format"),
    ("set the system prompt", "Give a model a system prompt", "llamasrv create"),
    ("model keeps repeating itself", "The answer repeats itself", "--repeat-penalty"),
    ("disable telemetry", "Where data is kept, and how to delete it", "llamasrv"),
    ("reverse proxy", "Behind a proxy", "nginx.conf"),
    ("autostart", "Start when the machine does", "systemctl enable --now"),
    ("start at boot", "Start when the machine does", "llamasrv.service"),
    ("benchmark", "Make it faster", "bench http"),
    ("speed up", "Make it faster", "--parallel"),
    ("listen on all interfaces", "Reach it from other machines", "--host 0.0.0.0"),
    ("no internet", "Use it offline", "--offline"),
    ("are prompts logged", "Where data is kept, and how to delete it", "it never has what clients said"),
    ("delete data", "Where data is kept, and how to delete it", "DELETE"),
    ("cut off answers", "An answer ends too early", "`length`"),
    ("answers stop in the middle", "An answer ends too early", "--context-shift"),
    ("server does not start", "Troubleshooting", "78"),
    ("how do I make it start automatically", "Start when the machine does", "systemctl"),
    ("who used the most tokens last week", "Who uses how much", "--days 7"),
    ("langchain", "Connect a client or an SDK", "/v1"),
    ("docker", "Containers and Kubernetes", "docker run"),
    ("authentication", "Keys", "llamasrv key"),
    ("websites", "Without keys", "--cors-origins"),
    ("permissions", "Scopes", "`admin`"),
    ("monitoring", "Health, figures, faults", "/metrics"),
    ("graceful shutdown", "Signals and exit codes", "SIGTERM"),
    ("log rotation", "Signals and exit codes", "SIGUSR1"),
    ("download a model", "Models from the Hugging Face Hub", "llamasrv pull"),
    ("unload a model", "Several models", "--keep-alive"),
    ("load balancer", "Three machines", "nginx"),
    ("claude code", "Claude Code", "ANTHROPIC_BASE_URL"),
    ("lora adapter", "LoRA adapters", "--lora"),
    ("exit codes", "Signals and exit codes", "78"),
    ("context too small", "This model's maximum context length is ... tokens.", "--ctx-size"),
]


@pytest.mark.parametrize(("words", "title", "answer"), QUESTIONS, ids=[words for words, *_ in QUESTIONS])
def test_words_find_a_section_with_the_answer(words, title, answer):
    best = manual.search(words, manual.sections())[0]
    assert best.title == title and answer in best.text


@pytest.mark.parametrize("page", manual.GUIDE)
def test_a_section_is_one_screen(page):
    assert [one.title for one in manual.sections((page,)) if len(one.text.splitlines()) > SCREEN] == []


# Messages: what the program prints leads to what to do


def printed():
    """The texts in the code, with `...` in place of what varies."""
    for path in Path(llamasrv.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else "..." for part in node.values]
                yield "".join(parts)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield re.sub(r"%[\w.]*[sdfr]\b|\{[^}]*\}", "...", node.value)


MESSAGES = [one.title for one in manual.sections(("messages",))]
OF_THE_SYSTEM = (
    "Address already in use",
    "CMAKE_CXX_COMPILER not set",
    "Killed signal terminated program cc1plus",
)


def test_every_message_of_the_manual_is_printed_by_the_program():
    texts = "\n".join(printed())
    for message in MESSAGES:
        pieces = [piece.strip(" .:") for piece in message.split("...")]
        missing = [piece for piece in pieces if piece not in texts and piece not in OF_THE_SYSTEM]
        assert not missing, message
    assert len(MESSAGES) >= 40


PASTED = [
    "CMake Error: CMAKE_CXX_COMPILER not set, after EnableLanguage",
    "c++: fatal error: Killed signal terminated program cc1plus",
    "llamasrv: cannot listen on 127.0.0.1 port 8080: Address already in use",
    "llamasrv: no file and no local model 'qwen3'; here: demo. `llamasrv pull hf:OWNER/REPO:QUANT` downloads one",
    "llamasrv: --ctx-sise: unknown option; do you mean --ctx-size?",
    "llamasrv: server.host = '0.0.0.0': 0.0.0.0 is reachable from other machines and no API key is set: use "
    "--api-key-file (or --allow-keyless if intended)",
    "WARNING a: could not allocate 3.1 GiB on CUDA0, which has 1.2 GiB free; trying a context of 4096 and all layers",
    "Model 'gpt-4' not found. Served here: demo",
    "You didn't provide an API key. Send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'.",
    "Incorrect API key provided.",
    "This API key has expired.",
    "This API key may not use this route: it needs the scope 'admin'.",
    "Rate limit reached: limit of 10 requests per minute. Please try again in 6 s.",
    "The queue is full (1024 sequences). Try again shortly.",
    "This model's maximum context length is 4096 tokens. However, your messages resulted in 9120 tokens.",
    "Host 'llm.example.com' is not allowed. Add it to --allowed-hosts.",
    "Pages of other sites may not use this server. Open the address directly, or have the page send its Origin",
    "Managing models is disabled. Start the server with --models-manage.",
    "This model has no projector; it cannot take images or audio. Start the server with --mmproj.",
    "WARNING the hub was blocked for 0.41 s (0.02 s of CPU), and every stream: POST /v1/chat/completions",
    "ERROR qwen: a step has been running for 301 s; restarting",
    "WARNING keys.toml is readable by everyone on this machine: chmod 600",
    "ERROR the new configuration is invalid, keeping the old one: keys.toml: expected only [keys.NAME] tables",
    "ERROR 5 workers in a row exited before serving; giving up",
    "WARNING the chat template was not fully understood: its turns with tool calls do not survive a round trip.",
    "/models/a.gguf: the file has changed; SIGHUP makes the server read its list of models again",
    "WARNING cannot write /root/.local/state/llamasrv/responses.db: responses are stored in memory only",
    "WARNING each server counts quotas alone until the store responds: Connection refused",
    "MCP server files: 'npx' cannot be started: No such file or directory",
    "The store cannot be used at the moment: it does not respond.",
    "URLs are fetched only from the hosts in --media-hosts",
]


@pytest.mark.parametrize("line", PASTED)
def test_a_message_that_is_pasted_finds_its_entry(line):
    best = manual.search(line, manual.sections())[0]
    assert best.page == "messages"
    assert any(piece.strip(" .:") in line for piece in best.title.split("...") if len(piece) > 8), best.title


@pytest.mark.parametrize(
    "line",
    ["ERROR: Failed building wheel for llama-cpp-python", "CMake Error at CMakeDetermineCCompiler.cmake:48 (message):"],
)
def test_what_pip_prints_without_a_compiler_finds_what_to_do(line):
    best = manual.search(line, manual.sections())[0]
    assert best.title == "CMAKE_CXX_COMPILER not set" and "build-essential" in best.text


def test_rows_of_the_reference_are_found_by_parts_of_their_names():
    assert [row.split("`")[1] for row in manual.rows("cache-ram")] == ["-cram", "-cram"]
    assert manual.rows("--cache_ram") == manual.rows("cache ram") != []
    assert all("`-m`" in row for row in manual.rows("-m")) and manual.rows("-m")
    assert len(manual.rows("OLLAMA_HOST")) == len(manual.rows("cache.ram")) == 1 and not manual.rows("verdict")
    assert manual.rows("") == manual.rows("no-such-flag") == []


def test_words_of_a_comment_find_a_section_and_are_not_shown():
    one, two = manual.split("page", "# T\n## One\n<!-- also: throttle -->\n\ntext\n## Two\ntext\n## Part\n")
    assert manual.search("throttling", [one, two]) == [one] and "throttle" not in one.text


def test_rare_words_count_more_than_common_ones():
    text = "# T\n## Contents\nserver\n## One\nthe server the model\n## Two\nthe server rotates\n### Three\nother\n"
    sections = manual.split("page", text)
    assert [section.title for section in sections] == ["One", "Two", "Three"]
    assert [section.title for section in manual.search("rotating server", sections)] == ["Two", "One"]


@pytest.mark.parametrize("words", ["", "the of", "xyzzy", "?!", "é" * 1000])
def test_words_that_nothing_has_find_nothing(words):
    assert manual.search(words, manual.sections()) == []


@pytest.mark.parametrize("page", [*manual.GUIDE, *manual.REFERENCE])
def test_the_headings_of_a_page_have_anchors_of_their_own(page):
    anchors = [section.anchor for section in manual.sections((page,))]
    assert len(set(anchors)) == len(anchors)


# of the help, docker, Codex, xcode-select, Python's build
BESIDE_OPTIONS = {"--help-all", "--gpus", "--oss", "--local-provider", "--install", "--sdist"}


def test_every_flag_that_the_guide_names_exists():
    """`--max-queue` did not."""
    own = {
        flag
        for command in cli.cli.commands
        for parameter in cli.cli.get_command(None, command).params
        for flag in (*parameter.opts, *parameter.secondary_opts)
    }
    foreign = {flag for row in manual.rows("--") for flag in re.findall(r"`(--[\w-]+)`", row)}
    text = re.sub(r"```.*?```", "", "\n".join(map(manual.page_text, manual.GUIDE)), flags=re.S)
    named = {flag for code in re.findall(r"`([^`\n]+)`", text) for flag in re.findall(r"(?<![\w-])--[a-z][\w-]*", code)}
    assert named - own - foreign - BESIDE_OPTIONS == set() and len(named) > 60
