"""What a template shows of a turn comes back as that turn, for every kind that it shows."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
from chat_samples import FAMILIES, HERMES, HERMES_APART, LEARNED_BY_MARKS
from vectors import template_of

from llamasrv.chat.families import GENERIC
from llamasrv.chat.parser import Parser
from llamasrv.chat.round_trip import KINDS, LOST, NOT_SHOWN, OK, probe_tools, round_trip
from llamasrv.chat.template import ChatTemplate, fallback_source
from llamasrv.domain.events import Text


def verdicts(source: str) -> dict[str, str]:
    return {kind: trip.verdict for kind, trip in round_trip(ChatTemplate(source)).items()}


@pytest.mark.parametrize("source", [*FAMILIES.values(), *LEARNED_BY_MARKS.values(), HERMES], ids=str.__len__)
def test_every_kind_of_a_template_of_our_own_comes_back(source):
    found = verdicts(source)
    assert set(found) == set(KINDS) and LOST not in found.values()
    assert found["text"] == found["call"] == found["after a result"] == OK


@pytest.mark.parametrize("name", ["chatml", "plain"])
def test_every_kind_of_a_packaged_template_comes_back(name):
    found = verdicts(fallback_source(name))
    assert found["text"] == found["call"] == found["two calls"] == OK and LOST not in found.values()


def test_every_kind_that_a_template_of_the_collection_shows_comes_back(template_file):
    template = template_of(template_file.read_text(encoding="utf-8"))[0]
    trips = round_trip(template)
    assert [trip for trip in trips.values() if trip.verdict == LOST] == []
    assert trips["text"].verdict == OK and template.format.unsure == ()


ONE_AFTER_THE_OTHER = {
    "a line break": "\n<tool_call>",
    "two": "\n\n<tool_call>",
    "a space": " <tool_call>",
    "nothing": "<tool_call>",
}


@pytest.mark.parametrize("mark", ONE_AFTER_THE_OTHER.values(), ids=ONE_AFTER_THE_OTHER)
@pytest.mark.parametrize("trims", [False, True])
def test_a_text_and_a_call_are_written_again_as_the_model_wrote_them(mark, trims):
    """The next prompt has to begin with what is computed already: the last one and the answer."""
    content = "m.content | trim" if trims else "m.content"
    source = (
        "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}<|{{ m.role }}|>"
        f"{{% if m.content %}}{{{{ {content} }}}}{{% endif %}}"
        f"{{% for c in m.tool_calls or [] %}}{{{{ {mark!r} }}}}{{{{ c.function | tojson }}}}</tool_call>{{% endfor %}}"
        "<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    template = ChatTemplate(source)
    assert template.format.calls.gap == mark.removesuffix("<tool_call>")
    trips = round_trip(template)
    assert trips["text and call"].verdict == OK
    written = trips["text and call"].output.removesuffix("<|end|>")
    parser = Parser(template.format, tools=probe_tools(), new_id=lambda: "1")
    said = "".join(event.text for event in parser.feed(written) + parser.finish() if isinstance(event, Text))
    assert written.startswith(said + mark)


def test_white_space_that_stays_with_a_text_before_a_call_is_a_loss(monkeypatch):
    template = ChatTemplate(HERMES_APART)
    whole = template.format
    monkeypatch.setattr(ChatTemplate, "format", replace(whole, calls=replace(whole.calls, gap="")))
    assert round_trip(template)["text and call"].verdict == LOST


def test_what_is_not_shown_is_not_tried():
    assert verdicts(fallback_source("plain"))["thought"] == NOT_SHOWN


def test_a_format_that_loses_something_says_what():
    """A notation that nobody knows: the call is written backwards."""
    source = FAMILIES["function tags"].replace("f.arguments | tojson", "(f.arguments | tojson | reverse)")
    template = ChatTemplate(source)
    assert template.traits.calls is False or "call" in template.format.unsure
    shouted = FAMILIES["values on lines"].replace("(v if v is string else v | tojson)", "(v | string | reverse)")
    assert set(ChatTemplate(shouted).format.unsure) <= {"call", "two calls", "thought and call"}


def test_a_format_that_does_not_fit_its_template_is_unsure(monkeypatch):
    template = ChatTemplate(FAMILIES["a section of named calls"])
    monkeypatch.setattr(ChatTemplate, "format", GENERIC)
    found = {kind: trip.verdict for kind, trip in round_trip(template).items()}
    assert found["text"] == OK and found["call"] == found["two calls"] == LOST


def test_the_load_warns_once_of_what_is_unsure(caplog, monkeypatch):
    from llamasrv.pipeline.chat_profile import ChatProfile

    class Info:
        bos_token = eos_token = ""

    class Vocab:
        specials: tuple[str, ...] = ()
        controls: dict[str, int] = {}

        def tokenize(self, text):
            return []

    monkeypatch.setattr(ChatTemplate, "format", property(lambda self: GENERIC.__class__("x", unsure=("call",))))
    with caplog.at_level(logging.WARNING, "llamasrv"):
        ChatProfile.of(fallback_source(), Info(), Vocab())
    assert len(caplog.records) == 1 and "call" in caplog.text


def test_a_template_that_shows_no_turn_behind_its_prompt_is_unsure_of_all_kinds():
    """Command R+ gives its instructions last, so no turn can be tried."""
    source = (
        "{% for m in messages %}<turn><{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}"
        "<call>{{ c.function | tojson }}</call>{% endfor %}<end>{% endfor %}"
        "<turn><system>{{ tools | tojson }} Be brief.<end>{% if add_generation_prompt %}<turn><assistant>{% endif %}"
    )
    assert {"text", "call", "two calls"} <= set(ChatTemplate(source).format.unsure)
