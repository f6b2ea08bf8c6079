"""The process above each agent, for one purpose: however the agent ends, all that it started ends too.

It is what the backend starts. It forks the agent and waits for its end; as the subreaper of everything below, it then
is the parent of all that the agent has left, also of what has an empty environment and a session of its own. It passes
signals on. An agent whose guardian was killed ends what it has started, and itself. Standard library only.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from gangline.agent.processes import adopt_orphans, find_descendants, processes_of, send
from gangline.agent.site import complain

__all__ = ["end_unguarded", "fork_agent", "marks_of", "sweep", "sweep_earlier"]

_PATIENCE_S = 30.0
_PAUSE_S = 0.02
_MOST_DESCRIPTORS = 256
"""An agent that has just begun holds a handful."""
_FOR_SCRIPTS = (signal.SIGURG, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)
"""What a batch script is sent ahead of its end: its agent passes them on, and no guardian may die of them."""
_PASSED_ON = (signal.SIGTERM, signal.SIGINT, *_FOR_SCRIPTS)
_EXIT_OF_SIGNAL = 128


def fork_agent(*, lock: int, scratch: Path | None = None) -> int:
    """Be the guardian, and return in the agent alone: a descriptor that reads as ended when the guardian is gone.

    Args:
        lock: descriptor that both hold, the guardian until nothing is left.
        scratch: folder outside of the run's that has to go, too.
    """
    adopt_orphans()
    read, write = os.pipe()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
    agent = os.fork()
    if agent != 0:
        _guard(agent, kept={lock, write}, mask=before, scratch=scratch)
    os.setsid()
    os.close(write)
    for number in _FOR_SCRIPTS:  # where the agent has no use for them, they do it no harm
        signal.signal(number, lambda _number, _frame: None)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    adopt_orphans()
    return read


def end_unguarded() -> NoReturn:
    """In an agent whose guardian was killed: end all, as nobody would when this process is killed as well."""
    complain("the process that guards this agent was killed; the agent ends its ranks and itself")
    end_below()
    os._exit(1)


def end_below(*, patience_s: float = _PATIENCE_S) -> int:
    """Kill and reap everything below this process, until nothing is left; how many there were."""
    me, killed = os.getpid(), set[int]()
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        _reap_all()
        found = [process.pid for process in find_descendants(me) if not process.dead]
        if not found:
            break
        killed.update(send(found, signal.SIGKILL))
        time.sleep(_PAUSE_S)
    return len(killed)


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


def _guard(agent: int, *, kept: set[int], mask: Collection[int], scratch: Path | None) -> NoReturn:
    code = 1
    try:
        for number in _PASSED_ON:
            signal.signal(number, lambda number, _frame: _pass_on(agent, number))
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        _let_go_of_all_but(kept)
        _, status = os.waitpid(agent, 0)
        agent = 0
        code = os.waitstatus_to_exitcode(status)
        left = end_below()
        if scratch is not None and code != 0:  # an agent that ends by itself has removed it
            import shutil  # noqa: PLC0415 - few runs have one

            shutil.rmtree(scratch, ignore_errors=True)
        if code < 0:
            complain(f"the agent was killed by {signal.Signals(-code).name}; {left} processes of it were ended")
            code = _EXIT_OF_SIGNAL - code
    finally:
        os._exit(code)


def _pass_on(agent: int, number: int) -> None:
    if agent:
        with suppress(ProcessLookupError):
            os.kill(agent, number)


def _let_go_of_all_but(kept: set[int]) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1):
        os.dup2(null, stream)
    for descriptor in range(3, _MOST_DESCRIPTORS):
        if descriptor not in kept:
            with suppress(OSError):
                os.close(descriptor)


def _reap_all() -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
