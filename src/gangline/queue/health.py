"""Which machines of a pool are to be avoided, from what attempts had to say against them. Pure.

A mark is one attempt that ended with evidence against a machine, never against the code that ran there. One failed
check that tells the machine from its peers is enough. Of everything else it takes several attempts, and a run is only
believed as far as it points somewhere: if more than half of its marks are against one machine, all of them count; a
run that breaks machine after machine is itself what they have in common, and counts once against each.

Imports `gangline.domain` alone.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

__all__ = [
    "DAY_S",
    "Evidence",
    "Exclusion",
    "HealthPolicy",
    "MarkKind",
    "NodeHealth",
    "NodeState",
    "decide_exclusion",
    "judge_nodes",
]

DAY_S = 86_400.0


class MarkKind(str, Enum):
    """What an attempt has against a machine."""

    FAILED_CHECK = "failed_check"
    """A check before the start that tells this machine from its peers."""
    SHARED_CHECK = "shared_check"
    """A check that so many machines failed that it may be their network, their storage or what was asked."""
    NODE_LOST = "node_lost"
    HARDWARE = "hardware"
    """The first failing rank met a broken device."""
    NETWORK = "network"
    """The first failing rank met an error of its network adapter."""
    BLOCKED = "blocked"
    """The rank that the others waited for hung in the kernel."""


_WORDS: Mapping[MarkKind, tuple[str, str]] = {
    MarkKind.FAILED_CHECK: ("failed check", "failed checks"),
    MarkKind.SHARED_CHECK: ("check failed together with others", "checks failed together with others"),
    MarkKind.NODE_LOST: ("loss", "losses"),
    MarkKind.HARDWARE: ("broken device", "broken devices"),
    MarkKind.NETWORK: ("network error", "network errors"),
    MarkKind.BLOCKED: ("hang in the kernel", "hangs in the kernel"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthPolicy:
    """When a machine is avoided."""

    marks: int = 3
    """Attempts that it takes; 0: no machine is ever avoided."""
    window_s: float = DAY_S
    """How long a mark counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One mark."""

    host: str
    run_id: str
    attempt: int
    kind: MarkKind
    time: float
    detail: str = ""


class NodeState(str, Enum):
    """How a machine stands."""

    OK = "ok"
    SUSPECT = "suspect"
    """Something speaks against it; it is used."""
    AVOIDED = "avoided"
    KEPT = "kept"
    """Bad enough to be avoided, but the pool has too few others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeHealth:
    """One machine, and why it stands as it does."""

    host: str
    state: NodeState
    why: str = ""
    marks: tuple[Evidence, ...] = ()
    """Oldest first."""
    forgotten_at: float | None = None
    """When its newest mark counts no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exclusion:
    """What one gang is told of the machines of its pool."""

    avoided: tuple[NodeHealth, ...] = ()
    """The worst first."""
    kept: tuple[NodeHealth, ...] = ()
    """Bad, and used all the same: the gang, or the pool, needs them."""

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(node.host for node in self.avoided)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Weight:
    """Orders machines, the worst last."""

    is_decisive: bool
    counted: int
    newest: float
    host: str

    @property
    def key(self) -> tuple[bool, int, float, str]:
        return (self.is_decisive, self.counted, self.newest, self.host)


def judge_nodes(
    marks: Iterable[Evidence], *, now: float, policy: HealthPolicy, hosts: Sequence[str] = (), num_hosts: int
) -> list[NodeHealth]:
    """How each machine stands: the avoided ones first, the worst of them first.

    At most half of a pool is avoided. The only machine of a pool is suspect at most: there is no other to use instead,
    so that saying with each run that it ought to be avoided would help nobody.

    Args:
        marks: in any order; those that are too old count for nothing.
        hosts: the machines of the pool, if their names are known; those without marks are listed as `ok`.
        num_hosts: how many machines the pool has.
    """
    by_host: defaultdict[str, list[Evidence]] = defaultdict(list)
    for mark in sorted(marks, key=lambda mark: (mark.time, mark.run_id, mark.attempt, mark.kind.value)):
        if mark.host and now - mark.time < policy.window_s:
            by_host[mark.host].append(mark)
    weights = [_weigh(host, by_host) for host in by_host]
    bad = [weight for weight in weights if policy.marks and (weight.is_decisive or weight.counted >= policy.marks)]
    bad.sort(key=lambda weight: weight.key, reverse=True)
    here = [weight.host for weight in bad if num_hosts > 1 and (not hosts or weight.host in hosts)]
    avoided = here[: num_hosts // 2]
    states = {weight.host: NodeState.KEPT if weight.host in here else NodeState.SUSPECT for weight in weights}
    states.update(dict.fromkeys(avoided, NodeState.AVOIDED))
    ordered = sorted(weights, key=lambda weight: weight.key, reverse=True)
    ordered.sort(key=lambda weight: _ORDER.index(states[weight.host]))
    judged = [_describe(weight.host, states[weight.host], by_host[weight.host], policy) for weight in ordered]
    return judged + [NodeHealth(host=host, state=NodeState.OK) for host in sorted(set(hosts) - set(by_host))]


def decide_exclusion(judged: Sequence[NodeHealth], *, num_hosts: int, nodes: int) -> Exclusion:
    """What a gang of `nodes` nodes avoids: as much as leaves it enough machines, the worst first."""
    avoided = [node for node in judged if node.state is NodeState.AVOIDED]
    kept = [node for node in judged if node.state is NodeState.KEPT]
    room = max(0, num_hosts - nodes)
    return Exclusion(avoided=tuple(avoided[:room]), kept=(*avoided[room:], *kept))


_ORDER = (NodeState.AVOIDED, NodeState.KEPT, NodeState.SUSPECT, NodeState.OK)


def _weigh(host: str, by_host: Mapping[str, Sequence[Evidence]]) -> _Weight:
    mine = by_host[host]
    attempts = Counter(run_id for run_id, _ in {(mark.run_id, mark.attempt) for mark in mine})
    counted = 0
    for run_id, count in attempts.items():
        everywhere = sum(_num_attempts(marks, run_id) for marks in by_host.values())
        counted += count if 2 * count > everywhere else 1
    return _Weight(
        is_decisive=any(mark.kind is MarkKind.FAILED_CHECK for mark in mine),
        counted=counted,
        newest=mine[-1].time,
        host=host,
    )


def _num_attempts(marks: Sequence[Evidence], run_id: str) -> int:
    return len({mark.attempt for mark in marks if mark.run_id == run_id})


def _describe(host: str, state: NodeState, marks: Sequence[Evidence], policy: HealthPolicy) -> NodeHealth:
    kinds = Counter(mark.kind for mark in marks)
    said = ", ".join(f"{count} {_WORDS[kind][count != 1]}" for kind, count in kinds.items())
    runs = list(dict.fromkeys(mark.run_id for mark in marks))
    of = f"of run {runs[0]}" if len(runs) == 1 else f"of {len(runs)} runs"
    newest = marks[-1]
    return NodeHealth(
        host=host,
        state=state,
        why=f"{said} {of} within {_span(policy.window_s)}",
        marks=tuple(marks),
        forgotten_at=newest.time + policy.window_s,
    )


def _span(window_s: float) -> str:
    return f"{window_s / 3600:g} h" if window_s >= 3600 else f"{window_s:g} s"  # noqa: PLR2004 - an hour
