"""What the terminal can do: its size, its colours, its characters. Asked once, then passed down.

Imports click, never rich.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TextIO

import click

from gangline.cli.text import clip

__all__ = ["PHASE_COLOURS", "UNLIMITED_COLUMNS", "Terminal", "prepare_streams", "say"]

UNLIMITED_COLUMNS = 10_000
"""Width of a pipe: nothing is cut."""
MIN_COLUMNS = 20
PAGE_COLUMNS = 100
"""Wider than this, running text is hard to read; tables may use all."""
PHASE_COLOURS: Mapping[str, str] = {
    "queued": "blue",
    "starting": "cyan",
    "running": "cyan",
    "restarting": "yellow",
    "stopping": "yellow",
    "preempted": "yellow",
    "unknown": "magenta",
    "succeeded": "green",
    "failed": "red",
    "stopped": "yellow",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminal:
    """One output stream and what it can show."""

    width: int = 80
    height: int = 24
    colour: bool = False
    unicode: bool = True
    live: bool = False
    """Lines may be drawn again in place."""
    now: float = field(default_factory=time.time)

    @classmethod
    def from_stream(cls, stream: TextIO | None = None, env: Mapping[str, str] = os.environ) -> Terminal:
        """Look at a stream (stdout by default) and at COLUMNS, LINES, NO_COLOR, FORCE_COLOR and TERM."""
        stream = stream or sys.stdout
        is_tty = stream.isatty()
        dumb = env.get("TERM", "") in {"dumb", ""}
        columns, lines = _measure(stream) if is_tty else (UNLIMITED_COLUMNS, 24)
        return cls(
            width=max(MIN_COLUMNS, _setting(env, "COLUMNS") or columns),
            height=_setting(env, "LINES") or lines,
            colour=_wants_colour(env, is_tty=is_tty, dumb=dumb),
            unicode=_can_encode(stream, "…─⣿█"),
            live=is_tty and not dumb,
            now=time.time(),
        )

    @property
    def page(self) -> int:
        """Columns for running text and plots."""
        return min(self.width, PAGE_COLUMNS)

    @property
    def mark(self) -> str:
        """What stands for text that was cut."""
        return "…" if self.unicode else "..."

    @property
    def dot(self) -> str:
        """What stands between facts in one line."""
        return " · " if self.unicode else " - "

    def clip(self, text: str, width: int | None = None) -> str:
        """The text cut to `width` columns, by default the terminal's."""
        return clip(text, self.width if width is None else width, mark=self.mark)

    def paint(self, text: str, colour: str | None = None, *, bold: bool = False, dim: bool = False) -> str:
        """The text in a colour, where there are colours."""
        if not self.colour:
            return text
        return click.style(text, fg=colour, bold=bold or None, dim=dim or None)

    def heading(self, text: str) -> str:
        """The title of a block."""
        return self.paint(text, bold=True)

    def phase(self, phase: str, text: str = "") -> str:
        """A phase, or a text that belongs to it, in the phase's colour."""
        return self.paint(text or phase, PHASE_COLOURS.get(phase), bold=True)


def prepare_streams() -> None:
    """Let characters that the terminal's encoding lacks be shown as escapes instead of ending the command."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def say(text: str, *, err: bool = False, end: str = "\n") -> None:
    """Write text to stdout or stderr as it is, at once."""
    stream = sys.stderr if err else sys.stdout
    stream.write(text + end)
    stream.flush()


def _measure(stream: TextIO) -> tuple[int, int]:
    """Columns and lines of a terminal."""
    try:
        columns, lines = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        return 80, 24
    return columns or 80, lines or 24


def _setting(env: Mapping[str, str], name: str) -> int:
    text = env.get(name, "")
    return int(text) if text.isdecimal() else 0


def _wants_colour(env: Mapping[str, str], *, is_tty: bool, dumb: bool) -> bool:
    if env.get("NO_COLOR"):
        return False
    if env.get("FORCE_COLOR", "0") not in {"", "0"}:
        return True
    return is_tty and not dumb


def _can_encode(stream: TextIO, text: str) -> bool:
    try:
        text.encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
