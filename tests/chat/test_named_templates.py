"""Chat templates that llama.cpp knows by name: ours render what the library renders."""

from __future__ import annotations

import ctypes

import llama_cpp
import pytest

from llamasrv.chat.template import ChatTemplate
from llamasrv.config.paths import templates_dir
from llamasrv.domain.request import ChatPrompt, Message

OURS = {"plain"}  # a fallback that llama.cpp does not have


def known():
    count = llama_cpp.llama_chat_builtin_templates(None, 0)
    names = (ctypes.c_char_p * count)()
    llama_cpp.llama_chat_builtin_templates(names, count)
    return sorted(name.decode() for name in names)


def by_the_library(name, messages, go_on):
    array = (llama_cpp.llama_chat_message * len(messages))(
        *(llama_cpp.llama_chat_message(role=role.encode(), content=text.encode()) for role, text in messages)
    )
    text = ctypes.create_string_buffer(4096)
    size = llama_cpp.llama_chat_apply_template(name.encode(), array, len(messages), go_on, text, len(text))
    return text.raw[:size].decode()


# Where the library leaves a system message out, ours goes into the first question: nothing is lost.
LOSES_SYSTEM = {"yandex"}

# The first is that of llama.cpp's own tests.
TALKS = (
    (
        ("system", "You are a helpful assistant"),
        ("user", "Hello"),
        ("assistant", "Hi there"),
        ("user", "Who are you"),
        ("assistant", "   I am an assistant   "),
        ("user", "Another question"),
    ),
    (("user", "  Hello "),),
    (("system", " Be brief. "), ("user", "It's 'a'\nb")),
)


def source(name):
    return (templates_dir() / "chat" / f"{name}.jinja").read_text("utf-8")


@pytest.mark.parametrize("name", known())
def test_a_named_template_renders_what_the_library_renders(name):
    template = ChatTemplate(source(name))
    for talk in TALKS:
        if name in LOSES_SYSTEM and talk[0][0] == "system":
            continue
        prompt = ChatPrompt(tuple(Message(role, text) for role, text in talk))
        assert template.render(prompt).text == by_the_library(name, talk, True)


def test_every_name_is_there_and_no_other():
    assert {path.stem for path in (templates_dir() / "chat").glob("*.jinja")} - OURS == set(known())


def test_the_rendering_is_the_one_that_llama_cpp_states():
    """One by hand, so that a library that renders nothing would be noticed."""
    prompt = ChatPrompt(tuple(Message(role, text) for role, text in TALKS[0]))
    assert ChatTemplate(source("mistral-v7")).render(prompt).text == (
        "[SYSTEM_PROMPT] You are a helpful assistant[/SYSTEM_PROMPT][INST] Hello[/INST] Hi there</s>"
        "[INST] Who are you[/INST]    I am an assistant   </s>[INST] Another question[/INST]"
    )
