"""What a skill makes: a conversation with its last answer, or a raw text.

Owns the rendering of both into text with its learned parts marked. Conversations go through `template.jinja`, the very
template that the GGUF carries, so training and serving cannot differ.
"""

import json
import re
from dataclasses import dataclass, field, replace
from pathlib import Path

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

TEMPLATE = Path(__file__).parent.parent.joinpath("template.jinja").read_text(encoding="utf-8")
END_OF_TURN, END_OF_TEXT = "<|im_end|>", "<|endoftext|>"
END_OF_THOUGHT = "</think>"
FIM_PREFIX, FIM_SUFFIX, FIM_MIDDLE = "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"

# What the model wrote in a rendered conversation: an assistant's turn with its end mark, without the thinking marks
# that the generation prompt has already written.
_LEARNED = re.compile(
    r"<\|im_start\|>assistant\n(?:<think>\n\n</think>\n\n|<think>\n)?(?P<turn>.*?<\|im_end\|>)", re.DOTALL
)


@dataclass
class ChatDocument:
    """A `question` after earlier `turns`; `answer` (or `calls`) is what follows."""

    question: str
    answer: str = ""
    thought: str = "This is a simple question. I can answer it at once."
    system: str | None = None
    turns: list = field(default_factory=list)  # earlier exchanges, each a list of messages
    tools: list | None = None
    calls: list = field(default_factory=list)  # (name, arguments): the answer, or what `results` answers
    results: list = field(default_factory=list)  # what the tools returned; then `answer` follows
    thinking: bool | None = None
    needs: tuple | None = None

    def messages(self):
        made = [{"role": "system", "content": self.system}] if self.system else []
        for turn in self.turns:
            made += turn
        made.append({"role": "user", "content": self.question})
        if self.results:
            made.append(self._calling())
            made += [{"role": "tool", "content": result} for result in self.results]
        return made

    def _calling(self):
        calls = [{"type": "function", "function": {"name": n, "arguments": a}} for n, a in self.calls]
        return {"role": "assistant", "content": "", "tool_calls": calls}

    def reply(self):
        made = {"role": "assistant", "content": self.answer} if self.results or not self.calls else self._calling()
        if self.thinking:
            made["reasoning_content"] = self.thought
        return made

    def exchange(self):
        """Question and answer as an earlier turn of another conversation."""
        return [
            *ChatDocument(self.question, calls=self.calls, results=self.results).messages(),
            replace(self, thinking=None).reply(),
        ]

    def prompt(self):
        return render(self.messages(), tools=self.tools, enable_thinking=self.thinking)

    def text(self):
        """The whole conversation as the model has to write it, through its end mark."""
        prompt = self.prompt()
        whole = render([*self.messages(), self.reply()], tools=self.tools, generate=False)
        if self.thinking is False:
            return prompt + whole[len(prompt) - len("<think>\n\n</think>\n\n") :].removesuffix("\n")
        return whole.removesuffix("\n")


def said(user, assistant):
    """An earlier turn of plain text."""
    return [{"role": "user", "content": user}, {"role": "assistant", "content": assistant}]


@dataclass
class TextDocument:
    """Raw text: `given` and what follows. With `learn_given`, all of it is learned (plain continuation)."""

    given: str
    follows: str
    learn_given: bool = False
    needs: tuple | None = None


@dataclass(frozen=True)
class Document:
    """`parts` are (text, learned); `given` and `expected` are the text split as the evaluation does it, before the
    last answer. If many answers are right, `needs` lists what each of them contains."""

    skill: str
    parts: tuple
    given: str
    expected: str
    needs: tuple | None = None

    def accepts(self, text):
        """Whether this is a right answer. The wording of a thought before it is not compared."""
        if self.needs is None:
            return _after_thought(text) == _after_thought(self.expected)
        return all(part in text for part in self.needs)


def _after_thought(text):
    """(whether there is a thought, what follows it)"""
    _, mark, answer = text.rpartition(END_OF_THOUGHT)
    return bool(mark), answer


def document(skill, made):
    if isinstance(made, TextDocument):
        follows = made.follows + END_OF_TEXT
        return Document(skill, ((made.given, made.learn_given), (follows, True)), made.given, follows, made.needs)
    given, text = made.prompt(), made.text()
    return Document(skill, tuple(_parts(text)), given, text[len(given) :], made.needs)


def _parts(text):
    end = 0
    for match in _LEARNED.finditer(text):
        yield text[end : match.start("turn")], False
        yield match["turn"], True
        end = match.end()


def render(messages, *, tools=None, enable_thinking=None, generate=True):
    options = {} if enable_thinking is None else {"enable_thinking": enable_thinking}
    return _compiled().render(messages=messages, tools=tools, add_generation_prompt=generate, **options)


def _compiled():
    # As servers set it up: no HTML escaping and no sorting of keys in `tojson`.
    if not hasattr(_compiled, "template"):
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
        environment.undefined = jinja2.ChainableUndefined
        _compiled.template = environment.from_string(TEMPLATE)
    return _compiled.template
