"""`gangline.should_stop()`: a stop or preemption notice as a flag to ask for, the same on every rank.

The ranks of a gang see a notice at slightly different moments. If one rank stopped a step before the others, they would
wait for it in their next collective. So rank 0 decides: when it has seen the notice in its n-th call, it writes "stop
at call n + 1" and every rank obeys. In training that synchronises once a step no other rank can have passed that call,
because its next step needs rank 0.

Standard library only.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from gangline.domain.errors import GanglineError
from gangline.rundir.files import read_json, write_json
from gangline.rundir.layout import AttemptDir, RunDir
from gangline.training import session
from gangline.training.context import Context

__all__ = ["StopWatch", "should_stop"]

_ALONE_AFTER_S = 5.0
_ALONE_AFTER_CALLS = 3
"""A rank that was told to stop, but hears no decision of rank 0, stops by itself after this time and so many calls.

Where each step needs all ranks, rank 0 has decided two calls later at the latest, however long a step takes.
"""

_watch: StopWatch | None = None


def should_stop() -> bool:
    """Whether to save and leave now: `if gangline.should_stop(): save(); break`. Ask once a step, on every rank.

    True once the run is asked to stop, is about to be preempted or reaches its time limit, or the process got SIGTERM,
    and from then on; all ranks of a gang get it at the same call. The first call takes SIGTERM over (a handler that was
    there is still called), so that training ends at a step boundary and not in the middle of one. Without a platform,
    SIGTERM alone counts.
    """
    global _watch  # noqa: PLW0603 - one signal handler per process
    if _watch is None:
        _watch = StopWatch(session.current())
    return _watch.ask()


class StopWatch:
    """What one process knows about being told to stop.

    Args:
        context: whose attempt's folder is looked at.
        clock: monotonic seconds.
    """

    def __init__(self, context: Context, *, clock: Callable[[], float] = time.monotonic) -> None:
        folder = self._attempt_dir = _attempt_dir(context)
        self._notice_path = os.fspath(folder.notice) if folder is not None else None
        self._decision_path = os.fspath(folder.stop_at) if folder is not None else ""
        self._rank = context.rank
        self._agrees = folder is not None and context.world_size > 1
        self._clock = clock
        self._calls = 0
        self._stop_at: int | None = None
        """Number of the call from which on the answer is True."""
        self._told_at: float | None = None
        self._told_call = 0
        self._signalled = False
        self._installed = False
        self._earlier: Any = None

    def ask(self) -> bool:
        """Count one call and answer it."""
        self._calls += 1
        if not self._installed:
            self._install()
        if self._stop_at is None:
            self._stop_at = self._decide()
        return self._stop_at is not None and self._calls >= self._stop_at

    def restore(self) -> None:
        """Give SIGTERM back, as a forked child has to: it must die of the signal as its parent's library expects."""
        if self._installed and signal.getsignal(signal.SIGTERM) == self._on_signal:
            signal.signal(signal.SIGTERM, self._earlier if self._earlier is not None else signal.SIG_DFL)
        self._installed = False

    def _decide(self) -> int | None:
        if not self._agrees:
            return self._calls if self._is_told() else None
        decided = None if self._rank == 0 else self._read_decision()
        if decided is not None or not self._is_told():
            return decided
        if self._rank == 0:
            return self._write_decision(self._calls + 1)
        waited_s = self._clock() - (self._told_at or 0.0)
        alone = waited_s >= _ALONE_AFTER_S and self._calls >= self._told_call + _ALONE_AFTER_CALLS
        return self._calls if alone else None

    def _is_told(self) -> bool:
        noticed = self._notice_path is not None and os.path.exists(self._notice_path)  # noqa: PTH110 - fast, each step
        told = self._signalled or noticed
        if told and self._told_at is None:
            self._told_at, self._told_call = self._clock(), self._calls
        return told

    def _read_decision(self) -> int | None:
        path = self._decision_path
        if not os.path.exists(path):  # noqa: PTH110 - each step
            return None
        try:
            call = (read_json(path) or {}).get("call")
        except (OSError, GanglineError):
            return None
        return call if type(call) is int else None

    def _write_decision(self, call: int) -> int:
        try:
            write_json(self._decision_path, {"call": call, "time": time.time()})
        except OSError as error:
            session.writer().warn(f"cannot tell the other ranks when to stop ({error.strerror}); each stops by itself")
        return call

    def _install(self) -> None:
        """Take SIGTERM over; only Python's main thread may."""
        if threading.current_thread() is not threading.main_thread():
            return
        self._earlier = signal.signal(signal.SIGTERM, self._on_signal)
        self._installed = True
        if self._attempt_dir is None:
            return
        try:
            write_json(self._attempt_dir.cooperative(self._rank), {"pid": os.getpid(), "time": time.time()})
        except OSError as error:
            session.writer().warn(f"cannot tell the agent that this rank stops by itself ({error.strerror})")

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signalled = True
        if callable(self._earlier):
            self._earlier(number, frame)


def _attempt_dir(context: Context) -> AttemptDir | None:
    if context.run_dir is None or not context.is_gangline:
        return None
    return RunDir(context.run_dir).attempt(context.attempt)


def _start_over() -> None:
    global _watch  # noqa: PLW0603 - as above
    if _watch is not None:
        _watch.restore()
    _watch = None


session.on_forget(_start_over)
