"""The thread that lets the reconciler look at the gangs: often while any is live, rarely otherwise, or when poked."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import Protocol

from gangline.store.full import says_full

__all__ = ["ReconcileLoop", "Ticking", "render_trouble"]

_log = logging.getLogger(__name__)
_AFTER_ERROR_S = 1.0
_MAX_AFTER_ERROR_S = 30.0
_LONGEST_REST_S = 0.5


class Ticking(Protocol):
    """What `control.reconcile.Reconciler` offers."""

    def tick(self) -> None: ...
    def busy(self) -> bool: ...
    def unstored(self) -> Exception | None: ...


def render_trouble(error: Exception | None, home: Path) -> str:
    """What people are told of `ReconcileLoop.trouble`; "" where there is none."""
    if error is None:
        return ""
    why = str(getattr(error, "orig", None) or error).partition("\n")[0]
    if says_full(error):
        return f"The server cannot store anything in {home}: {why}. Gangs train on; all else waits until there is room."
    return f"The server cannot look after its runs: {type(error).__name__}: {why}. `gangline server logs` has more."


class ReconcileLoop:
    """Ticks until it is closed. An error in a tick is logged and followed by a growing pause; it never ends the loop.

    Args:
        busy_s: pause between ticks while runs are live.
        idle_s: pause while none is.
    """

    def __init__(self, *, busy_s: float, idle_s: float) -> None:
        self._busy_s = busy_s
        self._idle_s = idle_s
        self._wake = threading.Event()
        self._closing = False
        self._errors = 0
        self._trouble: Exception | None = None
        self._thread: threading.Thread | None = None

    def poke(self) -> None:
        """Tick now: something was asked for."""
        self._wake.set()

    def trouble(self) -> Exception | None:
        """What kept the newest tick from being done, or from being stored; None: nothing did."""
        return self._trouble

    def start(self, reconciler: Ticking) -> None:
        """Begin to tick, in a thread of its own."""
        self._thread = threading.Thread(target=self._run, args=(reconciler,), name="reconciler", daemon=True)
        self._thread.start()

    def close(self, *, patience_s: float) -> bool:
        """End after the current tick; False if that takes longer than `patience_s`."""
        self._closing = True
        self._wake.set()
        if self._thread is None:
            return True
        self._thread.join(patience_s)
        return not self._thread.is_alive()

    def _run(self, reconciler: Ticking) -> None:
        while not self._closing:
            self._wake.clear()
            self._wake.wait(self._tick(reconciler))

    def _tick(self, reconciler: Ticking) -> float:
        """One tick, and the pause until the next: at least twice what it took, so that many runs do not eat a core."""
        began = time.monotonic()
        try:
            reconciler.tick()
            busy = reconciler.busy()
            self._trouble = reconciler.unstored()
        except Exception as error:  # noqa: BLE001 - recorded, and tried again: gangs must not depend on one odd run
            self._errors, self._trouble = self._errors + 1, error
            _log.exception("a look at the gangs failed, %d in a row", self._errors)
            return min(_MAX_AFTER_ERROR_S, _AFTER_ERROR_S * 2.0 ** min(self._errors - 1, 10))
        self._errors = 0
        took_s = time.monotonic() - began
        return max(self._busy_s, min(2 * took_s, _LONGEST_REST_S)) if busy else self._idle_s
