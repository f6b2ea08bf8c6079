"""A tiny process beside each agent, for one purpose: when the agent is killed, so is all that it started.

It is forked from the agent, waits on a pipe whose other end the agent alone holds, and finds processes by the variables
that every rank and helper of this agent was started with. Standard library only.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import NoReturn

from gangline.agent.processes import processes_of, send

__all__ = ["Guardian", "marks_of", "sweep", "sweep_earlier"]

_PATIENCE_S = 30.0
_PAUSE_S = 0.02
_MOST_DESCRIPTORS = 256
"""An agent that has just begun holds a handful."""


def marks_of(run_dir: str, *, launch: int, node: int) -> dict[str, str]:
    """The variables by which the processes of one agent are known."""
    return {"GANGLINE_RUN_DIR": run_dir, "GANGLINE_LAUNCH": str(launch), "GANGLINE_NODE": str(node)}


def sweep(marks: Mapping[str, str], *, patience_s: float = _PATIENCE_S) -> int:
    """Kill every process with these marks until none is left; how many there were."""
    killed: set[int] = set()
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        found = processes_of(marks)
        if not found:
            break
        killed.update(send(found, signal.SIGKILL))
        time.sleep(_PAUSE_S)
    return len(killed)


def sweep_earlier(marks: Mapping[str, str]) -> int:
    """Kill what earlier launches left here (agent and guardian were both killed); how many there were."""
    killed = 0
    for launch in range(int(marks["GANGLINE_LAUNCH"])):
        killed += sweep({**marks, "GANGLINE_LAUNCH": str(launch)})
    return killed


class Guardian:
    """Started before the agent opens or starts anything; `dismiss` ends it when the agent leaves in good order."""

    def __init__(self, marks: Mapping[str, str]) -> None:
        read, self._write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            _watch(read, marks)
        os.close(read)

    def dismiss(self) -> None:
        """Let it go without killing anybody."""
        with suppress(OSError):
            os.write(self._write, b"bye")
            os.close(self._write)
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def _watch(read: int, marks: Mapping[str, str]) -> NoReturn:
    try:
        os.setsid()
        _let_go_of_all_but(read)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        if not os.read(read, 3):
            sweep(marks)
    finally:
        os._exit(0)


def _let_go_of_all_but(kept: int) -> None:
    """Hold neither the agent's lock nor its log nor the other end of the pipe."""
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    os.closerange(3, kept)
    os.closerange(kept + 1, _MOST_DESCRIPTORS)
