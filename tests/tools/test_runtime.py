"""Tools in containers and on other machines, with fakes of docker and ssh."""

from __future__ import annotations

import json
import os
import time

import pytest
from clients.talk import is_running, wait_for

from llamasrv.errors import Forbidden, LlamasrvError
from llamasrv.tools.container import Container, ContainerError
from llamasrv.tools.runtime import Image, Runtime, read_option, read_runtime
from llamasrv.tools.tool import Invocation
from llamasrv.tools.toolbox import Toolbox, check_params

ENGINE = """#!/bin/sh
echo "$@" >> "$(dirname "$0")/calls"
verb=$1; shift
if [ $verb = exec ]; then
    [ "$1" = -i ] && shift
    [ "$1" = good ] || [ "$1" = 0123456789abcdef ] || { echo "no such container" >&2; exit 1; }
    shift
    export INSIDE=yes
    exec "$@"
fi
while [ $# -gt 2 ]; do
    [ "$1" = --cidfile ] && file=$2
    shift
done
[ "$1" = broken ] && { echo "no such image" >&2; exit 125; }
printf 0123456789abcdef > "$file"
echo $$ > "$(dirname "$0")/pid"
"$2"
echo $? > "$(dirname "$0")/ended"
"""

SSH = """#!/bin/sh
while [ $# -gt 1 ]; do target=$1; shift; done
[ "$target" = me@far ] || exit 255
export INSIDE=yes
exec sh -c "$1"
"""


