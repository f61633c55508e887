"""`llamasrv parse` and `llamasrv check --chat-template`."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
from chat_samples import FAMILIES, HERMES
from click.testing import CliRunner
from test_vectors import VECTORS
from vectors import COLLECTION, comparable

from llamasrv.chat.template import ChatTemplate
from llamasrv.cli import cli
from llamasrv.commands import learned_format
from llamasrv.errors import ConfigError

TOOLS = [{"type": "function", "function": {"name": "ping", "parameters": {"type": "object", "properties": {}}}}]
ASKED = {"messages": [{"role": "user", "content": "Hi"}], "tools": TOOLS}
OUTPUT = '<think>\nHm.\n</think>\n\nI will.\n<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>'


@pytest.fixture
def run(tmp_path):
    """Runs a command with a template, a request and an output; gives the lines that it prints."""

    def call(output, *arguments, template=HERMES, request=ASKED):
        (tmp_path / "t.jinja").write_text(template)
        (tmp_path / "r.json").write_text(request if isinstance(request, str) else json.dumps(request))
        given = ["parse", "--chat-template", str(tmp_path / "t.jinja"), *arguments]
        if request is not None:
            given += ["--request", str(tmp_path / "r.json")]
        result = CliRunner().invoke(cli, given, input=output, standalone_mode=False)
        if result.exception is not None:
            raise result.exception
        return [json.loads(line) for line in result.stdout.splitlines()]

    return call


def flat(message):
    calls = [call["function"] for call in message["tool_calls"]]
    return {**message, "tool_calls": calls}


def test_it_prints_the_message(run):
    (message,) = run(OUTPUT)
    assert message["content"].strip() == "I will." and message["reasoning_content"] == "Hm."
    assert [call["function"] for call in message["tool_calls"]] == [{"name": "ping", "arguments": "{}"}]


def test_it_prints_deltas_that_make_the_same_message(run):
    (message,) = run(OUTPUT)
    deltas = run(OUTPUT, "--stream")
    assert "".join(d.get("content", "") for d in deltas) == message["content"]
    assert "".join(d.get("reasoning_content", "") for d in deltas) == message["reasoning_content"]
    calls = [call for d in deltas for call in d.get("tool_calls", ())]
    assert calls[0]["function"] == {"name": "ping", "arguments": ""} and calls[0]["id"]
    assert "".join(call["function"]["arguments"] for call in calls) == "{}"


def test_it_explains_what_was_learned(tmp_path):
    (tmp_path / "t.jinja").write_text(HERMES)
    given = ["parse", "--chat-template", str(tmp_path / "t.jinja"), "--explain"]
    result = CliRunner().invoke(cli, given, input=OUTPUT, standalone_mode=False)
    told = json.loads(result.stderr)
    assert "<tool_call>" in told["example"] and told["round_trip"]["two calls"] == "ok"
    assert all({"format", "example", "lost"} == set(other) for other in told.get("others", ()))
    assert json.loads(result.stdout)["role"] == "assistant"


def test_what_is_lost_is_shown_as_it_is_written_and_read(tmp_path):
    source = "{%- for m in messages -%}<{{ m.role }}>{{ m.content or '' }}{% for c in m.tool_calls or [] %}"
    source += (
        "{{ c.function.name }}:{{ c.function.arguments | list | join }}={{ c.function.arguments.values() | join }}"
    )
    (tmp_path / "t.jinja").write_text(
        source + "{% endfor %}</>{%- endfor -%}{{ '<assistant>' if add_generation_prompt }}"
    )
    given = ["check", "--chat-template", str(tmp_path / "t.jinja")]
    told = json.loads(CliRunner().invoke(cli, given, standalone_mode=False).stdout)
    assert told["round_trip"]["call"] == "lost" and told["note"]
    assert (
        told["lost"]["call"]["written"].startswith("zqtool:") and "zqtool:" in told["lost"]["call"]["read"]["content"]
    )


def test_calls_that_only_names_tell_from_text_need_the_tools(tmp_path):
    source = FAMILIES["python without marks"]
    (tmp_path / "t.jinja").write_text(source)
    result = CliRunner().invoke(
        cli, ["parse", "--chat-template", str(tmp_path / "t.jinja")], input="x", standalone_mode=False
    )
    assert "--request" in result.stderr and json.loads(result.stdout)["content"] == "x"


def test_without_a_request_every_call_counts(run):
    (message,) = run("[CALL]whatever[ARGS]{}", template=FAMILIES["name, then object"], request=None)
    assert message["tool_calls"][0]["function"]["name"] == "whatever"


def test_tool_choice_none_leaves_everything_in_the_content(run):
    (message,) = run(OUTPUT, request={**ASKED, "tool_choice": "none"})
    assert message["tool_calls"] == [] and "<tool_call>" in message["content"]


def test_a_continued_message_includes_what_it_held(run):
    last = {"role": "assistant", "content": "Hello, ", "reasoning_content": "Hm"}
    request = {"messages": [*ASKED["messages"], last], "continue_final_message": True}
    (message,) = run("world", request=request)
    assert (message["content"], message["reasoning_content"]) == ("Hello, world", "Hm")


@pytest.mark.parametrize("request_text", ["{", "[]", '{"messages": 5}', '{"messages": [{"role": "x"}]}'])
def test_a_wrong_request_is_reported(run, request_text):
    with pytest.raises(ConfigError, match="r.json"):
        run("", request=request_text)


def test_a_wrong_template_is_reported(run):
    with pytest.raises(ConfigError, match="line 1"):
        run("", template="{% for %}")


@pytest.mark.skipif(not VECTORS, reason="the collection is not there")
@pytest.mark.parametrize("vector", VECTORS[::7], ids=lambda v: f"{v['template'][:-6]}-{v['line']}")
def test_it_agrees_with_the_collection(run, vector):
    template = (COLLECTION / vector["template"]).read_text(encoding="utf-8")
    (message,) = run(vector["model_output"], template=template, request=vector["request"])
    assert comparable(flat(message)) == comparable(vector["expect"])


def test_check_prints_what_a_template_says(tmp_path):
    (tmp_path / "t.jinja").write_text(FAMILIES["values on lines"])
    result = CliRunner().invoke(cli, ["check", "--chat-template", str(tmp_path / "t.jinja")], standalone_mode=False)
    told = json.loads(result.stdout)
    assert told["calls"]["key_start"] == "<arg=" and told["learned"] is True and "name_key" not in told["calls"]


def test_check_shows_an_example_and_why_other_formats_were_not_taken(tmp_path):
    (tmp_path / "t.jinja").write_text(
        "{{- '<|tool_list_start|>' -}}" + FAMILIES["attributes"]
    )  # words of a known model
    result = CliRunner().invoke(cli, ["check", "--chat-template", str(tmp_path / "t.jinja")], standalone_mode=False)
    told = json.loads(result.stdout)
    assert told["format"] == "tagged" and "get_weather" in told["example"] and "get_time" in told["example"]
    assert [(other["format"], "call" in other["lost"]) for other in told["others"]] == [("lfm2", True)]
    assert told["others"][0]["example"].startswith("<|tool_call_start|>[get_weather(")


LISTED = (
    "{% for m in messages %}<{{ m.role }}>{% if m.reasoning_content %}<muse>{{ m.reasoning_content }}</muse>{% endif %}"
    "{{ m.content or '' }}{% for c in m.tool_calls or [] %}[TOOL]{{ c.function.name NAMED }}"
    "[WITH]{{ c.function.arguments | tojson }}[/TOOL]{% endfor %}</{{ m.role }}>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def test_a_summary_shows_marks_and_an_example():
    shown = learned_format.summary(ChatTemplate(LISTED.replace("NAMED", "")))
    assert shown["understood"] == "yes" and shown["reasoning"] == "<muse> … </muse>"
    assert shown["tool calls"].startswith('[TOOL]get_weather[WITH]{"city": "Oslo", "days": 2}[/TOOL]')


def test_a_summary_names_the_turns_that_are_misread():
    template = ChatTemplate(LISTED.replace("NAMED", "| upper"))  # names that no tool has
    unsure = SimpleNamespace(format=replace(template.format, unsure=("two calls", "thought")))
    shown = learned_format.summary(unsure)
    assert shown["understood"] == "all but two calls, thought: answers of this kind may be misread"
    assert shown["tool calls"].startswith("not shown by the template, taught in the system message:\n<tool_call>")
