"""`gangline.should_stop()`: a stop or preemption notice as a flag to ask for, the same on every rank.

The ranks of a gang see a notice at slightly different moments, and each may be at another call by then. If one rank
stopped a step before the others, they would wait for it in their next collective, or in the checkpoint of another step.
So they agree: a rank that has been told notes the number of its call and pauses there for a moment; when all have noted
theirs, rank 0 writes "stop at the call after the largest", and every rank obeys. No rank can have passed that call,
because it looks at the decision in each.

A pause ends after `_PAUSE_S`: where ranks synchronise, another one may be past its own call and wait for this one in
the middle of a step; it is told in its next call, and so is everyone.

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
from gangline.rundir.layout import SIGNALLED, AttemptDir, RunDir
from gangline.training import session
from gangline.training.context import Context

__all__ = ["StopWatch", "should_stop"]

_PAUSE_S = 1.0
_LOOK_S = 0.005
_ALONE_AFTER_S = 5.0
_ALONE_AFTER_CALLS = 3
"""A rank that was told to stop, but hears no decision, stops by itself after this time and so many calls.

Where each step needs all ranks, all have noted their calls two calls later at the latest, however long a step takes.
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
        pause: lets time pass.
    """

    def __init__(
        self,
        context: Context,
        *,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        folder = self._attempt_dir = _attempt_dir(context)
        self._notice_path = os.fspath(folder.notice) if folder is not None else None
        self._decision_path = os.fspath(folder.stop_at) if folder is not None else ""
        self._rank, self._world_size = context.rank, context.world_size
        self._agrees = folder is not None and context.world_size > 1
        self._clock, self._pause = clock, pause
        self._calls = 0
        self._stop_at: int | None = None
        """Number of the call from which on the answer is True."""
        self._told_at: float | None = None
        self._told_call = 0
        self._signalled = False
        self._passed_on = False
        self._installed = False
        self._earlier: Any = None
        self._pid = os.getpid()

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
            return self._stop_alone() if self._is_told() else None
        decided = self._read_decision()
        if decided is not None or not self._is_told():
            return decided
        self._note_call()
        deadline = self._clock() + _PAUSE_S
        while decided is None and self._clock() < deadline:
            decided = self._settle() if self._rank == 0 else self._read_decision()
            if decided is None:
                self._pause(_LOOK_S)
        return self._decide_alone() if decided is None else decided

    def _stop_alone(self) -> int:
        """Of a gang of one; the agent looks whether its ranks have ended for having been told."""
        return self._write_decision(self._calls) if self._attempt_dir is not None else self._calls

    def _note_call(self) -> None:
        assert self._attempt_dir is not None  # noqa: S101 - `_agrees` has looked
        try:
            write_json(self._attempt_dir.stop_call(self._rank), {"call": self._calls})
        except OSError as error:
            session.writer().warn(f"cannot tell the other ranks where this one is ({error.strerror})")

    def _settle(self) -> int | None:
        """On rank 0: the call after the largest that was noted, once every rank has noted one."""
        assert self._attempt_dir is not None  # noqa: S101 - `_agrees` has looked
        folder = self._attempt_dir.stop_call(0).parent
        try:
            files = list(folder.glob("rank-*.json"))
            if len(files) < self._world_size:
                return None
            calls = [(read_json(file) or {}).get("call") for file in files]
        except (OSError, GanglineError):
            return None
        noted = [call for call in calls if type(call) is int]
        return self._write_decision(max(noted) + 1) if len(noted) >= self._world_size else None

    def _decide_alone(self) -> int | None:
        """Some rank does not answer: it never asks, or is busy for long."""
        waited_s = self._clock() - (self._told_at or 0.0)
        if waited_s < _ALONE_AFTER_S or self._calls < self._told_call + _ALONE_AFTER_CALLS:
            return None
        return self._write_decision(self._calls) if self._rank == 0 else self._calls

    def _is_told(self) -> bool:
        noticed = self._notice_path is not None and os.path.exists(self._notice_path)  # noqa: PTH110 - fast, each step
        told = self._signalled or noticed
        if self._signalled and not noticed and not self._passed_on:
            self._pass_on()
        if told and self._told_at is None:
            self._told_at, self._told_call = self._clock(), self._calls
        return told

    def _pass_on(self) -> None:
        """Nobody but this rank knows: all others are told, and the agent can say why they have left."""
        self._passed_on = True
        if self._notice_path is not None:
            try:
                write_json(self._notice_path, {"kind": SIGNALLED, "rank": self._rank, "time": time.time()})
            except OSError as error:
                session.writer().warn(f"cannot tell the other ranks of the signal ({error.strerror})")

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
        if os.getpid() != self._pid:  # a child that was forked just now and has not yet given the signal back
            self.restore()
            os.kill(os.getpid(), number)
            return
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
