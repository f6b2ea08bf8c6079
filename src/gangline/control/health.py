"""What is remembered of machines: marks from the ends of attempts, and what follows for pools and launches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gangline.control.losing import AT_FAULT
from gangline.control.unserved import FaultOf, make_unserved
from gangline.domain.errors import NotFound
from gangline.domain.phase import Reason
from gangline.ports import Backend, Clock
from gangline.queue.health import (
    Evidence,
    Exclusion,
    HealthPolicy,
    MarkKind,
    NodeHealth,
    NodeState,
    decide_exclusion,
    judge_nodes,
)
from gangline.store.rows import AttemptRow, NewEvent, NodeMark, RunRow
from gangline.store.store import Store
from gangline.wire.views import NodeHealthView, NodeMarkView

__all__ = ["NodeBook", "closing_marks", "node_views", "result_marks"]

_BY_SIGNATURE = {
    "device_broken": MarkKind.HARDWARE,
    "neuron_device": MarkKind.HARDWARE,
    "device_busy": MarkKind.HARDWARE,
    "infiniband": MarkKind.NETWORK,
}
"""Rows of the table of signatures that tell of a machine. One that a team adds counts by its reason."""
_SELF_EVIDENT = frozenset({"device"})
"""Checks of a machine alone; others look at storage, or compare machines."""


def result_marks(run: RunRow, attempt: AttemptRow, result: Mapping[str, Any], *, now: float) -> list[NodeMark]:
    """What the result of an attempt has against machines; nothing where the code may be to blame. Pure.

    Args:
        attempt: with the result applied.
        now: a leader whose clock is ahead does not make marks that last longer.
    """
    if attempt.outcome != "failed" or attempt.ended is None:
        return []
    found = {**_by_failure(attempt), **_by_leader(run, attempt, result.get("nodes_at_fault"))}
    return [_mark(run, attempt, host, kind, min(attempt.ended, now)) for host, kind in found.items() if host]


def closing_marks(run: RunRow, attempt: AttemptRow) -> list[NodeMark]:
    """The same of an attempt that the server has closed: its leader is gone without a word. Pure.

    One that has left an exit code was well when it was told to end: it was another node that was lost. Where the
    backend says which machines have failed, they are the ones, and else that of the leader.
    """
    is_lost = attempt.outcome == "failed" and attempt.reason == Reason.NODE_LOST.value and attempt.next is None
    if attempt.exit_code is not None:
        return []
    if not is_lost or attempt.ended is None:
        return []
    by_backend = [node for node in attempt.nodes if AT_FAULT in node]
    nodes = [node for node in by_backend if node[AT_FAULT]] if by_backend else attempt.nodes[:1]
    hosts = [str(node.get("host") or "") for node in nodes]
    return [_mark(run, attempt, host, MarkKind.NODE_LOST, attempt.ended) for host in hosts if host]


def _by_failure(attempt: AttemptRow) -> dict[str, MarkKind]:
    kind = _BY_SIGNATURE.get(attempt.signature or "")
    if kind is None and attempt.signature and attempt.reason == Reason.UNHEALTHY_NODE.value:
        kind = MarkKind.HARDWARE
    host = (attempt.first_failure or {}).get("host")
    return {} if kind is None or not isinstance(host, str) else {host: kind}


def _by_leader(run: RunRow, attempt: AttemptRow, listed: object) -> dict[str, MarkKind]:
    faults = [fault for fault in listed if isinstance(fault, Mapping)] if isinstance(listed, list) else []
    few = 2 * len(faults) < (len(attempt.nodes) or run.nodes)
    return {str(fault.get("host") or ""): _kind(fault.get("why"), attempt, few=few) for fault in faults}


def _kind(why: object, attempt: AttemptRow, *, few: bool) -> MarkKind:
    if why == "blocked":
        return MarkKind.BLOCKED
    if why == "lost" or attempt.reason == Reason.NODE_LOST.value:
        return MarkKind.NODE_LOST
    return MarkKind.FAILED_CHECK if few or why in _SELF_EVIDENT else MarkKind.SHARED_CHECK


def _mark(run: RunRow, attempt: AttemptRow, host: str, kind: MarkKind, time: float) -> NodeMark:
    return NodeMark(
        pool=run.pool,
        host=host,
        run_id=run.id,
        attempt=attempt.number,
        kind=kind.value,
        time=time,
        detail=attempt.message.partition("\n")[0],
    )


class NodeBook:
    """The machines of all pools as they stand now. Safe for threads."""

    def __init__(
        self,
        *,
        store: Store,
        backends: Mapping[str, Backend],
        clock: Clock,
        policy: HealthPolicy | None = None,
        fault_of: FaultOf = lambda _: None,
    ) -> None:
        self._store = store
        self._backends = backends
        self._clock = clock
        self._policy = policy or HealthPolicy()
        self._fault_of = fault_of

    def judge(self, pool: str) -> list[NodeHealth]:
        """Every machine that is known by name, the worst first."""
        now, capacity = self._clock.now(), self._backends[pool].capacity()
        marks = self._store.marks(pool, since=now - self._policy.window_s)
        return judge_nodes(
            [_evidence(mark) for mark in marks],
            now=now,
            policy=self._policy,
            hosts=capacity.hosts,
            num_hosts=capacity.num_hosts,
        )

    def exclusion(self, pool: str, *, nodes: int) -> Exclusion:
        """What a launch of `nodes` nodes is to avoid."""
        return decide_exclusion(self.judge(pool), num_hosts=self._backends[pool].capacity().num_hosts, nodes=nodes)

    def num_fit(self, pool: str) -> int | None:
        """Machines that are not avoided; None: none is, and one machine may hold several nodes."""
        avoided = sum(node.state is NodeState.AVOIDED for node in self.judge(pool))
        return self._backends[pool].capacity().num_hosts - avoided if avoided else None

    def tell(self, run: RunRow, exclusion: Exclusion) -> None:
        """Note in the history of a run what its launch avoids, and what it has to use all the same; once a launch."""
        if not exclusion.avoided and not exclusion.kept:
            return
        told = {event.data.get("launch") for event in self._store.events(run.id) if "avoids" in event.data}
        if run.launch not in told:
            self._store.add_events(run.id, _events(run, exclusion, self._clock.now()))

    def clear(self, host: str, *, pool: str | None, by: str) -> list[str]:
        """Count nothing against a machine that happened so far; the pools where something was cleared.

        Raises:
            NotFound: no such pool or machine; it names those that there are.
        """
        if pool is not None:
            self.check_pool(pool)
        judged = {name: self.judge(name) for name in ([pool] if pool is not None else self._backends)}
        known = {node.host for nodes in judged.values() for node in nodes}
        if host not in known:
            where = "" if pool is None else f" in pool `{pool}`"
            fix = f"Known: {', '.join(sorted(known))}." if known else "No machine is known by name yet."
            raise NotFound(f"There is no node `{host}`{where}", fix=fix)
        marked = [name for name, nodes in judged.items() if any(node.host == host and node.marks for node in nodes)]
        for name in marked:
            self._store.clear_marks(name, host, at=self._clock.now(), by=by)
        return marked

    def check_pool(self, pool: str) -> None:
        """Raise NotFound, with the pools that there are or what is wrong with their file, unless `pool` is one."""
        if pool not in self._backends:
            raise make_unserved(NotFound, pool, self._backends, self._fault_of(pool))


def node_views(pool: str, judged: list[NodeHealth]) -> list[NodeHealthView]:
    """As people get to see it."""
    return [
        NodeHealthView(
            pool=pool,
            host=node.host,
            state=node.state.value,
            why=node.why,
            forgotten_at=node.forgotten_at,
            marks=[
                NodeMarkView(
                    time=mark.time, run=mark.run_id, attempt=mark.attempt, kind=mark.kind.value, detail=mark.detail
                )
                for mark in node.marks
            ],
        )
        for node in judged
    ]


def _evidence(mark: NodeMark) -> Evidence:
    return Evidence(
        host=mark.host,
        run_id=mark.run_id,
        attempt=mark.attempt,
        kind=MarkKind(mark.kind),
        time=mark.time,
        detail=mark.detail,
    )


def _events(run: RunRow, exclusion: Exclusion, now: float) -> list[NewEvent]:
    clear = "`gangline pools clear NODE` lets it be used again."
    avoided = [
        NewEvent(
            time=now,
            kind="avoided",
            message=f"Node {node.host} is avoided: {node.why}. {clear}",
            data={"launch": run.launch, "avoids": node.host, "why": node.why},
        )
        for node in exclusion.avoided
    ]
    kept = [
        NewEvent(
            time=now,
            kind="warning",
            message=f"Node {node.host} ought to be avoided ({node.why}), but is used: "
            f"pool `{run.pool}` has too few others.",
            data={"launch": run.launch, "avoids": None, "host": node.host},
        )
        for node in exclusion.kept
    ]
    return [*avoided, *kept]
