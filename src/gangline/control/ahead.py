"""Launches that wait in the queue of their pool before they are needed: which runs have one, and which are taken back.

Everything rests on what backends have noted and on the store, so that a server that was killed goes on with it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gangline.control.facts import Facts
from gangline.control.handover import HandOvers
from gangline.domain.errors import BackendError, NotFound
from gangline.domain.gang import GangSpec, Handle, Liveness
from gangline.domain.phase import TERMINAL, Budget, Phase
from gangline.domain.spec import OnTimeLimit
from gangline.ports import Ahead, Backend, Clock, Queued
from gangline.store.rows import NewEvent, RunRow
from gangline.store.store import Store

__all__ = ["Aheads", "decide_ahead"]

_log = logging.getLogger(__name__)

_LOOK_S = 0.5
_FIRST_RETRY_S = 15.0
_LONGEST_RETRY_S = 600.0


def decide_ahead(facts: Facts, lead_s: float) -> bool:
    """Whether the next launch of a run is to wait for the end of the one at work: its time will not be enough.

    Args:
        lead_s: how long before the end of its time; 0: never.
    """
    begun, seen, stop = facts.begun, facts.observation, facts.stop
    if facts.run.phase is not Phase.RUNNING or begun is None or begun.outcome is not None:
        return False
    if seen is None or seen.liveness is not Liveness.ALIVE or seen.ends_at is None or not math.isfinite(seen.ends_at):
        return False
    spent, most = facts.used.get(Budget.CONTINUATION, 0), stop.max_continuations
    is_wanted = stop.on_time_limit is OnTimeLimit.CONTINUE and (most is None or spent < most)
    return is_wanted and lead_s > 0 and seen.ends_at - facts.now <= lead_s


@dataclass(slots=True)
class _Pause:
    until: float = 0.0
    tries: int = 0


class Aheads:
    """Belongs to the thread of the reconciler; backends are asked beside it.

    Args:
        beside: has work done beside the reconciler.
    """

    def __init__(
        self,
        *,
        store: Store,
        backends: Mapping[str, Backend],
        clock: Clock,
        beside: Callable[[Callable[[], None]], None],
    ) -> None:
        self._store = store
        self._backends = backends
        self._clock = clock
        self._asks: HandOvers[str] = HandOvers(beside)
        self._queued: dict[str, Mapping[str, Queued]] = {}
        """By pool, as of the last look."""
        self._leaving: dict[str, dict[str, Queued]] = {}
        """What is being taken back, by pool and run: the answer is still to be asked for when nothing is noted."""
        self._pauses: dict[str, _Pause] = {}
        self._looked = float("-inf")

    def look(self) -> None:
        """Take back what no run needs."""
        now = self._clock.monotonic()
        if now - self._looked < _LOOK_S:
            return
        self._looked = now
        for name, backend in self._backends.items():
            if backend.ahead is not None:
                self._queued[name] = backend.ahead.queued()
                self._look_at_pool(name, backend.ahead)

    def _look_at_pool(self, pool: str, ahead: Ahead) -> None:
        unneeded = {one: queued for one, queued in self._queued[pool].items() if not self._is_needed(one, pool, queued)}
        for run_id, queued in {**self._leaving.get(pool, {}), **unneeded}.items():
            key = f"{run_id}/{queued.launch}/withdraw"
            if run_id in unneeded or self._asks.is_under_way(pool, key):
                self._leaving.setdefault(pool, {})[run_id] = queued
                self._withdraw(pool, ahead, run_id, queued, key=key)
            else:
                del self._leaving[pool][run_id]

    def consider(self, run: RunRow, facts: Facts, *, gang: Callable[[], GangSpec]) -> None:
        """Hand the next launch of a run over, if it is time for that.

        Args:
            gang: the next launch.
        """
        backend = self._backends.get(run.pool)
        if backend is None or backend.ahead is None or run.handle is None:
            return
        queued = self._queued.get(run.pool, {}).get(run.id)
        if (queued is not None and queued.job) or not decide_ahead(facts, backend.ahead.lead_s):
            return
        ahead, after = backend.ahead, Handle.from_dict(run.handle)
        job = self._ask(run.pool, f"{run.id}/{run.launch + 1}", lambda: ahead.queue(gang(), after=after))
        if job:
            self._queued[run.pool] = {**self._queued.get(run.pool, {}), run.id: Queued(launch=run.launch + 1, job=job)}
            self._tell(run.id, f"Job {job} waits for the end of this one: with it the run goes on after its time.")

    def _is_needed(self, run_id: str, pool: str, queued: Queued) -> bool:
        try:
            run = self._store.run(run_id)
        except NotFound:
            return False
        if run.pool != pool:
            return False
        if run.launch == queued.launch:  # it is being taken over, or that was cut off
            return run.phase not in TERMINAL or run.handle is not None or run.placement is not None
        is_next = run.launch + 1 == queued.launch
        return is_next and run.phase not in TERMINAL and run.phase is not Phase.STOPPING

    def _withdraw(self, pool: str, ahead: Ahead, run_id: str, queued: Queued, *, key: str) -> None:
        def work() -> str:
            ahead.withdraw(run_id)
            return queued.job or "none"

        job = self._ask(pool, key, work)
        if job and job != "none":
            self._tell(run_id, f"Job {job}, which waited for the end of this run's last one, is not needed any more.")

    def _ask(self, pool: str, key: str, work: Callable[[], str]) -> str:
        """What it gives, once it is there; after trouble it is tried again later."""
        now = self._clock.monotonic()
        pause = self._pauses.get(key, _Pause())
        if now < pause.until:
            return ""
        try:
            found = self._asks.ask(pool, key, work, is_new=False)
        except BackendError as error:
            delay_s = min(_FIRST_RETRY_S * 2**pause.tries, _LONGEST_RETRY_S)
            self._pauses[key] = _Pause(until=now + delay_s, tries=min(pause.tries + 1, 10))
            _log.info("%s in pool %s is tried again in %g s: %s", key, pool, delay_s, error)
            return ""
        if found:
            self._pauses.pop(key, None)
        return found or ""

    def _tell(self, run_id: str, text: str) -> None:
        try:
            self._store.run(run_id)
        except NotFound:
            return  # it was removed
        self._store.add_events(run_id, [NewEvent(time=self._clock.now(), kind="ahead", message=text)])