@pytest.fixture
def programs(tmp_path, monkeypatch):
    folder = tmp_path / "programs"
    folder.mkdir()
    for name, text in (("docker", ENGINE), ("podman", ENGINE), ("ssh", SSH)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


@pytest.fixture
def work(tmp_path):
    folder = tmp_path / "it's work"
    (folder / "src" / "build").mkdir(parents=True)
    (folder / "src" / "a.py").write_text("import os\nlast\n")
    (folder / "src" / "build" / "b.py").write_text("import os\n")
    return folder


def use(runtime, cwd, name, base64=False, **params):
    tools = Toolbox(("all",))
    tool = tools.find(name)
    return json.loads(tools.call(Invocation(tool, check_params(tool, params), str(cwd), base64, read_runtime(runtime))))


@pytest.mark.parametrize("runtime", ["docker-container:good", "podman-container:good", "ssh:me@far"])
def test_every_tool_works_in_a_runtime(programs, work, runtime):
    assert use(runtime, work, "exec_shell_command", command="echo $INSIDE; pwd; exit 3") == {
        "plain_text_response": f"yes\n{work}\n\n[exit code: 3]"
    }
    assert use(runtime, work, "write_file", path="new/f \u00f6", content="one\ntwo\n")["result"]
    assert use(runtime, work, "read_file", path="new/f \u00f6", start_line=2) == {"plain_text_response": "two\n"}
    assert use(runtime, work, "read_file", True, path="new/f \u00f6") == {"base64": "b25lCnR3bwo=", "size_bytes": 8}
    edits = [{"old_text": "two", "new_text": "2"}]
    assert use(runtime, work, "edit_file", path="new/f \u00f6", edits=edits)["edits_applied"] == 1
    assert (work / "new/f \u00f6").read_text() == "one\n2\n"
    found = use(runtime, work, "file_glob_search", path=".", type="all")
    assert [entry["path"] for entry in found["entries"]] == ["new", "src", "src/build", "new/f \u00f6", "src/a.py"]
    found = use(runtime, work, "file_glob_search", path=str(work), type="dir", max_depth=1)["entries"]
    assert [entry["path"] for entry in found] == ["new", "src"]
    assert use(runtime, work, "grep_search", path="src", pattern="^import")["plain_text_response"].startswith(
        "a.py:import os\n\n---\nTotal matches: 1"
    )
    assert use(runtime, work, "get_info")["cwd"] == str(work)


def test_a_missing_path_is_an_error(programs, work):
    assert use("docker-container:good", work, "read_file", path="none") == {"error": "cannot stat file: none"}
    assert "does not exist" in use("docker-container:good", work, "file_glob_search", path="none")["error"]
    assert use("docker-container:other", work, "read_file", path="src/a.py") == {"error": "cannot stat file: src/a.py"}
    assert (
        "[exit code: 1]"
        in use("docker-container:other", work, "exec_shell_command", command="ls")["plain_text_response"]
    )


def test_a_remote_command_has_its_own_timeout(programs, work):
    began = time.monotonic()
    reply = use("ssh:me@far", work, "exec_shell_command", command="echo a; sleep 50", timeout=3)
    assert reply == {"plain_text_response": "a\n\n[exit code: 124]"} and time.monotonic() - began < 20


def test_a_missing_program_is_an_error(work, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "docker cannot be started" in use("docker-container:good", "", "read_file", path="a")["error"]
    assert "cannot be started" in use("docker-container:good", "", "exec_shell_command", command="a")["error"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("fake:x", "unknown tool runtime: fake:x"),
        ("docker", "unknown tool runtime"),
        ("", "unknown tool runtime"),
        ("docker:image", "unknown tool runtime"),
        ("docker-container:--privileged", "invalid container id: --privileged"),
        ("podman-container:", "invalid container id"),
        ("podman-container:a b", "invalid container id"),
        ("ssh:-oProxyCommand=touch /tmp/pwned", "invalid ssh target"),
        ("ssh:a;b", "invalid ssh target"),
    ],
)
def test_a_target_that_looks_like_an_option_is_refused(text, words):
    with pytest.raises(ValueError, match=words):
        read_runtime(text)


def test_the_option_also_takes_an_image():
    assert read_option("docker:alpine:3.20") == Image("docker", "alpine:3.20")
    assert read_option("ssh:me@far") == Runtime("ssh", "me@far")
    for text in ("docker:--privileged", "podman:", "docker:a b"):
        with pytest.raises(ValueError, match="invalid image"):
            read_option(text)


def test_a_client_may_choose_a_runtime_only_if_it_may_run_commands():
    everything, fixed = Toolbox(("all",)), Toolbox(("all",), place=Runtime("docker", "good"))
    assert everything.runtime("") is None and everything.runtime("ssh:far") == Runtime("ssh", "far")
    assert fixed.runtime("") == fixed.runtime("docker-container:good") == Runtime("docker", "good")
    for tools in (fixed, Toolbox(("read_file",))):
        with pytest.raises(Forbidden):
            tools.runtime("ssh:far")
    with pytest.raises(LlamasrvError, match="unknown tool runtime"):
        everything.runtime("fake:x")


def test_a_container_starts_restarts_and_ends(programs):
    tools = Toolbox(("all",), place=Image("podman", "alpine"))
    tools.start()
    first = Runtime("podman", "0123456789abcdef")
    assert tools.runtime("") == first == tools.runtime("")
    wait_for(lambda: (programs / "pid").exists() and (programs / "pid").read_text())  # it names its container first
    os.killpg(int((programs / "pid").read_text()), 9)

    def calls():
        assert tools.runtime("") == first
        return (programs / "calls").read_text().splitlines()

    wait_for(lambda: len(calls()) == 2)
    made = calls()
    assert len(made) == 2 and made[0].startswith("run --rm -i --cidfile ") and made[0].endswith(" alpine sh")
    began = time.monotonic()
    tools.close()
    assert not is_running(int((programs / "pid").read_text())) and time.monotonic() - began < 10
    assert (programs / "ended").read_text() == "0\n"  # by itself: its input was closed


def test_a_container_that_cannot_be_started_says_why(programs, monkeypatch, tmp_path):
    tools = Toolbox(("all",), place=Image("docker", "broken"))
    with pytest.raises(LlamasrvError, match="Tools cannot run: the container cannot be started: no such image"):
        tools.runtime("")
    (programs / "docker").write_text("#!/bin/sh\nexec sleep 60\n")
    with pytest.raises(ContainerError, match="the container cannot be started"):
        Container(Image("docker", "broken"), start_seconds=0.2).runtime()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LlamasrvError, match="docker cannot be started: No such file"):
        tools.runtime("")
    tools.close()
    with pytest.raises(LlamasrvError, match="shutting down"):
        tools.runtime("")
