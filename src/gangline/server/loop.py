"""The thread that lets the reconciler look at the gangs: often while any is live, rarely otherwise, or when poked."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import Protocol

from gangline.rundir.reserve import release_reserve, renew_reserve
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


def render_trouble(error: Exception | None, home: Path, *, since: float) -> str:
    """What people are told of `ReconcileLoop.trouble`, which began at `since`; "" where there is none."""
    if error is None:
        return ""
    why = str(getattr(error, "orig", None) or error).partition("\n")[0]
    if says_full(error):
        old = f"What is shown may be as old as {time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(since))} UTC"
        return f"The server cannot store anything in {home}: {why}. {old}; gangs that live train on."
    return f"The server cannot look after its runs: {type(error).__name__}: {why}. `gangline server logs` has more."


class ReconcileLoop:
    """Ticks until it is closed. An error in a tick is logged and followed by a growing pause; it never ends the loop.

    Args:
        home: the state folder, whose reserve is given up on a full disk and set aside again once there is room.
        busy_s: pause between ticks while runs are live.
        idle_s: pause while none is.
    """

    def __init__(self, *, home: Path, busy_s: float, idle_s: float) -> None:
        self._home = home
        self._busy_s = busy_s
        self._idle_s = idle_s
        self._wake = threading.Event()
        self._closing = False
        self._errors = 0
        self._trouble: Exception | None = None
        self._since = 0.0
        self._thread: threading.Thread | None = None

    def poke(self) -> None:
        """Tick now: something was asked for."""
        self._wake.set()

    def trouble(self) -> Exception | None:
        """What kept the newest tick from being done, or from being stored; None: nothing did."""
        return self._trouble

    def troubled_since(self) -> float:
        """The wall time at which the trouble began that there is."""
        return self._since

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
            self._note(reconciler.unstored())
        except Exception as error:  # noqa: BLE001 - recorded, and tried again: gangs must not depend on one odd run
            self._errors += 1
            self._note(error)
            _log.exception("a look at the gangs failed, %d in a row", self._errors)
            self._mind_reserve()
            return min(_MAX_AFTER_ERROR_S, _AFTER_ERROR_S * 2.0 ** min(self._errors - 1, 10))
        self._errors = 0
        self._mind_reserve()
        took_s = time.monotonic() - began
        return max(self._busy_s, min(2 * took_s, _LONGEST_REST_S)) if busy else self._idle_s

    def _note(self, trouble: Exception | None) -> None:
        if trouble is not None and self._trouble is None:
            self._since = time.time()
        self._trouble = trouble

    def _mind_reserve(self) -> None:
        if not says_full(self._trouble):
            renew_reserve(self._home)
        elif release_reserve(self._home):
            _log.warning("the disk of %s is full: the room set aside there is given up", self._home)
            self.poke()
