"""What comes before the command line is imported: Ctrl-C is one word and no traceback, and garbage waits.

Standard library only, and little of it: this is imported before all else.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # built in; `signal` would import enum first
import gc
import os
import sys

__all__ = ["arm", "disarm"]

_PROGRAMS = frozenset({"gangline", "-m"})
"""What `sys.argv[0]` is called when this process is the command line, at the time of its first import."""
_EXIT_INTERRUPTED = 130
_COLLECT_AFTER = 50_000
"""New objects between two garbage collections: what imports make is no garbage, and looking for it took 10 ms."""


def arm() -> None:
    """End this process at once and quietly on Ctrl-C, until `disarm`, and seldom look for garbage.

    Only where it is the command line itself.
    """
    program = os.path.basename(sys.argv[0]) if sys.argv else ""  # noqa: PTH119 - pathlib is not imported yet
    if program in _PROGRAMS and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)
        gc.set_threshold(_COLLECT_AFTER)


def disarm() -> None:
    """From here on Ctrl-C raises KeyboardInterrupt, as usual."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _leave(_number: int, _frame: object) -> None:
    os.write(2, b"interrupted\n")
    os._exit(_EXIT_INTERRUPTED)
