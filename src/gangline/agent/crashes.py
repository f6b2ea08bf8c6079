"""Where a rank was when compiled code crashed below it: what `faulthandler` wrote, as a traceback reads.

The injected `sitecustomize` has it write to the rank's file of stacks; where the script or `PYTHONFAULTHANDLER` has
turned it on, or the interpreter itself gives up, it writes to the log. Pure; standard library only.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Mapping
from typing import Any

from gangline.agent.watch.frames import Thread, main_thread, parse_faulthandler, with_code

__all__ = ["crash_signal", "find_crash", "with_crash"]

_SAYS: Mapping[int, str] = {
    signal.SIGSEGV: "Segmentation fault",
    signal.SIGBUS: "Bus error",
    signal.SIGFPE: r"Floating.point exception",
    signal.SIGILL: "Illegal instruction",
    signal.SIGABRT: r"[^\n]*",
}
"""What it calls each signal; before it aborts, an interpreter says what it found."""
_CURRENT = "Current thread "
_SHELL_BASE = 128


def crash_signal(exit_code: int | None, number: int | None) -> int | None:
    """The signal of a crash, also where a shell around the program reports it; None: it was none."""
    found = number if number is not None else (exit_code or 0) - _SHELL_BASE
    return found if found in _SAYS else None


def find_crash(text: str, number: int, *, read_line: Callable[[str, int], str]) -> str:
    """The stack of the thread that crashed, outermost call first; "" where the text tells of no such crash.

    A thread that runs no Python, as those of autograd, has no stack: where the main thread was is what is known then.

    Args:
        text: the end of what was written; the last crash in it counts.
        read_line: file and number to the source line.
    """
    told = list(re.finditer(rf"^Fatal Python error: {_SAYS[number]}", text, re.MULTILINE))
    if not told:
        return ""
    dump = text[told[-1].end() :]
    threads = parse_faulthandler(dump)
    current = parse_faulthandler(_CURRENT + dump.partition(_CURRENT)[2])[:1]
    found = current[0] if current and current[0].frames else main_thread(threads)
    if found is None or not found.frames:
        return ""
    where = "the thread that crashed" if current and current[0].frames else "the main thread"
    return f"Stack of {where} (most recent call last):\n{_render(with_code([found], read_line)[0])}"


def with_crash(error: Mapping[str, Any] | None, stack: str) -> dict[str, Any]:
    """An error of a rank that holds the stack, too. Without a type it says no more than where the rank was."""
    known: Mapping[str, Any] = error or {"type": "", "message": "", "causes": []}
    return {**known, "traceback": f"{stack}{known.get('traceback') or ''}"}


def _render(thread: Thread) -> str:
    lines: list[str] = []
    for frame in reversed(thread.frames):
        lines.append(f'  File "{frame.file}", line {frame.line}, in {frame.function}')
        lines += [f"    {frame.code}"] if frame.code else []
    return "\n".join(lines) + "\n"
