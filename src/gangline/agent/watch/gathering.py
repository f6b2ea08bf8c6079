"""Stacks of a whole gang at one moment: what nodes answered, put together. Standard library only."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gangline.agent.attempt import Attempt
from gangline.agent.control import StacksRequest
from gangline.agent.loop import Timer
from gangline.agent.watch.flight import Flight
from gangline.agent.watch.frames import Thread, main_thread, render_threads, thread_from_dict
from gangline.agent.watch.places import Finding, RankView, decide_finding, decide_place

__all__ = ["Answer", "Gathering"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The stacks of all ranks that were asked for."""

    id: str
    attempt: int
    by: str
    time: float
    taken_s: float
    views: Sequence[RankView]
    finding: Finding
    ranks: Sequence[Mapping[str, Any]]
    """As the nodes told them, with `node` and `host`."""
    flights: Sequence[Flight]
    silent: Sequence[int]
    """Nodes that did not answer."""

    def to_dict(self) -> dict[str, Any]:
        """The content of `stacks/<id>.json`."""
        return {
            "version": 1,
            "id": self.id,
            "attempt": self.attempt,
            "by": self.by,
            "time": self.time,
            "taken_s": self.taken_s,
            "text": self.finding.text,
            "hint": self.finding.hint,
            "culprit": self.finding.culprit,
            "silent_nodes": list(self.silent),
            "groups": self.groups(),
            "ranks": list(self.ranks),
        }

    def groups(self) -> list[dict[str, Any]]:
        """Ranks by place."""
        return [
            {
                "ranks": list(group.ranks),
                "state": group.state,
                "what": group.place.what,
                "where": group.place.where,
                "waits": group.place.waits,
                "text": str(group),
            }
            for group in self.finding.groups
        ]

    def state_of(self, rank: int | None) -> str:
        return next((view.state for view in self.views if view.rank == rank), "")

    def place_of(self, rank: int | None) -> str:
        """How the rank's group reads: `is in time.sleep (data.py:17)`."""
        return next((group.verb for group in self.finding.groups if rank in group.ranks), "")

    def places(self) -> dict[int, str]:
        """Where each rank is that runs and gave a stack."""
        groups = [group for group in self.finding.groups if group.state == "runs"]
        return {rank: group.place.told for group in groups for rank in group.ranks if group.place.told}

    def stack_of(self, rank: int | None) -> str:
        """The main thread of a rank, as a traceback reads."""
        view = next((view for view in self.views if view.rank == rank), None)
        thread = main_thread(view.threads) if view is not None else None
        return render_threads([thread]) if thread is not None else (view.detail if view is not None else "")


@dataclass(slots=True, kw_only=True)
class Gathering:
    """One request under way."""

    request: StacksRequest
    attempt: Attempt
    patience_s: float
    began: float = field(default_factory=time.monotonic)
    waiting: set[int] = field(default_factory=set)
    """Nodes that have not answered."""
    ranks: dict[int, dict[str, Any]] = field(default_factory=dict)
    timer: Timer | None = None
    on_done: Callable[[Answer], None] | None = None

    @classmethod
    def asked(cls, request: StacksRequest, attempt: Attempt, patience_s: float) -> Gathering:
        return cls(request=request, attempt=attempt, patience_s=patience_s, waiting=set(attempt.shape.nodes))

    def take(self, node: int, ranks: Iterable[Mapping[str, Any]]) -> bool:
        """A node's answer; whether it was the last."""
        for raw in ranks:
            record = self.attempt.ranks.get(raw["rank"])
            self.ranks[raw["rank"]] = {**raw, "node": node, "host": "" if record is None else record.host}
        self.waiting.discard(node)
        return not self.waiting

    def finish(self, now: float) -> Answer:
        """All together."""
        wanted = [
            record
            for record in self.attempt.ranks.values()
            if self.request.ranks is None or record.rank in self.request.ranks
        ]
        views, listed, flights = [], [], []
        for record in sorted(wanted, key=lambda record: record.rank):
            raw = self.ranks.get(record.rank)
            view = _view(raw, rank=record.rank, ended=record.ended is not None)
            views.append(view)
            place = str(decide_place(view.threads))
            base = {"rank": record.rank, "node": record.node, "host": record.host, "pid": record.pid}
            listed.append({**base, "processes": [], **(raw or {}), "state": view.state, "place": place})
            if raw is not None and raw.get("flight"):
                flights.append(Flight.from_dict(raw["flight"]))
        return Answer(
            id=self.request.id,
            attempt=self.attempt.number,
            by=self.request.by,
            time=now,
            taken_s=round(time.monotonic() - self.began, 3),
            views=views,
            finding=decide_finding(views, whole=len(views) == len(self.attempt.ranks)),
            ranks=listed,
            flights=flights,
            silent=sorted(self.waiting),
        )


def _view(raw: Mapping[str, Any] | None, *, rank: int, ended: bool) -> RankView:
    if raw is None:
        return RankView(rank=rank, state="ended" if ended else "silent", detail="" if ended else "its node is silent")
    own = next((process for process in raw["processes"] if not process["child"]), None)
    threads: list[Thread] = [] if own is None else [thread_from_dict(thread) for thread in own["threads"]]
    state, note = raw["state"], "" if own is None else own["note"]
    if state == "runs" and not threads:
        threads = _wrapped(raw)
        state = state if threads else "silent"
    return RankView(rank=rank, threads=threads, state=state, detail=note)


def _wrapped(raw: Mapping[str, Any]) -> list[Thread]:
    """Of a rank that is a wrapper, the first program below it that has a stack."""
    for process in raw["processes"]:
        if process["threads"]:
            return [thread_from_dict(thread) for thread in process["threads"]]
    return []
