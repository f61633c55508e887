"""Reads messages on a terminal: one line, a paste of several lines, or several lines between triple quotes.

Edits with readline. Lines are kept for later sessions in a file that only this user can read.
"""

from __future__ import annotations

import json
import readline
from collections.abc import Callable, Sequence
from pathlib import Path

QUOTES = '"""'
MOST_LINES = 1000
LONGEST = 10_000  # characters of a message that is kept

# Passed to `input` with colours marked as zero width: readline redraws the line while it is edited.
PROMPT = "\001\x1b[1;36m\002you\001\x1b[0m\002 › "
MORE = "\001\x1b[2m\002...\001\x1b[0m\002 "


class LineReader:
    """Messages from the terminal, with a history."""

    def __init__(self, history: Path, words: Callable[[str], Sequence[str]], most: int = MOST_LINES) -> None:
        """`words`: completions of the word at the cursor, given the line up to there. `most`: messages kept over
        sessions."""
        self._history = history
        self._most = most
        self._words = words
        self._found: Sequence[str] = ()
        # Python switches it off. With it a paste of several lines is one message.
        readline.parse_and_bind("set enable-bracketed-paste on")
        readline.parse_and_bind("tab: complete")
        readline.set_completer_delims(" \t\n")
        readline.set_completer(self._complete)
        readline.set_auto_history(False)
        readline.clear_history()
        for message in self._kept():
            readline.add_history(message)

    def read(self, keep: bool = True) -> str:
        """The next message. `keep`: in the history of later sessions. Raises EOFError and KeyboardInterrupt."""
        text = input(PROMPT).strip()
        if text.startswith(QUOTES):
            text = self._quoted(text[len(QUOTES) :])
        if text:
            readline.add_history(text)
            if keep and len(text) <= LONGEST:
                self._keep(text)
        return text

    def _quoted(self, text: str) -> str:
        while not text.rstrip().endswith(QUOTES):
            text += "\n" + input(MORE)
        return text.rstrip()[: -len(QUOTES)].strip("\n")

    def _kept(self) -> list[str]:
        try:
            lines = self._history.read_text("utf-8").splitlines()
        except (OSError, UnicodeDecodeError):
            return []
        messages = []
        for line in lines[-self._most :]:
            try:
                message = json.loads(line)
            except ValueError:
                continue
            if isinstance(message, str):
                messages.append(message)
        if len(lines) > 2 * self._most:
            self._write("".join(json.dumps(message) + "\n" for message in messages), "w")
        return messages

    def _keep(self, message: str) -> None:
        self._write(json.dumps(message) + "\n", "a")

    def _write(self, text: str, mode: str) -> None:
        """A folder that cannot be written costs the history and nothing else."""
        try:
            self._history.parent.mkdir(parents=True, exist_ok=True)
            self._history.touch(0o600)
            with self._history.open(mode, encoding="utf-8") as file:
                file.write(text)
        except OSError:
            pass

    def _complete(self, word: str, number: int) -> str | None:
        if number == 0:
            line = readline.get_line_buffer()[: readline.get_endidx()]
            self._found = [one for one in self._words(line) if one.startswith(word)]
        return self._found[number] if number < len(self._found) else None
