"""Shows an answer as Markdown while it arrives: blocks that are complete stay, the one being written is redrawn."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.markdown import Markdown
from rich.segment import Segment

REDRAW = 0.08  # seconds between two drawings of the block being written
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # an answer must not move the cursor or ring
_FENCE = re.compile(r" *(`{3,}|~{3,})")


def visible(text: str) -> str:
    """The text without control characters, for a terminal."""
    return _CONTROL.sub("", text)


def markdown(text: str) -> Markdown:
    """Markdown in which lines end where they do in the text, and HTML, which rich would leave out, is shown as
    written."""
    shown = Markdown(text, hyperlinks=False)
    for token in shown.parsed:
        if token.type == "html_block":
            token.type = "code_block"
        for child in token.children or ():
            # Models end lines where they mean it; rich would join them.
            child.type = {"html_inline": "text", "softbreak": "hardbreak"}.get(child.type, child.type)
    return shown


def split(text: str) -> tuple[list[str], str]:
    """The complete blocks of a text that grows, and the rest. A block ends with a blank line that is not in a code
    block."""
    blocks: list[str] = []
    block: list[str] = []
    fence = ""
    lines = text.split("\n")
    for line in lines[:-1]:
        mark = _FENCE.match(line)
        if mark and not fence:
            fence = mark[1]
        elif mark and fence and mark[1].startswith(fence) and line.strip() == mark[1]:
            fence = ""
        if line.strip() or fence:
            block.append(line)
        elif block:
            blocks.append("\n".join(block))
            block = []
    return blocks, "\n".join([*block, lines[-1]])


class _End:
    """The last lines of a block that is higher than the screen."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = console.render_lines(markdown(self._text), options, pad=False)
        for line in lines[-max(1, console.height - 2) :]:
            yield from line
            yield Segment.line()


class MarkdownWriter:
    """An answer on a terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._rest = ""
        self._drawn = 0.0
        self._begun = False
        self._live = Live(console=console, auto_refresh=False, transient=True, vertical_overflow="visible")

    def __enter__(self) -> MarkdownWriter:
        return self

    def write(self, piece: str) -> None:
        if not self._live.is_started:  # not before: what is printed meanwhile would be redrawn as whole lines
            self._live.start()
        blocks, self._rest = split(self._rest + visible(piece))
        self._show(blocks)
        now = time.monotonic()
        if blocks or now - self._drawn > REDRAW:
            self._live.update(_End(self._rest), refresh=True)
            self._drawn = now

    def _show(self, blocks: Iterable[str]) -> None:
        for block in blocks:
            if self._begun:
                self._console.print()
            self._begun = True
            self._console.print(markdown(block))

    def __exit__(self, *error: object) -> None:
        self._live.stop()
        self._show([self._rest] if self._rest.strip() else [])
