"""The one loop of an agent: descriptors that turn readable, and timers. Standard library only."""

from __future__ import annotations

import heapq
import itertools
import os
import selectors
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

__all__ = ["Loop", "Timer"]

_LONGEST_WAIT_S = 1.0


@dataclass(slots=True)
class Timer:
    """A call that is due at a time; `cancel` forgets it."""

    call: Callable[[], None] | None

    def cancel(self) -> None:
        self.call = None


class Loop:
    """Runs callbacks on one thread until one of them calls `stop`. What a callback raises ends the loop."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, Timer]] = []
        """When each is due; those of one moment in the order in which they were set."""
        self._numbers = itertools.count()
        self._exit_code: int | None = None
        self.stalled_s = 0.0
        """How late the loop last was: large after this machine was suspended."""
        self.turned = time.monotonic()
        """When it last began to wait for something."""

    def watch(self, source: FileDescriptorLike, call: Callable[[], None], *, writable: bool = False) -> None:
        """Call whenever a file object or descriptor is readable (or, if asked, writable); replaces an earlier call."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if writable else 0)
        if self._watched(source):
            self._selector.modify(source, events, call)
        else:
            self._selector.register(source, events, call)

    def unwatch(self, source: FileDescriptorLike) -> None:
        """Forget a source; harmless when it is not watched."""
        if self._watched(source):
            self._selector.unregister(source)

    def after(self, delay_s: float, call: Callable[[], None]) -> Timer:
        """Call once, after a pause."""
        timer = Timer(call)
        heapq.heappush(self._timers, (time.monotonic() + delay_s, next(self._numbers), timer))
        return timer

    def every(self, period_s: float, call: Callable[[], None]) -> None:
        """Call again and again for as long as the loop runs, the first time after one period."""

        def again() -> None:
            call()
            self.after(period_s, again)

        self.after(period_s, again)

    def on_signal(self, number: int, call: Callable[[], None]) -> None:
        """Call from the loop, not from within the signal's handler, when this process gets a signal."""

        def handle(_number: int, _frame: FrameType | None) -> None:
            os.write(write, b"x")

        def woken() -> None:
            os.read(read, 4096)
            call()

        read, write = os.pipe()
        os.set_blocking(write, False)
        signal.signal(number, handle)
        self.watch(read, woken)

    def stop(self, exit_code: int) -> None:
        """Leave `run` after the current callback."""
        self._exit_code = exit_code

    def run(self) -> int:
        """Serve until `stop`; the exit code that it was given."""
        while self._exit_code is None:
            wait_s = self._wait_s()
            self.turned = before = time.monotonic()
            ready = self._selector.select(wait_s)
            self.stalled_s = time.monotonic() - before - wait_s
            for key, _ in ready:
                if self._exit_code is None and self._watched(key.fileobj):
                    key.data()
            self._run_due()
        return self._exit_code

    def _watched(self, source: FileDescriptorLike) -> bool:
        try:
            return source in self._selector.get_map()
        except ValueError:  # closed, and not watched
            return False

    def _wait_s(self) -> float:
        if not self._timers:
            return _LONGEST_WAIT_S
        return min(_LONGEST_WAIT_S, max(0.0, self._timers[0][0] - time.monotonic()))

    def _run_due(self) -> None:
        now = time.monotonic()
        while self._exit_code is None and self._timers and self._timers[0][0] <= now:
            call = heapq.heappop(self._timers)[2].call
            if call is not None:
                call()
