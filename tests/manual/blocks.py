"""The shell blocks of the documents as they are pasted, line by line, in a folder like a checkout. `tox -e manual`.

In a network of its own, where the kernel lets us make one: ports are those of the documents, and nothing is fetched.
What is not run stands in tests/doc_blocks.py. Programs of others (claude, ollama ...) are stand-ins that tell what they
were given.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import tiny_models
from conftest import ServerProcess
from doc_blocks import ROOT, blocks, commands, why_not
from serving import wait_until

from llamasrv.config import paths

PORTS = (8000, 8080, 8081, 6379)
PROGRAMS = ("claude", "codex", "gemini", "qwen", "copilot", "ollama")
# Words that stand for the reader's own.
FILLED_IN = {r"\bMODEL\b": "demo", r"\bHOST\b": "127.0.0.1", r"\bCTX\b": "8192", r"=KEY\b": "=secret"}
NEW_NETWORK = 0x40000000  # CLONE_NEWNET
# Exit codes that are right here: a remark on a flag, and the short context of the demonstration model.
MAY_FAIL = {"llamasrv migrate": 1, "--profile rag": 78}
TYPED = {"llamasrv chat": "Hello\n", "models rm": "y\n"}
NEEDED = ("bash", "curl")

pytestmark = [pytest.mark.timeout(300)]


@pytest.fixture(scope="session", autouse=True)
def own_network():
    """What this thread starts has no network but a loopback of its own; else the documents' ports must be free."""
    if any(shutil.which(tool) is None for tool in NEEDED):
        pytest.skip(f"needs {', '.join(NEEDED)}")
    if sys.platform == "linux" and ctypes.CDLL(None).unshare(NEW_NETWORK) == 0:
        with socket.socket() as probe:
            up = struct.pack("16sh14x", b"lo", 0x1 | 0x40)  # IFF_UP, IFF_RUNNING
            fcntl.ioctl(probe, 0x8914, up)  # SIOCSIFFLAGS
    for port in PORTS:
        if is_open(port):
            pytest.skip(f"port {port} is taken, and this user may not make a network")


@pytest.fixture(scope="session")
def checkout(tmp_path_factory):
    """A folder with what the commands name, and a home that is empty."""
    folder = tmp_path_factory.mktemp("manual") / "checkout"
    demo = paths.demo_model()
    assert demo is not None
    (folder / ".venv/bin").mkdir(parents=True)
    (folder / "bin").mkdir()
    script = folder / ".venv/bin/llamasrv"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m llamasrv "$@"\n')
    for name in PROGRAMS:
        (folder / "bin" / name).write_text(f'#!/bin/sh\nenv > "{folder}/given"\necho "$@" >> "{folder}/given"\n')
    for file in (script, *(folder / "bin").iterdir()):
        file.chmod(0o755)
    shutil.copytree(ROOT / "conf", folder / "conf")
    home = folder / "home/.local/share/llamasrv/models"
    for models in (home, folder / "models"):
        models.mkdir(parents=True)
        shutil.copy(demo, models / "qwen2.5-q4_k_m.gguf")
    shutil.copy(demo, folder / "model.gguf")
    tiny_models.llama(folder / "base.gguf")
    tiny_models.llama(folder / "model-F16.gguf")
    for seed, name in enumerate(("sql", "polite")):
        tiny_models.lora(folder / f"{name}.gguf", seed=seed)
    (folder / "mcp.json").write_text('{"mcpServers": {}}')
    (folder / "llamasrv.toml").write_text((ROOT / "conf/llamasrv.toml").read_text())
    (folder / "compose.yml").write_text(
        "services:\n  llama:\n    image: ghcr.io/ggml-org/llama.cpp:server\n    command: -m /models/m.gguf -c 8192\n"
    )
    (folder / "FILE.jinja").write_text((ROOT / "llamasrv/demo/template.jinja").read_text())
    (folder / "OUTPUT.txt").write_text("Hello")
    # nginx as root would take over files of this machine.
    nginx = folder / "conf/nginx.conf"
    nginx.write_text(nginx.read_text().replace("pid /run/nginx.pid", f"pid {folder}/nginx.pid"))
    return folder


