"""Which waiting runs get a place now.

Loads what the pure policy of `gangline.queue` needs, and applies what it says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gangline.control.health import NodeBook
from gangline.control.specs import Specs, demand_of
from gangline.domain.gang import Capability, NodePlacement
from gangline.domain.phase import Phase
from gangline.ports import Backend, Clock
from gangline.queue.fit import Decision, LiveGang, Start, WaitingRun, decide_starts
from gangline.store.rows import Move, RunRow
from gangline.store.store import Store

__all__ = ["Queue", "live_gangs"]

_LOOK_AGAIN_S = 1.0
"""How long the queue may rest although nothing seems to have changed."""
_MOST_ON_THE_WAY = 16
"""Launches on their way to one backend; more would only wait there, and a tick would take long."""
_FIRST_HOLD_S = 2.0
_LONGEST_HOLD_S = 30.0


@dataclass(slots=True, kw_only=True)
class _Hold:
    """A backend has answered that it has no room."""

    why: str
    until: float
    pause_s: float
    places: int
    """Taken in the pool when it said so; once there are fewer, it may have room."""

    def lasts(self, now: float, places: int) -> bool:
        return now < self.until and places >= self.places


class Queue:
    """Gives places to waiting runs; used by the reconciler's thread alone."""

    def __init__(
        self, *, store: Store, backends: Mapping[str, Backend], specs: Specs, clock: Clock, book: NodeBook
    ) -> None:
        self._store = store
        self._backends = backends
        self._specs = specs
        self._clock = clock
        self._book = book
        self._mark: tuple[object, ...] = ()
        self._look_at = float("-inf")
        self._holds: dict[tuple[str, str | None], _Hold] = {}
        """By pool and lane; None: all of the pool."""
        self.is_waiting = False
        """Whether any run waits, as of the last look."""

    def place(self) -> list[RunRow]:
        """Give the runs that start now their place, and say of the others why they wait."""
        if not self._is_due():
            return []
        now = self._clock.now()
        waiting, held = self._store.waiting_runs(), self._store.held_runs()
        self.is_waiting = bool(waiting)
        started: list[RunRow] = []
        for pool, backend in list(self._backends.items()):
            mine = [run for run in waiting if run.pool == pool]
            if mine and Capability.OWN_QUEUE in backend.capabilities:
                started += self._pass_on(pool, [run for run in held if run.pool == pool], mine, now)
            elif mine:
                decision = self._decide(backend, [run for run in held if run.pool == pool], mine)
                started += self._start(decision.starts, mine)
                self._explain(decision, mine)
        self._mark = self._store.queue_mark()
        later = [run.not_before for run in waiting if run.not_before is not None and run.not_before > now]
        self._look_at = min([now + _LOOK_AGAIN_S, *later]) if waiting else float("inf")
        return started

    def hold(self, pool: str, why: str, *, lane: str | None) -> None:
        """A pool, or one lane of it, has no room: nothing is handed to it for a while, longer each time."""
        before, now = self._holds.get((pool, lane)), self._clock.now()
        if before is not None and now < before.until:
            return  # those that were on their way behind it
        pause_s = _FIRST_HOLD_S if before is None else min(before.pause_s * 2, _LONGEST_HOLD_S)
        places = sum(run.pool == pool and run.handle is not None for run in self._store.held_runs())
        self._holds[(pool, lane)] = _Hold(why=why, until=now + pause_s, pause_s=pause_s, places=places)

    def went_well(self, run: RunRow) -> None:
        """The backend of a run's pool has taken its launch."""
        lane = self._backends[run.pool].lane(self._specs.get(run))
        for key in ((run.pool, None), (run.pool, lane)):
            if self._holds.pop(key, None) is not None:
                self._look_at = float("-inf")

    def _pass_on(self, pool: str, held: Sequence[RunRow], waiting: Sequence[RunRow], now: float) -> list[RunRow]:
        """Hand runs over to a backend that lets them wait by itself: all, in order, as fast as it takes them.

        A full lane holds back its own runs alone.
        """
        ready = [run for run in waiting if run.not_before is None or run.not_before <= now]
        places = sum(run.handle is not None for run in held)
        lanes: dict[str, list[RunRow]] = {}
        for run in ready:
            lanes.setdefault(self._backends[pool].lane(self._specs.get(run)), []).append(run)
        whole = self._holds.get((pool, None))
        if whole is not None and whole.lasts(now, places):
            self._tell(ready, whole.why)
            return []
        passed: set[str] = set()
        for lane, mine in lanes.items():
            hold = self._holds.get((pool, lane))
            if hold is not None and hold.lasts(now, places):
                self._tell(mine, hold.why)
            else:
                passed.update(run.id for run in (mine if hold is None else mine[:1]))  # one finds out for all
        room = _MOST_ON_THE_WAY - sum(run.placement is not None and run.handle is None for run in held)
        if whole is not None:
            room = min(room, 1)
        chosen = [run for run in ready if run.id in passed][: max(0, room)]
        return [placed for one in chosen if (placed := self._hand_over(one)) is not None]

    def _hand_over(self, run: RunRow) -> RunRow | None:
        nodes = self._specs.get(run).resources.nodes
        changes: dict[str, object] = {"placement": [[] for _ in range(nodes)], "nodes": nodes, "not_before": None}
        if run.phase is Phase.QUEUED:
            changes["message"] = f"Is handed over to pool `{run.pool}`."
        return replace(run, **changes) if self._store.change(run, changes) else None  # type: ignore[arg-type]

    def _tell(self, waiting: Sequence[RunRow], why: str) -> None:
        first = waiting[0].id if waiting else ""
        news = [
            (run, why if place == 1 else f"Position {place} in the queue, behind {first}. {why}")
            for place, run in enumerate(waiting, start=1)
            if run.phase is Phase.QUEUED
        ]
        news = [(run, message) for run, message in news if run.message != message]
        if news:
            self._store.explain_waits(news)

    def _is_due(self) -> bool:
        return self._clock.now() >= self._look_at or self._store.queue_mark() != self._mark

    def _decide(self, backend: Backend, held: Sequence[RunRow], waiting: Sequence[RunRow]) -> Decision:
        now = self._clock.now()
        ready = [run for run in waiting if run.not_before is None or run.not_before <= now]
        asked = [
            WaitingRun(
                run_id=run.id,
                demand=demand_of(self._specs.get(run)),
                priority=run.priority,
                submitted=run.created,
                most_nodes=self._most_nodes(run),
            )
            for run in ready
        ]
        return decide_starts(backend.capacity(), live_gangs(held, self._specs), asked)

    def _most_nodes(self, run: RunRow) -> int | None:
        """A gang that may be smaller rather goes without the machines that are avoided."""
        is_elastic = self._specs.get(run).resources.min_nodes is not None
        return self._book.num_fit(run.pool) if is_elastic else None

    def _start(self, starts: Sequence[Start], waiting: Sequence[RunRow]) -> list[RunRow]:
        by_id = {run.id: run for run in waiting}
        moved: list[RunRow] = []
        for start in starts:
            placement = [list(node.devices) for node in start.placements]
            changes = {"placement": placement, "nodes": len(placement), "not_before": None}
            move = Move(phase=Phase.STARTING, message="Agents are starting.", changes=changes)
            run = self._store.move(by_id[start.run_id], move, at=self._clock.now())
            if run is not None:
                moved.append(run)
        return moved

    def _explain(self, decision: Decision, waiting: Sequence[RunRow]) -> None:
        by_id = {run.id: run for run in waiting}
        news = [
            (by_id[wait.run_id], wait.message)
            for wait in decision.waits
            if by_id[wait.run_id].phase is Phase.QUEUED and by_id[wait.run_id].message != wait.message
        ]
        if news:
            self._store.explain_waits(news)


def live_gangs(held: Sequence[RunRow], specs: Specs) -> list[LiveGang]:
    """Runs that hold a place, as the policy sees them."""
    return [
        LiveGang(
            run_id=run.id,
            demand=replace(demand_of(specs.get(run)), nodes=len(run.placement)),
            placements=tuple(
                NodePlacement(node=node, devices=tuple(devices)) for node, devices in enumerate(run.placement)
            ),
        )
        for run in held
        if run.placement is not None
    ]
