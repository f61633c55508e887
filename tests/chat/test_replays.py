"""The prompts of an agent's turns begin with the prompts of its earlier turns, whatever the template."""

from __future__ import annotations

import os
from dataclasses import replace
from os.path import commonprefix
from typing import Any

import pytest
from chat_samples import HERMES, STRICT
from replays import SCRIPTS, prompt_of, prompts
from vectors import COLLECTION, template_of

from llamasrv.chat.template import ChatTemplate, fallback_source
from llamasrv.domain.request import ChatPrompt

MOVES = {
    "CohereForAI-c4ai-command-r-plus-tool_use": "its closing instructions stand behind the newest turn",
    "Hunyuan-A13B-Instruct": "it writes the time, to the second, at its head",
    "Mistral-Small-3.2-24B-Instruct-2506": "its tools stand before the newest user turn",
    "mistralai-Mistral-Nemo-Instruct-2407": "its tools and system text stand at the newest user turn",
}
"""Templates that write earlier turns anew, and why."""
FORGETS = dict.fromkeys(
    (
        "GLM-4.5", "GLM-4.6", "GLM-4.7-Flash", "GigaChat3.5", "Kimi-K2-Thinking", "Kimi-K2.5", "LFM2.5-8B-A1B",
        "MiniMax-M2", "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "Qwen-Qwen3-0.6B", "deepseek-ai-DeepSeek-V3.2",
        "google-gemma-4-31B-it", "google-gemma-4-31B-it-interleaved", "upstage-Solar-Open-100B",
    ),
    "once the user speaks, it leaves out the thoughts since the user spoke before",
) | {
    "Qwen3.5-4B": "the same, and the empty marks of an answer without a thought",
    "openai-gpt-oss-120b": "the same, and what was said before a call, which it shows as a thought",
}  # fmt: skip
"""Templates with which a turn of the user's keeps no more than the prompt up to the user's turn before, and why."""
TEMPLATES = sorted(COLLECTION.glob("*.jinja")) if SCRIPTS else []
EVERY = (
    1 if os.environ.get("WHOLE_COLLECTION") else 4
)  # else each template plays some scripts, and each script is played


def found_again(expected: dict[str, Any], old: str, new: str, *, forgets: bool) -> bool:
    """Whether as much of `old` opens `new` as the turn promises."""
    common = len(commonprefix((old, new)))

    def covers(marks: list[str]) -> bool:
        return all(-1 < old.find(mark) <= common - len(mark) for mark in marks)

    if "reach" in expected:
        return covers(expected["reach"])
    if common >= expected.get("share", 0) * len(old):
        return True
    return forgets and "or_reach" in expected and covers(expected["or_reach"])


def complaints(template: ChatTemplate, script: dict[str, Any], *, moves: bool, forgets: bool = True) -> list[str]:
    told: list[str] = []
    before: list[ChatPrompt] = []
    for number, (turn, start, prompt) in enumerate(prompts(script["name"])):
        expected = turn.get("expect", {})
        new = template.render(prompt).text
        at = 0
        for mark in expected.get("contains", ()):
            place = new.find(mark, at)
            if place < 0:
                told.append(f"turn {number}: {mark} is not there or too early")
                break
            at = place + len(mark)
        told += [f"turn {number}: {mark} is there" for mark in expected.get("absent", ()) if mark in new]
        if number and not moves:
            old = before[start]
            if expected.get("effort"):  # a template that writes the effort writes the new one, and nothing else anew
                old = replace(old, template_kwargs=prompt.template_kwargs)
            if not found_again(expected, template.render(old).text, new, forgets=forgets):
                told.append(f"turn {number}: the prompt before is not found again")
        before.append(replace(prompt, add_generation_prompt=False))
    return told


@pytest.mark.parametrize("number, path", list(enumerate(TEMPLATES)), ids=lambda part: getattr(part, "stem", ""))
def test_each_turn_finds_the_prompt_of_the_turn_before(number, path):
    template = template_of(path.read_text(encoding="utf-8"))[0]
    scripts = SCRIPTS[number % EVERY :: EVERY]
    kinds = {"moves": path.stem in MOVES, "forgets": path.stem in FORGETS}
    told = {script["name"]: complaints(template, script, **kinds) for script in scripts}
    assert {name: lines for name, lines in told.items() if lines} == {}


def body(*turns: Any) -> dict[str, Any]:
    tools = [{"name": n, "description": n, "input_schema": {"type": "object"}} for n in ("look", "find", "mail")]
    tools[2]["defer_loading"] = True
    return {"model": "m", "max_tokens": 9, "system": "Be kind.", "tools": tools, "messages": list(turns)}


def loop(steps: int) -> list[Any]:
    """An agent's loop: the operator speaks behind each result, and offers a tool in the middle."""
    turns: list[Any] = [{"role": "user", "content": "Begin, xu0x."}]
    for n in range(steps):
        use = {"type": "tool_use", "id": f"toolu_{n}", "name": "look", "input": {"at": n}}
        turns.append({"role": "assistant", "content": [{"type": "text", "text": f"Step {n}."}, use]})
        turns.append(
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": f"toolu_{n}", "content": f"xr{n}x"}]}
        )
        late: list[Any] = [{"type": "text", "text": f"xs{n}x tokens are left"}]
        if n == 2:
            late.insert(0, {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "mail"}})
        turns.append({"role": "system", "content": late})
    return turns


GATHERS = HERMES.replace(
    "{%- for message in messages -%}",
    "{%- for m in messages if m.role == 'system' -%}{{- '[' + m.content + ']' -}}{%- endfor -%}"
    "{%- for message in messages if message.role != 'system' -%}",
)


@pytest.mark.parametrize(
    "source", [HERMES, STRICT, GATHERS, fallback_source("chatml")], ids="hermes strict gathers chatml".split()
)
def test_an_agents_loop_keeps_its_prefix(source):
    template = ChatTemplate(source, special_tokens=())
    turns, old = loop(5), ""
    for size in range(4, len(turns) + 1, 3):
        prompt = prompt_of("anthropic", body(*turns[:size]))
        new = template.render(prompt).text
        assert new.startswith(old[: round(0.97 * len(old))])
        at = new.index("xu0x")
        for n in range(size // 3):
            assert at < new.index(f"xr{n}x") < new.index(f"xs{n}x")
            at = new.index(f"xs{n}x")
        old = template.render(replace(prompt, add_generation_prompt=False)).text
    assert new.index("xr2x") < new.index('"mail"') < new.index("xs2x")


def test_a_summary_stands_for_the_turns_before_it_sent_or_not():
    template = ChatTemplate(HERMES, special_tokens=())
    short = [
        {"role": "assistant", "content": [{"type": "compaction", "content": "xy9x"}, {"type": "text", "text": "On."}]},
        {"role": "user", "content": "xu9x"},
    ]
    whole = template.render(prompt_of("anthropic", body({"role": "user", "content": "xu0x"}, *short))).text
    assert whole == template.render(prompt_of("anthropic", body(*short))).text
    assert "xu0x" not in whole and whole.index("xy9x") < whole.index("On.") < whole.index("xu9x")
