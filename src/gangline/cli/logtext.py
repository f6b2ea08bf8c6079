r"""Logs as plain text: control codes are taken out, a carriage return ends a piece, memory stays bounded.

A rank may write anything: colours, cursor moves, progress bars that never end a line, bytes that are no text. What
comes out here is lines that harm no terminal. Pure.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gangline.cli.text import visible_order

if TYPE_CHECKING:
    from gangline.wire.views import LogChunk

__all__ = ["LineAssembler", "LogPrinter", "Piece", "strip_controls"]

_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor moves
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # OSC: titles, links
    r"|\x1b[PX^_][^\x1b]*\x1b\\"  # device control and other strings
    r"|\x1b[ -/]*[0-OQ-WYZ\\`-~]"  # two-character escapes
)
_CUT_ESCAPE = re.compile(r"(?:\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b]*\x1b?|[ -/]*)|\x9b[0-?]*[ -/]*)\Z")
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_CONTROL_BYTES = bytes([*range(9), *range(11, 32), 127])
_LONGEST_ESCAPE = 4096
_LONGEST_PIECE = 65_536
_NEARLY_ALL = 65_536
"""Bytes that a rank may have written since a chunk was read, which still is what it shows now."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Some text of one rank; `ended` when a line ends with it. Of lines that ended, it may hold several."""

    text: str
    ended: bool


@dataclass(slots=True)
class LineAssembler:
    """Turns the chunks of one log into lines.

    Of a line that is drawn over and over with carriage returns, the last state is kept, and while it is followed those
    that were the newest at some moment: where a chunk ends says nothing of where a state does.
    """

    raw: bool = False
    """Control codes stay."""
    pending: str = ""
    """The line that has not ended yet, without control codes; of one that is drawn over, no more than the two newest
    states: the last one may not be whole."""
    unfinished: str = ""
    """What of it can be shown already."""
    _held: str = ""
    """The beginning of an escape whose end is in the next chunk."""
    _after_return: bool = False

    def feed(self, text: str, *, behind_bytes: int = 0) -> list[Piece]:
        """The pieces that `text` completes; a piece of a line longer than 64 KiB comes out before its end.

        Args:
            behind_bytes: how much more of the log there is already.
        """
        if text and not self._held and _is_plain(text):
            return self._feed_plain(text, behind_bytes)
        stripped, self._held = (text, "") if self.raw else strip_controls(self._held + text)
        joined = self._after_return and stripped.startswith("\n")
        if stripped:
            self._after_return = stripped.endswith("\r")
        stripped = stripped[1:] if joined else stripped
        lines = stripped.replace("\r\n", "\n").split("\n")
        pieces: list[Piece] = []
        for line in lines[:-1]:
            pieces.append(Piece(_newest_state(self.pending + line), ended=True))
            self.pending = ""
        self._keep(lines[-1], pieces, behind_bytes)
        return pieces

    def _feed_plain(self, text: str, behind_bytes: int) -> list[Piece]:
        """The same for most text by far, many lines at once."""
        if self._after_return and text.startswith("\n"):
            text = text[1:]
        self._after_return = False
        whole, ended, rest = text.rpartition("\n")
        pieces: list[Piece] = []
        if ended:
            first, several, others = whole.partition("\n")
            pieces.append(Piece(_newest_state(self.pending + first), ended=True))
            pieces += [Piece(others, ended=True)] if several else []
            self.pending = ""
        self._keep(rest, pieces, behind_bytes)
        return pieces

    def finish(self) -> list[Piece]:
        """What is left at the end of the log."""
        rest, self.pending, self._held, self.unfinished = _newest_state(self.pending), "", "", ""
        return [Piece(rest, ended=False)] if rest else []

    def _keep(self, rest: str, pieces: list[Piece], behind_bytes: int) -> None:
        drawn, returned, current = (self.pending + rest).rpartition("\r")
        state = _newest_state(drawn)
        self.unfinished = "" if returned and behind_bytes else current
        if state and behind_bytes <= _NEARLY_ALL:
            pieces.append(Piece(state, ended=True))
            state = ""
        if len(current) > _LONGEST_PIECE:
            pieces.append(Piece(current, ended=False))
            current = state = returned = self.unfinished = ""
        self.pending = f"{state}{returned}{current}"


