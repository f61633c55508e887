"""Bodies that change models, and the lines that they are answered with."""

from __future__ import annotations

import json

import pytest

from llamasrv.errors import InvalidRequest, Unsupported
from llamasrv.protocols.limits import Limits
from llamasrv.protocols.ollama.manage import Managing, pull_line, statuses

MANAGING = Managing(Limits())
DIGEST = "sha256:" + "a" * 64


def create(**body):
    return MANAGING.parse_create({"model": "new", "from": "base", **body})


def refused(error=InvalidRequest, **body):
    with pytest.raises(error) as caught:
        create(**body)
    return caught.value.param


def test_a_model_is_made_of_another():
    found = create(
        system="S",
        template="{{ messages }}",
        license=["MIT", "ISC"],
        stream=False,
        parameters={"temperature": 0.5, "num_ctx": 64, "num_predict": 5, "stop": ["X"]},
        messages=[{"role": "user", "content": "hi"}],
    )
    assert (found.name, found.base, found.blob) == ("new", "base", None)
    assert (found.system, found.template, found.license, found.stream) == ("S", "{{ messages }}", "MIT\nISC", False)
    assert found.messages == (("user", "hi"),)
    chosen = found.chosen
    assert (chosen.sampling, chosen.max_tokens, chosen.stop, chosen.num_ctx) == ({"temperature": 0.5}, 5, ("X",), 64)


def test_or_of_a_file_that_was_brought():
    found = MANAGING.parse_create({"name": "new", "files": {"m.gguf": DIGEST}})
    assert (found.base, found.blob, found.stream) == (None, DIGEST, True)


@pytest.mark.parametrize(
    "body, param",
    [
        ({"from": None}, "from"),
        ({"files": {"a": DIGEST}}, "from"),  # both
        ({"model": None}, "model"),
        ({"model": "a b"}, "model"),
        ({"model": "../x"}, "model"),
        ({"model": "a:b:c"}, "model"),
        ({"model": "ü"}, "model"),
        ({"model": "a" * 300}, "model"),
        ({"template": "no expression"}, "template"),
        ({"parameters": {"num_ctx": "x"}}, "options.num_ctx"),
        ({"messages": [{"role": "user", "images": ["AAAA"], "content": "x"}]}, "messages[0]"),
        ({"license": 3}, "license"),
    ],
)
def test_what_is_wrong_is_named(body, param):
    assert refused(**body) == param


def test_files_are_one_and_have_a_digest():
    for files in ({}, {"a": DIGEST, "b": DIGEST}, {"a": 3}, "x"):
        with pytest.raises(InvalidRequest):
            MANAGING.parse_create({"model": "new", "files": files})


def test_what_is_not_done_here_is_refused():
    assert refused(Unsupported, adapters={"a": DIGEST}) == "adapters"


def test_a_number_format_may_be_asked_for():
    assert MANAGING.parse_create({"model": "new", "from": "a", "quantize": "q4_K_M"}).quantize == "q4_K_M"
    assert MANAGING.parse_create({"model": "new", "from": "a"}).quantize == ""


def test_a_copy_needs_both_names():
    assert MANAGING.parse_copy({"source": "a", "destination": "b:c"}) == ("a", "b:c")
    for body in ({"source": "a"}, {"destination": "b"}, {"source": "a", "destination": "b c"}):
        with pytest.raises(InvalidRequest):
            MANAGING.parse_copy(body)


def test_a_pull_streams_unless_told_otherwise():
    assert MANAGING.parse_pull({"model": "hf.co/a/b", "insecure": True}) == ("hf.co/a/b", True)
    assert MANAGING.parse_pull({"name": "hf.co/a/b", "stream": False}) == ("hf.co/a/b", False)


def test_steps_are_lines_and_success_is_the_last():
    lines = [json.loads(line) for line in statuses(["a"], stream=True).splitlines()]
    assert lines == [{"status": "a"}, {"status": "success"}]
    assert json.loads(statuses(["a"], stream=False)) == {"status": "success"}


def test_a_file_on_its_way_says_how_far_it_is():
    line = json.loads(pull_line("pulling", digest=DIGEST, completed=5, total=9))
    assert line == {"status": "pulling aaaaaaaaaaaa", "digest": DIGEST, "total": 9, "completed": 5}
    assert json.loads(pull_line("verifying", digest=DIGEST))["status"] == "verifying sha256 digest"
    assert json.loads(pull_line("pulling manifest")) == {"status": "pulling manifest"}
