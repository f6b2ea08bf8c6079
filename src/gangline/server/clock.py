"""Real time, as `gangline.ports.Clock`."""

from __future__ import annotations

import time

__all__ = ["SystemClock"]


class SystemClock:
    """The clock of this machine."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, delay_s: float) -> None:
        time.sleep(delay_s)
