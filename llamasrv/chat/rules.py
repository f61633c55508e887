"""Writes grammar rules under fresh names, in Lark as llguidance understands it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from llamasrv.chat.client_grammars import ESCAPES
from llamasrv.chat.schema_closing import closed
from llamasrv.chat.schema_limits import SchemaBounds
from llamasrv.chat.schema_references import check_references
from llamasrv.chat.schema_termination import has_an_end
from llamasrv.errors import InvalidRequest

MAX_DEPTH = 16
MAX_LENGTH = 4_000_000  # max characters of a grammar
TEXT = "X_TEXT"
INDENT = r"/[ \n]{0,80}/"  # between the parts of JSON on several lines


class RuleWriter:
    """Collects rules under fresh names."""

    def __init__(self, special_tokens: Mapping[str, int]) -> None:
        self.rules: list[str] = []
        self._numbers = special_tokens
        words = sorted(special_tokens, key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, words)) or "(?!)")
        self._names: dict[str, str] = {}
        self._bounds = SchemaBounds()

    def rule(self, body: str, *, lazy: bool = False) -> str:
        """The name of a rule with this body; equal bodies share one."""
        key = f"{lazy} {body}"
        name = self._names.get(key)
        if name is None:
            name = f"x{len(self._names)}"
            self._names[key] = name
            self.rules.append(f"{name}{'[lazy]' if lazy else ''}: {body}")
        return name

    def parametric(self, branches: Callable[[str], list[str]]) -> str:
        """The name of a rule with a parameter, to which its branches refer."""
        name = self.reserve()
        self.rules.append(f"{name}::_: " + "\n  | ".join(branches(name)))
        return name

    def recursive(self, key: str, body: Callable[[str], str]) -> str:
        """The name of the one rule of this key, whose body may refer to it."""
        name = self._names.get(key)
        if name is None:
            name = self._names[key] = f"x{len(self._names)}"
            self.rules.append(f"{name}: {body(name)}")
        return name

    def reserve(self) -> str:
        """A name for a rule that refers to itself."""
        name = f"x{len(self._names)}"
        self._names[name] = name
        return name

    def text(self, start: str) -> str:
        text = "\n".join(("%llguidance {}", f"start: {start}", f"{TEXT}: /(?s:.*)/", *self.rules)) + "\n"
        if len(text) > MAX_LENGTH:
            raise InvalidRequest("The grammar for these tools and this schema is too large.", param="tools")
        return text

    def literal(self, text: str) -> str:
        """Exactly this text, with special tokens by number."""
        parts: list[str] = []
        position = 0
        for found in self._special.finditer(text):
            if found.start() > position:
                parts.append(quoted(text[position : found.start()]))
            parts.append(f"<[{self._numbers[found.group()]}]>")
            position = found.end()
        if position < len(text):
            parts.append(quoted(text[position:]))
        return " ".join(parts) or '""'

    def terminal(self, body: str) -> str:
        """The name of a terminal for one regular expression."""
        key = f"terminal {body}"
        name = self._names.get(key)
        if name is None:
            name = f"X{len(self._names)}"
            self._names[key] = name
            self.rules.append(f"{name}: {body}")
        return name

    def is_special(self, text: str) -> bool:
        """Whether a text begins with a special token."""
        return self._special.match(text) is not None

    def until(self, mark: str) -> str:
        """Any text up to a mark, and the mark."""
        found = self._special.search(mark)
        if found is None:
            return self.rule(f"{TEXT} {self.literal(mark)}", lazy=True)
        if found.start() == 0:
            return f"{TEXT} {self.literal(mark)}"
        # A lazy rule must end with text; the tokens of the mark follow.
        begun = self.rule(f"{TEXT} {self.literal(mark[: found.start()])}", lazy=True)
        return f"{begun} {self.literal(mark[found.start() :])}"

    def admit(self, schema: Any, param: str) -> None:
        """Count a schema of the grammar. Raises InvalidRequest where that becomes too much."""
        self._bounds.add(schema, param)
        check_references(schema, param)

    def constant(self, text: str, param: str = "content") -> str:
        """A client's fixed text, which counts."""
        self._bounds.add({"const": text}, param)
        return self.literal(text)

    def schema(
        self,
        schema: Any,
        *,
        lenient: bool = True,
        separators: tuple[str, str] = (", ?", ": ?"),
        indented: bool = False,
    ) -> str:
        """A JSON value whose objects are closed. Spaces as the templates write them, or none; line breaks if it may be
        `indented`."""
        options = {
            "whitespace_flexible": False,
            "item_separator": separators[0],
            "key_separator": separators[1],
            "lenient": lenient,
            **ESCAPES,
        }
        if indented:
            options |= {"item_separator": ",", "key_separator": ":", "whitespace_pattern": INDENT[1:-1]}
        param = "tools" if lenient else "content"
        if schema is False:
            raise InvalidRequest("The schema 'false' matches nothing.", param=param)
        self._bounds.add(schema, param)
        if not has_an_end(schema):
            raise InvalidRequest("Nothing satisfies the schema: it refers to itself endlessly.", param=param)
        check_references(schema, param)
        body = closed(schema, param) if isinstance(schema, Mapping) else {}
        return self.rule(f"%json {json.dumps({**body, 'x-guidance': options}, ensure_ascii=False, default=dict)}")


def quoted(text: str) -> str:
    """As a string of Lark: JSON's, but that delete is a control character, too."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def escaped(pattern: str) -> str:
    """As a regular expression between slashes."""
    return re.sub(r"(?<!\\)((?:\\\\)*)/", r"\1\\/", pattern).replace("\n", "\\n")


def literal_pattern(text: str) -> str:
    """Exactly this text as a regular expression between slashes."""
    return escaped(re.escape(text).replace("\\\n", "\n"))  # else a line break is a backslash and an n
