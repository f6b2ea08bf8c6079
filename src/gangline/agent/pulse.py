"""Shows others that this agent lives, from a thread of its own. Standard library only.

The loop may wait for a slow disk, or check a large checkpoint: that is no dead agent, and others need not wait long to
tell it from one that is stopped, or whose node is frozen. A loop that does not turn for a minute, and has not said that
it is busy, shows nothing any more.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gangline.agent.loop import Loop

__all__ = ["Pulse"]

_STUCK_S = 60.0
_PATIENCE_S = 5.0


class Pulse:
    """Calls again and again, until it is closed. What it calls must be safe beside the loop, and not raise."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._busy = 0
        self._done = threading.Event()
        self._threads: list[threading.Thread] = []

    def every(self, period_s: float, call: Callable[[], None]) -> None:
        """Call while the loop turns, the first time after one period."""

        def beat() -> None:
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # they are for the loop's thread
            while not self._done.wait(period_s):
                if self.lives():
                    call()

        thread = threading.Thread(target=beat, name="gangline-pulse", daemon=True)
        self._threads.append(thread)
        thread.start()

    def lives(self) -> bool:
        """Whether the loop has turned lately, or is at what may take long."""
        return self._busy > 0 or time.monotonic() - self._loop.turned < _STUCK_S

    @contextmanager
    def busy(self) -> Iterator[None]:
        """The loop does something that may take minutes."""
        self._busy += 1
        try:
            yield
        finally:
            self._busy -= 1

    def close(self) -> None:
        """Show nothing any more."""
        self._done.set()
        for thread in self._threads:
            thread.join(_PATIENCE_S)
