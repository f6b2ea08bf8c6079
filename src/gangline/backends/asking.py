"""What a cluster says of itself, asked beside the work of others: whoever wants to know is told what is known."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["Asked"]

_Answer = TypeVar("_Answer")

_ASK_AGAIN_S = 30.0
"""How often it is asked at most, whether it answers or not."""
_FRESH_S = 120.0
"""So long an answer counts as one of now."""
_FIRST_PATIENCE_S = 2.0


class Asked(Generic[_Answer]):
    """The newest answer; one that is old is asked for anew, in a thread of its own. Safe for threads.

    Args:
        ask: gives the answer, or None where there is none; it may take its time, and raises nothing.
        first_patience_s: how long the first answer is waited for; later ones are not.
    """

    def __init__(
        self,
        ask: Callable[[], _Answer | None],
        *,
        name: str,
        monotonic: Callable[[], float] = time.monotonic,
        first_patience_s: float = _FIRST_PATIENCE_S,
    ) -> None:
        self._ask = ask
        self._name = name
        self._monotonic = monotonic
        self._first_patience_s = first_patience_s
        self._lock = threading.Lock()
        self._answer: _Answer | None = None
        self._ask_at: float | None = None
        self._answered_at: float | None = None
        self._first = threading.Event()

    def answer(self) -> _Answer | None:
        """What was said last; None where nothing was said yet."""
        now = self._monotonic()
        with self._lock:
            is_first = self._ask_at is None
            is_due = self._ask_at is None or now >= self._ask_at
            if is_due:
                self._ask_at = now + _ASK_AGAIN_S
        if is_due:
            threading.Thread(target=self._go, name=self._name, daemon=True).start()
        if is_first:
            self._first.wait(self._first_patience_s)
        return self._answer

    def is_fresh(self) -> bool:
        """Whether the answer is one of a moment ago."""
        return self._answered_at is not None and self._monotonic() - self._answered_at < _FRESH_S

    def _go(self) -> None:
        try:
            answer = self._ask()
            if answer is not None:
                self._answer, self._answered_at = answer, self._monotonic()
        finally:
            self._first.set()
