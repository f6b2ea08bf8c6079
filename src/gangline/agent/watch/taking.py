"""Take the stacks of a node's ranks, without disturbing them. Standard library only.

Every process of a rank that registered the injected handler is asked by its signal, one after the other within a rank
as they share the rank's `.stacks` file, all ranks at once. py-spy, where it is installed, is asked for what the handler
cannot do: stopped processes, programs without it, native frames.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from gangline.agent.inject import STACKS_SIGNAL
from gangline.agent.loop import Loop
from gangline.agent.processes import find_descendants, is_python, send
from gangline.agent.ranktree import read_state
from gangline.agent.watch.frames import Thread, parse_faulthandler, parse_pyspy, render_threads, with_code
from gangline.rundir.layout import AttemptDir

if TYPE_CHECKING:
    import subprocess

__all__ = ["SourceLines", "Taking", "explain_spy", "find_pyspy", "handles_signal", "parse_caught"]

_TICK_S = 0.01
_PATIENCE_S = 1.0
"""For the handler: it runs at once wherever the process runs at all."""
_PYSPY_S = 5.0
_MOST_PYSPY = 4
"""At once."""
_MOST_CHILDREN = 8
_NO_SPY = "py-spy is not installed in the environment of the ranks (`pip install py-spy`)"
_NO_LOOK = (
    "the kernel does not let this user look into the process (ptrace); containers need the capability SYS_PTRACE, "
    "other machines `sysctl kernel.yama.ptrace_scope=0`"
)
_SPY_CHARS = 200
_LONGEST_BYTES = 1 << 20
_LARGEST_SOURCE_BYTES = 4 << 20


@dataclass(slots=True)
class _Dump:
    """The dump of one process under way."""

    pid: int
    child: bool
    state: str
    handler: bool
    python: bool
    offset: int = 0
    size: int = -1
    still: int = 0
    deadline: float = 0.0
    how: str = ""
    threads: list[Thread] = field(default_factory=list)
    note: str = ""
    spy: subprocess.Popen[bytes] | None = None
    output: IO[bytes] | None = None


@dataclass(slots=True)
class _Rank:
    """The dumps of one rank, and the file that they go to."""

    rank: int
    pid: int
    path: Path
    waiting: list[_Dump] = field(default_factory=list)
    done: list[_Dump] = field(default_factory=list)
    current: _Dump | None = None


class Taking:
    """One request for stacks on one node.

    Args:
        ranks: pid of each rank that is asked for.
        order: `id`, `native` and `patience_s`, after which the answer is what there is.
        on_done: called once, with what the leader gets of each rank.
        helpers: pids of children that the end of an attempt spares.
    """

    def __init__(
        self,
        loop: Loop,
        folder: AttemptDir,
        ranks: Mapping[int, int],
        *,
        order: Mapping[str, Any],
        pyspy: str | None,
        helpers: set[int],
        on_done: Callable[[list[dict[str, Any]]], None],
    ) -> None:
        self._loop = loop
        self._native = bool(order.get("native"))
        self._title = f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {order['id']}"
        self._pyspy = pyspy
        self._helpers = helpers
        self._on_done = on_done
        self._spies = 0
        self._deadline = time.monotonic() + float(order.get("patience_s", 5.0))
        self._sources = SourceLines()
        self._ranks = [_Rank(rank, pid, folder.stacks(rank)) for rank, pid in sorted(ranks.items())]
        for one in self._ranks:
            one.waiting = self._plan(one)
        loop.after(0.0, self._tick)

    def _plan(self, one: _Rank) -> list[_Dump]:
        """The rank itself, and the Python programs below it: mostly workers of a data loader."""
        children = [process.pid for process in find_descendants(one.pid) if not process.dead]
        dumps = []
        for pid in (one.pid, *children):
            handler, python = handles_signal(pid), is_python(pid)
            if pid == one.pid or handler or python:
                dumps.append(_Dump(pid, pid != one.pid, read_state(pid), handler, python))
        return dumps[: _MOST_CHILDREN + 1]

    def _tick(self) -> None:
        now = time.monotonic()
        for one in self._ranks:
            if one.current is None and one.waiting:
                self._begin(one, one.waiting[0], now)
            if one.current is not None:
                self._step(one, one.current, now)
            if now > self._deadline:
                self._give_up(one)
        if any(one.waiting or one.current for one in self._ranks):
            self._loop.after(_TICK_S, self._tick)
        else:
            self._on_done([self._describe(one) for one in self._ranks])

    def _give_up(self, one: _Rank) -> None:
        """What has not come in time is left out; it says so."""
        if one.current is not None:
            self._end_spy(one.current)
            one.waiting.insert(0, one.current)
        for dump in one.waiting:
            dump.note = dump.note or f"there was no time for it ({_kernel_place(dump.pid)})"
            self._finish(one, dump)
        one.waiting = []

    def _begin(self, one: _Rank, dump: _Dump, now: float) -> None:
        by_spy = self._pyspy is not None and dump.python and self._wants_spy(dump)
        if by_spy and self._spies >= _MOST_PYSPY:
            return
        one.waiting.pop(0)
        one.current = dump
        if by_spy:
            self._begin_spy(dump, now)
        elif dump.handler and dump.state not in {"stopped", "traced"}:
            whose = f"rank {one.rank}" if not dump.child else f"process {dump.pid} of rank {one.rank}"
            dump.offset = _append(one.path, f"\n# {self._title} {whose}\n")
            dump.deadline = now + _PATIENCE_S
            dump.how = "faulthandler"
            if self._native and not dump.note:
                dump.note = f"no native frames: {_NO_LOOK if self._pyspy else _NO_SPY}"
            send([dump.pid], STACKS_SIGNAL)
        else:
            dump.note = _why_not(dump, spy=self._pyspy is not None)
            self._finish(one, dump)

    def _wants_spy(self, dump: _Dump) -> bool:
        return self._native or not dump.handler or dump.state in {"stopped", "traced"}

    def _begin_spy(self, dump: _Dump, now: float) -> None:
        import subprocess  # noqa: PLC0415 - rarely needed, and no agent is to wait for it at its start
        from tempfile import TemporaryFile  # noqa: PLC0415 - the same

        held = dump.state in {"stopped", "traced"}
        # A process that is stopped must stay so: it is read as it lies. Native frames need it paused for a moment.
        how = ["--nonblocking"] if held else ["--native"] if self._native else []
        dump.how = "py-spy"
        dump.deadline = now + _PYSPY_S
        dump.output = TemporaryFile()  # noqa: SIM115 - closed in `_end_spy`
        argv = [str(self._pyspy), "dump", "--json", *how, "--pid", str(dump.pid)]
        try:
            dump.spy = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=dump.output, stderr=subprocess.STDOUT, start_new_session=True
            )
        except OSError as error:
            dump.note = f"py-spy cannot be started: {error}"
            return
        self._spies += 1
        self._helpers.add(dump.spy.pid)

    def _step(self, one: _Rank, dump: _Dump, now: float) -> None:
        if dump.how == "py-spy":
            self._step_spy(one, dump, now)
            return
        size = _size(one.path)
        dump.still = dump.still + 1 if size == dump.size else 0
        dump.size = size
        if size > dump.offset and dump.still >= 2:  # noqa: PLR2004 - a dump is many small writes
            dump.threads = parse_faulthandler(_read(one.path, dump.offset))
            self._finish(one, dump)
        elif now > dump.deadline:
            dump.threads = parse_faulthandler(_read(one.path, dump.offset))
            more = f"; {dump.note}" if dump.note else ""
            dump.note = f"it did not answer within {_PATIENCE_S:g} s ({_kernel_place(dump.pid)}){more}"
            self._finish(one, dump)

    def _step_spy(self, one: _Rank, dump: _Dump, now: float) -> None:
        if dump.spy is not None and dump.spy.poll() is None and now <= dump.deadline:
            return
        text = self._end_spy(dump)
        dump.threads = parse_pyspy(text)
        if dump.threads:
            _append(one.path, f"\n# {self._title} process {dump.pid}, py-spy\n{render_threads(dump.threads)}\n")
        elif dump.handler and dump.state not in {"stopped", "traced"}:
            dump.python = False  # what py-spy may not, the handler can
            dump.note = f"no native frames: {dump.note or explain_spy(text)}"
            one.waiting.insert(0, dump)
            one.current = None
            return
        else:
            dump.note = f"{dump.note or explain_spy(text)} ({_kernel_place(dump.pid)})"
        self._finish(one, dump)

    def _end_spy(self, dump: _Dump) -> str:
        if dump.spy is not None:
            self._spies -= 1
            if dump.spy.poll() is None:
                dump.spy.kill()
            dump.spy.wait()
            self._helpers.discard(dump.spy.pid)
            dump.spy = None
        text = ""
        if dump.output is not None:
            dump.output.seek(0)
            text = dump.output.read(8 * _LONGEST_BYTES).decode("utf-8", "replace")
            dump.output.close()
            dump.output = None
        return text

    def _finish(self, one: _Rank, dump: _Dump) -> None:
        one.done.append(dump)
        one.current = None

    def _describe(self, one: _Rank) -> dict[str, Any]:
        state = one.done[0].state if one.done else "gone"
        return {
            "rank": one.rank,
            "pid": one.pid,
            "state": "runs" if state == "gone" else state,
            "processes": [
                {
                    "pid": dump.pid,
                    "child": dump.child,
                    "how": dump.how if dump.threads else "",
                    "note": dump.note,
                    "threads": [thread.to_dict() for thread in with_code(dump.threads, self._sources.line)],
                }
                for dump in one.done
            ],
        }


class SourceLines:
    """Lines of the user's own files, each of which is read once."""

    def __init__(self) -> None:
        self._sources: dict[str, list[str]] = {}

    def line(self, file: str, line: int) -> str:
        """The text of a line; "" where it cannot be read."""
        if file not in self._sources:
            self._sources[file] = _read_source(file)
        lines = self._sources[file]
        return lines[line - 1] if 0 < line <= len(lines) else ""


