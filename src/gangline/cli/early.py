"""Ctrl-C while the command line is still being imported: one word, and no traceback.

Standard library only, and little of it: this is imported before all else.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # built in; `signal` would import enum first
import os
import sys

__all__ = ["arm", "disarm"]

_PROGRAMS = frozenset({"gangline", "-m"})
"""What `sys.argv[0]` is called when this process is the command line, at the time of its first import."""
_EXIT_INTERRUPTED = 130


def arm() -> None:
    """End this process at once and quietly on Ctrl-C, until `disarm`; only where it is the command line itself."""
    program = os.path.basename(sys.argv[0]) if sys.argv else ""  # noqa: PTH119 - pathlib is not imported yet
    if program in _PROGRAMS and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)


def disarm() -> None:
    """From here on Ctrl-C raises KeyboardInterrupt, as usual."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _leave(_number: int, _frame: object) -> None:
    os.write(2, b"interrupted\n")
    os._exit(_EXIT_INTERRUPTED)
