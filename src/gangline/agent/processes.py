"""Processes of this machine as an agent needs them: descendants, adoption of orphans, signals. Standard library only.

On Linux the agent is the subreaper of everything below it: a rank's child that calls `setsid` and loses its parent
becomes the agent's child, so that walking down from the agent always finds it. Elsewhere `ps` is asked, and such a
child can escape.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

__all__ = [
    "Process",
    "adopt_orphans",
    "decide_descendants",
    "die_with_parent",
    "find_descendants",
    "is_python",
    "processes_of",
    "reap",
    "send",
]

_LINUX = sys.platform == "linux"
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None, use_errno=True) if _LINUX else None


@dataclass(frozen=True, slots=True)
class Process:
    """One process as it was when it was looked at."""

    pid: int
    parent: int
    dead: bool
    """Ended, but not yet waited for."""
    stopped: bool = False
    """By SIGSTOP or a tracer: it hears nothing but SIGKILL."""


def adopt_orphans() -> None:
    """Become the parent of every orphan below this process."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent(parent: int) -> None:
    """In a fresh child: be killed when the parent ends, also when it has ended already."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)


def find_descendants(root: int, *, spared: frozenset[int] = frozenset()) -> list[Process]:
    """Everything below `root`, parents first, without the spared ones (what is below those is included)."""
    if not _LINUX:
        return decide_descendants(_ps_table(), root, spared=spared)
    found: list[Process] = []
    waiting = [root]
    while waiting:
        parent = waiting.pop()
        for pid in _children(parent):
            waiting.append(pid)
            if pid not in spared and (process := _look(pid)) is not None:
                found.append(process)
    return found


def decide_descendants(table: Sequence[Process], root: int, *, spared: frozenset[int] = frozenset()) -> list[Process]:
    """The same, from a table of all processes. Pure."""
    below: dict[int, list[Process]] = {}
    for process in table:
        below.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    waiting = [root]
    while waiting:
        children = below.get(waiting.pop(), [])
        waiting.extend(child.pid for child in children)
        found.extend(child for child in children if child.pid not in spared)
    return found


def reap(processes: Iterable[Process], *, parent: int, known: frozenset[int]) -> None:
    """Wait for dead children that nobody else will wait for (adopted orphans)."""
    for process in processes:
        if process.dead and process.parent == parent and process.pid not in known:
            with suppress(ChildProcessError):
                os.waitpid(process.pid, os.WNOHANG)


def send(pids: Iterable[int], number: int) -> list[int]:
    """Send a signal; those that took it."""
    taken = []
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
            taken.append(pid)
    return taken


def is_python(pid: int) -> bool:
    """Whether a process runs a Python interpreter."""
    with suppress(OSError):
        return os.path.basename(os.readlink(f"/proc/{pid}/exe")).startswith(("python", "pypy"))
    return False


def processes_of(marks: Mapping[str, str]) -> list[int]:
    """Processes of this user that were started with all of these variables (Linux; elsewhere none are found)."""
    wanted = {f"{name}={value}".encode() for name, value in marks.items()}
    found = []
    for name in os.listdir("/proc") if _LINUX else ():
        if not name.isdigit() or int(name) == os.getpid():
            continue
        with suppress(OSError), open(f"/proc/{name}/environ", "rb") as file:
            if wanted <= set(file.read().split(b"\0")):
                found.append(int(name))
    return found


def _children(pid: int) -> list[int]:
    """Direct children over all threads; where the kernel has no list of them, from the whole table."""
    found: list[int] = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return found
    for thread in threads:
        try:
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found.extend(map(int, file.read().split()))
        except OSError:  # the thread has ended, or this kernel keeps no such list
            if not os.path.exists("/proc/thread-self/children"):
                return [process.pid for process in _proc_table() if process.parent == pid]
    return found


def _look(pid: int) -> Process | None:
    with suppress(OSError, ValueError, IndexError):
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name in parentheses may hold anything, also spaces and parentheses.
            state, parent, *_ = file.read().rpartition(b")")[2].split(None, 2)
        return Process(pid, int(parent), state in {b"Z", b"X"}, state in {b"T", b"t"})
    return None


def _proc_table() -> list[Process]:
    pids = (int(name) for name in os.listdir("/proc") if name.isdigit())
    return [process for pid in pids if (process := _look(pid)) is not None]


def _ps_table() -> list[Process]:
    import subprocess  # noqa: PLC0415 - only where there is no /proc

    listing = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,stat="], capture_output=True, text=True, check=False).stdout
    rows = [line.split() for line in listing.splitlines()]
    return [Process(int(row[0]), int(row[1]), row[2].startswith("Z")) for row in rows if len(row) >= 3]  # noqa: PLR2004