def find_pyspy(python: str) -> str | None:
    """py-spy of the ranks' environment, or on PATH."""
    beside = Path(python).parent / "py-spy"
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("py-spy")


def explain_spy(said: str) -> str:
    """What py-spy says instead of a stack, in words that help. Pure."""
    if not said.strip():
        return f"py-spy took longer than {_PYSPY_S:g} s"
    if re.search(r"(?i)permission|not permitted", said):
        return _NO_LOOK
    return f"py-spy: {' '.join(said.partition('Stack backtrace')[0].split())[:_SPY_CHARS]}"


def handles_signal(pid: int) -> bool:
    """Whether a process has a handler for the signal, which would otherwise end it."""
    with suppress(OSError):
        return parse_caught(Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace"), STACKS_SIGNAL)
    return False


def parse_caught(status: str, number: int) -> bool:
    """Whether `/proc/PID/status` lists the signal among those that are caught."""
    for line in status.splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def _why_not(dump: _Dump, *, spy: bool) -> str:
    if dump.state == "gone":
        return "it has ended"
    if dump.state in {"stopped", "traced"}:
        tool = "" if spy else "; py-spy, which could read its stack as it lies, is not installed where ranks run"
        return f"it is {dump.state}, and answers nothing ({_kernel_place(dump.pid)}){tool}"
    if not dump.python:
        return f"it is no Python program ({_kernel_place(dump.pid)})"
    return "it has not set up its handler: it is just starting, or its interpreter is older than Python 3.10"


def _kernel_place(pid: int) -> str:
    """State and wait channel: what the kernel tells of any process."""
    state, wchan = read_state(pid), ""
    with suppress(OSError):
        wchan = Path(f"/proc/{pid}/wchan").read_text(encoding="ascii", errors="replace").strip()
    return f"{state}, in the kernel's {wchan}" if wchan not in {"", "0"} else state


def _append(path: Path, text: str) -> int:
    """Add to a rank's file; its size then. A full disk costs the heading."""
    with suppress(OSError), path.open("ab") as file:
        file.write(text.encode("utf-8", "replace"))
    return _size(path)


def _read(path: Path, offset: int) -> str:
    with suppress(OSError), path.open("rb") as file:
        file.seek(offset)
        return file.read(_LONGEST_BYTES).decode("utf-8", "replace")
    return ""


def _read_source(file: str) -> list[str]:
    with suppress(OSError, ValueError):
        path = Path(file)
        if path.is_file() and path.stat().st_size <= _LARGEST_SOURCE_BYTES:
            return path.read_text(encoding="utf-8", errors="replace").splitlines()
    return []


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
