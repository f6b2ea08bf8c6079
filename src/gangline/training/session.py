"""What one process knows while it trains: its context and its open files. A forked child forgets it and reads anew.

Standard library only.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from gangline.training.context import Context, parse_context
from gangline.training.writer import RecordWriter

__all__ = ["current", "forget", "on_forget", "resumed_from", "writer"]

_context: Context | None = None
_writer: RecordWriter | None = None
_resumed: set[Path] = set()
_forgetters: list[Callable[[], None]] = []


def current() -> Context:
    """Who this process is: numbers, run, attempt, folders. Read once from the environment; see `Context`."""
    global _context  # noqa: PLW0603 - one context for the process is what this module is for
    if _context is None:
        _context = parse_context(os.environ)
    return _context


def writer() -> RecordWriter:
    """Where this process records what training says; made at first use."""
    global _writer  # noqa: PLW0603 - as above
    if _writer is None:
        _writer = RecordWriter.for_context(current())
    return _writer


def resumed_from(path: Path | None = None) -> list[Path]:
    """Checkpoints that this process may be reading from, which retention leaves alone; `path` is added to them."""
    resume = current().resume
    _resumed.update(one for one in (path, resume) if one is not None)
    return sorted(_resumed)


def on_forget(action: Callable[[], None]) -> None:
    """Have something called whenever this process starts over: in a forked child, and in `forget`."""
    _forgetters.append(action)


def forget() -> None:
    """Start over: the next call reads the environment again. Nothing that waits is written."""
    global _context, _writer  # noqa: PLW0603 - as above
    for action in _forgetters:
        action()
    if _writer is not None:
        _writer.abandon()
    _context = _writer = None
    _resumed.clear()


os.register_at_fork(after_in_child=forget)
