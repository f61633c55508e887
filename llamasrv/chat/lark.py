"""Clients' Lark grammars, rewritten for use inside a call.

The text that a grammar describes is written raw between marks, or as a JSON string. Raw, no part of it may hold the
mark that ends it; in JSON, quotes, backslashes and control characters are escaped. Both change only terminals; rules
stay as they are. What cannot be changed this way is refused with its line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from llamasrv.chat.client_grammars import check_lark
from llamasrv.chat.rules import quoted
from llamasrv.errors import InvalidRequest

MAX_LENGTH = 64 * 1024  # max characters of a definition
_MAX_NESTING = 256  # max nested groups of a regular expression

_TOKEN = re.compile(
    r"""
      (?P<comment>//[^\n]*|\#[^\n]*)
    | (?P<range>"(?:\\.|[^"\\\n])*"\s*\.\.\s*"(?:\\.|[^"\\\n])*")
    | (?P<string>"(?:\\.|[^"\\\n])*"i?)
    | (?P<regex>/(?:\\.|\[(?:\\.|[^\]\\\n])+\]|[^/\\\n\[])+/[a-z]*)
    | (?P<imported>%import\s+common\s*\.\s*(?P<name>\w+)(?:\s*->\s*(?P<alias>\w+))?)
    | (?P<ignore>%ignore\b)
    | (?P<refused>%\w*|<[^\n>]*>|[@\[]\w*(?=\s*[{(]))
    | (?P<word>[A-Za-z_]\w*)
    | (?P<other>[\d\s:|()\[\]?*+.,~!>{}-])
    """,
    re.VERBOSE,
)

COMMON = {
    "LF": r"\n", "CR": r"\r", "NEWLINE": r"(?:\r?\n)+", "WS": r"[ \t\f\r\n]+", "WS_INLINE": r"[ \t]+",
    "DIGIT": "[0-9]", "HEXDIGIT": "[0-9a-fA-F]", "INT": "[0-9]+", "SIGNED_INT": "[+-]?[0-9]+",
    "DECIMAL": r"(?:[0-9]+\.[0-9]*|\.[0-9]+)", "LCASE_LETTER": "[a-z]", "UCASE_LETTER": "[A-Z]", "LETTER": "[A-Za-z]",
    "WORD": "[A-Za-z]+", "CNAME": "[_A-Za-z][_A-Za-z0-9]*",
    "FLOAT": r"(?:[0-9]+[eE][+-]?[0-9]+|(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)",
    "NUMBER": r"(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+)(?:[eE][+-]?[0-9]+)?",
    "SIGNED_NUMBER": r"[+-]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+)(?:[eE][+-]?[0-9]+)?",
    "ESCAPED_STRING": r'"(?:[^"\\\n]|\\[^\n])*"', "SH_COMMENT": r"\#[^\n]*", "CPP_COMMENT": r"\/\/[^\n]*",
}  # fmt: skip
"""What `%import common.NAME` means, as regular expressions."""


class CannotEnforce(InvalidRequest):
    """A grammar that cannot be enforced inside a call. The message names the place."""


def _refuse(what: str) -> CannotEnforce:
    return CannotEnforce(f"{what} cannot be enforced inside a call.", param="tools")


def raw(definition: str, mark: str) -> str:
    """The grammar for text between marks, which ends wherever `mark` occurs."""
    return _Raw(mark).rewritten(definition)


def escaped(definition: str) -> str:
    """The grammar for the inside of a JSON string."""
    return _Escaped().rewritten(definition)


def _slashed(pattern: str) -> str:
    return re.sub(r"(?<!\\)((?:\\\\)*)/", r"\1\\/", pattern)


class _Rewriter:
    """Writes a definition with other terminals. Terminals that it adds have names of their own."""

    def __init__(self) -> None:
        self._added: dict[str, str] = {}

    def text(self, value: str) -> str:
        """A fixed text."""
        raise NotImplementedError

    def regex(self, body: str, flags: str) -> str:
        """A regular expression; `flags` some of i and s."""
        raise NotImplementedError

    def word(self, name: str) -> str:
        return name

    def ignore(self, token: str) -> str:
        return token

    def added(self, written: str, *, rule: bool = False) -> str:
        """The name of a terminal or rule of this body."""
        prefix = "llamasrv_r" if rule else "LLAMASRV_"
        return self._added.setdefault(written, f"{prefix}{len(self._added)}")

    def rewritten(self, definition: str) -> str:
        if len(definition) > MAX_LENGTH:
            raise CannotEnforce(f"The grammar is longer than {MAX_LENGTH} characters.", param="tools")
        out: list[str] = []
        for kind, found, line in _tokens(definition):
            try:
                out.append(self._token(kind, found))
            except CannotEnforce as error:
                raise CannotEnforce(f"line {line}: {error.message}", param="tools") from None
            except ValueError:
                raise CannotEnforce(f"line {line}: {found[0]} is not a string.", param="tools") from None
        try:
            check_lark(definition)
        except InvalidRequest as error:
            raise CannotEnforce(error.message, param="tools") from None
        return "\n".join(("".join(out), *(f"{name}: {written}" for written, name in self._added.items())))

    def _token(self, kind: str, found: re.Match[str]) -> str:
        token = found[0]
        if kind == "comment":
            return ""
        if kind == "string":
            value = _value_of(token.removesuffix("i"))
            return self.regex(re.escape(value), "i") if token.endswith("i") else self.text(value)
        if kind == "regex":
            body, _, flags = token[1:].rpartition("/")
            if set(flags) - set("isu"):
                raise _refuse(f"The flags '{flags}' of /{body}/")
            return self.regex(body, flags.replace("u", ""))
        if kind == "range":
            ends = [_value_of(end) for end in re.findall(r'"(?:\\.|[^"\\])*"', token)]
            if any(len(end) != 1 for end in ends):
                raise _refuse(f"The range {token}")
            return self.regex(f"[{re.escape(ends[0])}-{re.escape(ends[1])}]", "")
        if kind == "imported":
            if found["name"] not in COMMON:
                raise _refuse(f"'%import common.{found['name']}'")
            return f"{self.word(found['alias'] or found['name'])}: {self.regex(COMMON[found['name']], '')}"
        if kind == "word":
            return self.word(token)
        if kind == "ignore":
            return self.ignore(token)
        if kind == "refused":
            raise _refuse(f"'{token}'")
        return token


def _tokens(definition: str) -> Iterator[tuple[str, re.Match[str], int]]:
    position, line = 0, 1
    while position < len(definition):
        found = _TOKEN.match(definition, position)
        if found is None:
            rest = definition[position : position + 16].split("\n")[0]
            raise CannotEnforce(f"line {line}: unexpected {rest!r}.", param="tools")
        yield next(name for name, value in found.groupdict().items() if value is not None), found, line
        line += found[0].count("\n")
        position = found.end()


def _value_of(token: str) -> str:
    value = json.loads(re.sub(r"\\x([0-9a-fA-F]{2})", r"\\u00\1", token))
    assert isinstance(value, str)
    return value


class _Raw(_Rewriter):
    """No terminal contains the mark or ends with its beginning, so the mark cannot arise where two terminals meet,
    either."""

    def __init__(self, mark: str) -> None:
        super().__init__()
        self._mark = mark
        self._begun = [mark[:size] for size in range(1, len(mark))]
        self._without = f"~/(?s:.*)(?:{_slashed(re.escape(mark))})(?s:.*)/"
        if self._begun:
            self._without += f" & ~/(?s:.*)(?:{'|'.join(_slashed(re.escape(begun)) for begun in self._begun)})/"

    def text(self, value: str) -> str:
        if self._mark in value or any(map(value.endswith, self._begun)):
            shown = json.dumps(value, ensure_ascii=False)
            raise _refuse(f"The text {shown}, which holds a part of {self._mark!r}, this model's end of a value,")
        return quoted(value)

    def regex(self, body: str, flags: str) -> str:
        return self.added(f"/(?{flags}:{body})/ & {self._without}")


class _Escaped(_Rewriter):
    """Whatever JSON escapes with a backslash becomes a terminal of its own: llguidance's lexer takes the longest
    terminal and does not go back, so a terminal that ends before a line break must not share its backslash.
    Expressions that allow such characters become rules, and so do terminals that contain them."""

    def text(self, value: str) -> str:
        return quoted(_in_json(value))

    def word(self, name: str) -> str:
        return f"llamasrv_t_{name.lower()}" if name.isupper() else name

    def ignore(self, token: str) -> str:
        raise _refuse(f"'{token}' in a JSON string")

    def regex(self, body: str, flags: str) -> str:
        out: list[str] = []
        changed = False
        atoms = list(_atoms(body, flags))
        for place, (operator, (plain, special)) in enumerate(atoms):
            if operator:
                out.append(operator)
                continue
            changed = changed or bool(special)
            if plain and atoms[place + 1 : place + 2] and atoms[place + 1][0] in ("*", "+"):
                plain = f"/{plain[1:-1]}+/"  # a run of plain characters is one terminal
            out.append(f"({' | '.join(filter(None, (plain and self.added(plain), *special)))})")
        if not changed:
            return self.added(f"/(?{flags}:{body})/")
        return self.added(" ".join(out), rule=True)


# ---------------------------------------------------------------- inside JSON strings

_SPECIAL = [chr(n) for n in range(32)] + ['"', "\\"]
_PLAIN = r'[^"\\\x00-\x1f]'
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a", "0": "\0"}
_ATOM = re.compile(
    r"""
      (?P<klass>\[\^?\]?(?:\\.|[^\]\\])*\])
    | (?P<open>\((?:\?(?P<flags>[is]*):|(?P<odd>\?[^:]?)|(?!\?)))
    | (?P<code>\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|x\{[0-9a-fA-F]{1,6}\}|u\{[0-9a-fA-F]{1,6}\}))
    | (?P<property>\\p(?:[LNM]|\{[LNM][a-z]?\}))
    | (?P<escape>\\.)
    | (?P<count>\{\d*,?\d*\}|[*+?|])
    | (?P<close>\))
    | (?P<dot>\.)
    | (?P<char>[^\\\[\]()])
    """,
    re.VERBOSE | re.DOTALL,
)
_Atom = tuple[str, list[str]]  # a terminal for what JSON writes as it is, texts for the rest


def _in_json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _atoms(regex: str, flags: str) -> Iterator[tuple[str, _Atom]]:
    """The parts of a regular expression: operators of a rule, or what matches one character."""
    groups = [flags]
    position = 0
    while position < len(regex):
        found = _ATOM.match(regex, position)
        if found is None:
            raise _refuse(f"/{regex}/")
        start, position, atom = position, found.end(), found[0]
        now = groups[-1]
        if found["open"]:
            if found["odd"] or len(groups) > _MAX_NESTING:
                raise _refuse(f"'{atom}' in /{regex}/")
            groups.append(now + (found["flags"] or ""))
            yield "(", ("", [])
        elif found["close"]:
            if len(groups) == 1:
                raise _refuse(f"/{regex}/")
            groups.pop()
            yield ")", ("", [])
        elif found["count"]:
            if atom == "?" and start and regex[start - 1] in "*+?}" and regex[start - 2 : start - 1] != "\\":
                continue  # lazy quantifiers match the same texts
            yield atom, ("", [])
        elif atom in ("^", "$"):
            if start if atom == "^" else position < len(regex):
                raise _refuse(f"'{atom}' in /{regex}/")
        else:
            yield "", _one_char(found, now, regex)


def _one_char(found: re.Match[str], flags: str, regex: str) -> _Atom:
    atom = found[0]
    if found["klass"]:
        return _class(atom, flags)
    if found["dot"]:
        return _class(r"[\s\S]" if "s" in flags else r"[^\n]", flags)
    if found["property"]:
        return f"/(?{'i' if 'i' in flags else ''}:{atom})/", []
    if found["code"]:
        return _char(chr(int(re.sub(r"[^0-9a-fA-F]", "", atom[2:]), 16)), flags)
    if found["escape"]:
        if atom[1] in _CONTROLS:
            return _char(_CONTROLS[atom[1]], flags)
        if atom[1] in "dDwWsS":
            return _class(f"[{atom}]", flags)
        if atom[1].isalnum():
            raise _refuse(f"'{atom}' in /{regex}/")
        return _char(atom[1], flags)
    return _char(atom, flags)


def _char(char: str, flags: str) -> _Atom:
    if char in _SPECIAL:
        return "", [json.dumps(_in_json(char))]
    return f"/(?{'i' if 'i' in flags else ''}:{_slashed(re.escape(char))})/", []


def _class(written: str, flags: str) -> _Atom:
    """A class of characters."""
    if re.search(r"(?<!\\)\[|&&|--|~~|\\[pPbB]", written[1:-1]):
        raise _refuse(f"The class {written}")
    try:
        matches = re.compile(written).fullmatch
    except re.error:
        raise _refuse(f"The class {written}") from None
    special = [json.dumps(_in_json(char)) for char in _SPECIAL if matches(char)]
    return f"/(?{'i' if 'i' in flags else ''}:[{_slashed(written)}&&{_PLAIN}])/", special
