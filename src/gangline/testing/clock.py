"""Time that passes only when a test says so."""

from __future__ import annotations

__all__ = ["FakeClock"]


class FakeClock:
    """Implements `gangline.ports.Clock`.

    Args:
        start: what `now()` first says, seconds since the epoch.
    """

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self._now = start
        self._monotonic = 1_000.0
        self.slept: list[float] = []
        """Every delay that `sleep` was asked for."""

    def now(self) -> float:
        return self._now

    def monotonic(self) -> float:
        return self._monotonic

    def sleep(self, delay_s: float) -> None:
        """Return at once, `delay_s` later."""
        self.slept.append(delay_s)
        self.advance(delay_s)

    def advance(self, delay_s: float) -> None:
        """Let time pass."""
        self._now += delay_s
        self._monotonic += delay_s

    def set_wall(self, now: float) -> None:
        """Move the wall clock alone, as an administrator or a time server does; the monotonic clock does not notice."""
        self._now = now