class Terminal:
    """A shell's commands, one after the other. A server stays in the foreground of a terminal of its own until the
    next one is started there, or the block ends, as it does for a reader."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        unset = ("LLAMASRV_", "OPENAI_", "ANTHROPIC_", "HF_", "XDG_")
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith(unset)} | {
            "HOME": str(folder / "home"),
            "PATH": f"{folder}/bin:{folder}/.venv/bin:{os.environ['PATH']}:/usr/sbin",
            "PYTHONPATH": str(ROOT) if (ROOT / "llamasrv").is_dir() else "",
        }
        self.servers: list[ServerProcess] = []
        (folder / "keys.toml").unlink(missing_ok=True)

    def type(self, command: str) -> None:
        for words, value in FILLED_IN.items():
            command = re.sub(words, value, command)
        variables = re.fullmatch(r"export (.*)", command)
        if variables:
            self.environment |= dict(one.split("=", 1) for one in re.findall(r"\w+=\S+", variables[1]))
        elif re.search(r"llamasrv serve (?!--list)|llamasrv serve$", command) or command.startswith("redis-server"):
            if not command.endswith(" &"):
                self._end_servers("llamasrv")
            self._serve(command.removesuffix(" &"))
        else:
            self._run(command)

    def _serve(self, command: str) -> None:
        server = ServerProcess(
            [f"unset LLAMASRV_STORE; cd '{self.folder}' && exec {command}"],
            command=("bash", "-c"),
            environ=self.environment,
        )
        self.servers.append(server)
        if command.startswith("redis-server"):
            wait_until(lambda: is_open(6379), what="redis-server")
            return
        server.wait_for(r" serves .* at http", 120)
        assert "ERROR" not in server.log, server.log

    def _run(self, command: str) -> None:
        typed = next((text for part, text in TYPED.items() if part in command and "|" not in command), "")
        allowed = {0, *(code for part, code in MAY_FAIL.items() if part in command)}
        shell = ["bash", "-c", re.sub(r"(?m)^curl ", "curl -sS --fail-with-body ", command)]
        with open(self.folder / "printed", "w+b") as out:  # a pipe would stay open in a daemon
            done = subprocess.run(
                shell, cwd=self.folder, env=self.environment, input=typed.encode(), stdout=out, stderr=out, timeout=280
            )
        printed = (self.folder / "printed").read_text("utf-8", "replace")
        assert done.returncode in allowed, (command, done.returncode, printed[-4000:])
        assert printed or not command.startswith(("curl", ".venv")), command
        if " key " in command:
            self.environment.setdefault("KEY", printed.split()[-1])

    def _end_servers(self, name: str = "") -> None:
        ending = [server for server in self.servers if name in server.process.args[-1]]
        self.servers = [server for server in self.servers if server not in ending]
        codes = []
        for server in reversed(ending):
            with suppress(ProcessLookupError):
                server.signal(signal.SIGTERM)
            codes.append(server.exit_code(60))
            server.end()
        assert not any(codes), codes

    def close(self) -> None:
        pid = self.folder / "nginx.pid"
        if pid.exists():
            os.kill(int(pid.read_text()), signal.SIGTERM)
            wait_until(lambda: not pid.exists(), what="the end of nginx")
        self._end_servers()


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def terminal(checkout):
    terminal = Terminal(checkout)
    yield terminal
    terminal.close()


SHELL = [block for block in blocks("sh") if any(why_not(command) is None for command in commands(block))]


def needs_a_server(block) -> bool:
    """Whether the block speaks to the server that was started before it."""
    first = next((one for one in commands(block) if "llamasrv serve" in one or "://localhost" in one), "")
    return "://localhost" in first


@pytest.mark.parametrize("block", SHELL, ids=str)
def test_it_works_as_it_is_pasted(block, terminal):
    if "redis" in block.text and shutil.which("redis-server") is None or "nginx" in block.text and no_nginx():
        pytest.skip("needs redis-server and nginx")
    if "sqlite3" in block.text and shutil.which("sqlite3") is None:
        pytest.skip("needs sqlite3")
    if "--api-key-file" in block.text and "llamasrv key" not in block.text:
        terminal.type(".venv/bin/llamasrv key first --file keys.toml")
    if needs_a_server(block) or "claude" in block.text:
        flags = " --api-key-file keys.toml" if "$KEY" in block.text else ""
        if flags:
            terminal.type(".venv/bin/llamasrv key first --file keys.toml")
        terminal.type(f".venv/bin/llamasrv serve{flags}")
    if "--store redis" in block.text and not block.text.startswith("redis-server"):
        terminal.type("redis-server --bind 127.0.0.1 --save 60 1 &")
    if "localhost:8000" in block.text and not block.text.startswith("redis-server"):
        terminal.type('nginx -c "$PWD/conf/nginx.conf"')
    for command in commands(block):
        if why_not(command) is None:
            terminal.type(command)


def no_nginx() -> bool:
    return shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin") is None


@pytest.mark.parametrize("block", blocks("python"), ids=str)
def test_a_program_works_as_it_is_pasted(block, terminal):
    if "import OpenAI" not in block.text:
        pytest.skip("part of the package's code")
    pytest.importorskip("openai")
    terminal.type(".venv/bin/llamasrv serve")
    done = subprocess.run(
        [sys.executable, "-c", block.text], env=terminal.environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0 and len(done.stdout) > 20, done.stderr
