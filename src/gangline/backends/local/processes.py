"""Processes of this machine, told apart by more than a number that is used again: pid, start time and boot."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

__all__ = ["AgentProcess", "boot_id", "find_by_arguments", "has_arguments", "send_signal", "start_of"]

_LINUX = sys.platform == "linux"
_START_FIELD = 19
"""Of `/proc/PID/stat`, counted after the name in parentheses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentProcess:
    """One agent as it was started."""

    node: int
    pid: int
    started: str
    """See `start_of`."""


@cache
def boot_id() -> str:
    """What changes when the machine is started again: never while this process lives."""
    if _LINUX:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return _ask("sysctl", "-n", "kern.boottime")


def start_of(pid: int) -> str | None:
    """When a process was started, in the system's own words; None: there is none, or it has ended."""
    if not _LINUX:
        state, _, started = _ask("ps", "-o", "stat=,lstart=", "-p", str(pid)).partition(" ")
        return started.strip() if state and not state.startswith("Z") else None
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in {b"Z", b"X"} else fields[_START_FIELD].decode()


def has_arguments(pid: int, last: Sequence[str]) -> bool:
    """Whether the argument vector of a process ends like this."""
    if not _LINUX:
        return _ask("ps", "-o", "command=", "-ww", "-p", str(pid)).endswith(" ".join(last))
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]
    except OSError:
        return False
    return arguments[-len(last) :] == [os.fsencode(word) for word in last]


def find_by_arguments(last: Sequence[str]) -> int | None:
    """The pid of a live process whose argument vector ends like this."""
    if _LINUX:
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 - names are what is wanted
    else:
        pids = [int(word) for word in _ask("ps", "-A", "-o", "pid=").split()]
    return next((pid for pid in pids if has_arguments(pid, last) and start_of(pid) is not None), None)


def send_signal(pid: int, started: str, number: signal.Signals) -> None:
    """Signal a process if it is still the one that started then; a process that took over its number is never hit."""
    with suppress(ProcessLookupError, PermissionError):
        if not hasattr(os, "pidfd_open"):
            if start_of(pid) == started:
                os.kill(pid, number)
            return
        held = os.pidfd_open(pid)
        try:
            if start_of(pid) == started:
                signal.pidfd_send_signal(held, number)
        finally:
            os.close(held)


def _ask(*command: str) -> str:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    return done.stdout.strip()
