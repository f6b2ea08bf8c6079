"""Ends runs that have a lease and that nobody renews, as long as no leader is there to do it.

A leader counts by itself, so that it works while the server is away (`agent/lease.py`). For runs that wait, the server
does; what it counts is forgotten when it is started anew, and it counts only time in which it looked.
"""

from __future__ import annotations

from dataclasses import dataclass

from gangline.control.facts import exit_code_for
from gangline.domain.phase import Phase, Reason
from gangline.ports import Clock
from gangline.rundir.home import Home
from gangline.store.rows import Move, RunRow
from gangline.store.store import Store

__all__ = ["Leases"]

_LOOK_S = 0.5
_LONGEST_TURN_S = 2.0
"""Of a longer pause between two looks, as of a machine that slept, no more than this counts."""


@dataclass(slots=True)
class _Count:
    sign: int | None = None
    """When the lease was last renewed, as the file system has it."""
    silent_s: float = 0.0


class Leases:
    """Belongs to the thread of the reconciler."""

    def __init__(self, *, store: Store, home: Home, clock: Clock) -> None:
        self._store = store
        self._home = home
        self._clock = clock
        self._counts: dict[str, _Count] = {}
        self._looked: float | None = None

    def look(self) -> None:
        """Count, and end what nobody has renewed for its lease."""
        now = self._clock.monotonic()
        if self._looked is not None and now - self._looked < _LOOK_S:
            return
        turn_s = 0.0 if self._looked is None else min(now - self._looked, _LONGEST_TURN_S)
        self._looked = now
        waiting = [run for run in self._store.leased_runs() if self._is_ours(run)]
        self._counts = {run.id: self._counts.get(run.id) or _Count() for run in waiting}
        for run in waiting:
            count, sign = self._counts[run.id], self._sign(run)
            count.silent_s = count.silent_s + turn_s if sign == count.sign else 0.0
            count.sign = sign
            if run.lease_s is not None and count.silent_s >= run.lease_s:
                self._end(run)

    def _is_ours(self, run: RunRow) -> bool:
        if run.phase is Phase.STOPPING:
            return False
        return run.handle is None or not self._home.run(run.id).launch(run.launch).alive.exists()

    def _sign(self, run: RunRow) -> int:
        try:
            return self._home.run(run.id).control.stat().st_mtime_ns
        except OSError:
            return 0

    def _end(self, run: RunRow) -> None:
        now = self._clock.now()
        asked = {"stop_asked": now, "stop_grace_s": None, "stop_by": None, "stop_cause": "lease"}
        if run.phase is Phase.PREEMPTED or (run.placement is None and run.handle is None):
            code = exit_code_for(Reason.LEASE_ENDED)
            move = Move(
                phase=Phase.STOPPED,
                reason=Reason.LEASE_ENDED,
                message="The lease has ended while the run held no machines: nobody renewed it any more.",
                changes={**asked, "ended": now, "exit_code": code},
            )
        else:
            move = Move(phase=Phase.STOPPING, message="Stopping: nobody renews its lease any more.", changes=asked)
        self._store.move(run, move, at=now)