@dataclass(slots=True)
class LogPrinter:
    """Writes the logs of one rank, or of several with labels, as they come in.

    Args:
        write: takes text as it is to appear.
        label: text before each line, by rank; None for a single rank, whose unfinished lines are shown at once.
        raw: pass text on as it is; with labels it is still cut into lines.
        line_chars: longer lines end there, with a note; None: never.
        live: the log is followed: of a line that is drawn over, states are shown as they come.
    """

    write: Callable[[str], object]
    label: Callable[[int], str] | None = None
    raw: bool = False
    line_chars: int | None = None
    live: bool = True
    _columns: dict[int, int] = field(default_factory=dict)
    """Characters that the line of a rank has had so far."""
    _assemblers: dict[int, LineAssembler] = field(default_factory=dict)
    _shown: str = ""
    """What is on the screen of the assembler's pending text (single rank only)."""
    _open: bool = False
    """The line on the screen has not ended."""

    def feed(self, chunk: LogChunk) -> None:
        """Print what the chunk completes."""
        if self.raw and self.label is None:
            self.write(chunk["text"])
            return
        rank = chunk["rank"]
        assembler = self._assemblers.setdefault(rank, LineAssembler(raw=self.raw))
        behind = max(0, chunk["size"] - chunk["next_offset"]) if self.live else sys.maxsize
        pieces = assembler.feed(chunk["text"], behind_bytes=behind)
        if chunk["complete"]:
            pieces += assembler.finish()
        self._print(rank, pieces)
        if self.label is None and assembler.unfinished:
            self._print_open(self._cut(rank, assembler.unfinished))

    def finish(self) -> None:
        """Print what no line end followed, and end the line."""
        for rank, assembler in self._assemblers.items():
            self._print(rank, assembler.finish())
        self._assemblers.clear()
        self.break_line()

    def break_line(self) -> None:
        """Begin a new line if one has been left open."""
        if self._open:
            self.write("\n")
        self._open, self._shown = False, ""

    def _print(self, rank: int, pieces: list[Piece]) -> None:
        if self.label is not None:
            label = self.label(rank)
            shown = (text for piece in pieces if (text := self._take(rank, piece)) is not None)
            self.write("".join(label + text.replace("\n", f"\n{label}") + "\n" for text in shown))
            return
        for piece in pieces:
            self._print_open(self._take(rank, piece) or "")
            self._shown = ""
            if piece.ended:
                self.write("\n")
                self._open = False

    def _take(self, rank: int, piece: Piece) -> str | None:
        """What is shown of a piece; None: nothing, of a line that has been cut before."""
        if self.line_chars is None:
            return piece.text
        if "\n" in piece.text:
            return "\n".join(self._cut(rank, line) for line in piece.text.split("\n"))
        text = self._cut(rank, piece.text)
        over = self._columns.get(rank, 0) > self.line_chars
        self._columns[rank] = 0 if piece.ended else self._columns.get(rank, 0) + len(piece.text)
        return None if over else text

    def _cut(self, rank: int, text: str) -> str:
        if self.line_chars is None:
            return text
        room = self.line_chars - self._columns.get(rank, 0)
        if len(text) <= room:
            return text
        note = f" … [line of more than {self.line_chars:,} characters; --raw shows it]"
        return text[:room] + note if room >= 0 else ""

    def _print_open(self, text: str) -> None:
        """Bring the open line to `text`, without repeating what is on the screen already."""
        if self._shown and not text.startswith(self._shown):
            self.break_line()
        self.write(text[len(self._shown) :])
        self._shown = text
        self._open = self._open or bool(text)


def strip_controls(text: str) -> tuple[str, str]:
    r"""The text without control codes (line feeds, tabs, carriage returns stay), and an escape cut off at its end.

    What turns the order of letters around is shown as an escape (`\u202e`), as in every table.
    """
    if _is_plain(text):
        return text, ""
    cut = _CUT_ESCAPE.search(text, max(0, len(text) - _LONGEST_ESCAPE)) if "\x1b" in text or "\x9b" in text else None
    held = cut.group() if cut and len(cut.group()) <= _LONGEST_ESCAPE else ""
    whole = text[: len(text) - len(held)] if held else text
    return visible_order(_CONTROLS.sub("", _ESCAPES.sub("", whole))), held


def _is_plain(text: str) -> bool:
    """Whether it is nothing but printable ASCII, tabs and line feeds."""
    return text.isascii() and len(text) == len(text.encode("ascii").translate(None, _CONTROL_BYTES))


def _newest_state(line: str) -> str:
    """What a terminal would show of a line drawn over with carriage returns: the last state that is not empty."""
    if "\r" not in line:
        return line
    return next((state for state in reversed(line.split("\r")) if state), "")
