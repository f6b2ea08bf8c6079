"""Which waiting gangs start now, on which devices, and why the others wait. Pure.

Gangs start whole or not at all. Order is priority, then time of submission; the first that does not fit holds back all
behind it. Ranks that reserve no cores share them, and count against the number of ranks alone.

Imports `gangline.domain` alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from gangline.domain.errors import GangTooLarge
from gangline.domain.gang import NodePlacement, PoolCapacity

__all__ = [
    "Decision",
    "Demand",
    "LiveGang",
    "Start",
    "Wait",
    "WaitingRun",
    "check_feasible",
    "decide_starts",
    "free_devices",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What a gang holds from its start to its end."""

    nodes: int = 1
    min_nodes: int | None = None
    """Fewest nodes with which the gang starts; None: all."""
    procs_per_node: int = 1
    gpus_per_node: int = 0
    cpus_per_rank: int | None = None
    """None: cores are shared, none reserved."""
    memory_bytes: int | None = None
    """On each node; None: none reserved."""

    @property
    def fewest_nodes(self) -> int:
        return self.nodes if self.min_nodes is None else min(self.min_nodes, self.nodes)

    @property
    def ranks(self) -> int:
        return self.nodes * self.procs_per_node

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node

    @property
    def cpus(self) -> int:
        """Cores reserved by the whole gang."""
        return self.ranks * (self.cpus_per_rank or 0)

    @property
    def memory(self) -> int:
        """Bytes reserved by the whole gang."""
        return self.nodes * (self.memory_bytes or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingRun:
    """A run in the queue."""

    run_id: str
    demand: Demand
    priority: int = 0
    submitted: float = 0.0
    most_nodes: int | None = None
    """Machines that are not avoided: a gang that may be smaller starts with no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveGang:
    """A run that holds machines."""

    run_id: str
    demand: Demand
    placements: tuple[NodePlacement, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A gang that starts now."""

    run_id: str
    placements: tuple[NodePlacement, ...]
    """One for each node, in their order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """A gang that waits."""

    run_id: str
    position: int
    """1 for the first that waits."""
    message: str
    """One sentence for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Every waiting run is in exactly one of the two, in queue order."""

    starts: tuple[Start, ...]
    waits: tuple[Wait, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Free:
    """What is left of a pool."""

    ranks: int
    cpus: int
    memory: int
    devices: tuple[str, ...]


def decide_starts(capacity: PoolCapacity, live: Iterable[LiveGang], waiting: Iterable[WaitingRun]) -> Decision:
    """Choose the gangs that start now; each starts whole or not at all.

    Args:
        capacity: what the pool could ever hold.
        live: every gang that holds something of the pool, those that are stopping included.
        waiting: in any order.
    """
    running = tuple(live)
    free = _free(capacity, running)
    queue = sorted(waiting, key=lambda run: (-run.priority, run.submitted, run.run_id))
    starts: list[Start] = []
    for run in queue:
        fitting = _fit(capacity, free, run.demand, most_nodes=run.most_nodes)
        if fitting is None:
            break
        starts.append(Start(run_id=run.run_id, placements=_place(fitting, free.devices)))
        free = _take(free, fitting)
    blocked = queue[len(starts) :]
    holders = [gang.run_id for gang in running] + [start.run_id for start in starts]
    return Decision(starts=tuple(starts), waits=_explain(capacity, free, blocked, holders))


def check_feasible(capacity: PoolCapacity, demand: Demand, *, pool: str, zero_is_unknown: bool = False) -> None:
    """Refuse a gang that no state of the pool could ever hold.

    Args:
        zero_is_unknown: the pool may not know what it has: a 0 says nothing.
    Raises:
        GangTooLarge: names the pool, what was asked, what there is, and the flag to change.
    """
    least = replace(demand, nodes=demand.fewest_nodes)
    asked = [("nodes in one gang", least.nodes, capacity.nodes, "--nodes")] if least.nodes > capacity.nodes else []
    for shortage in [*asked, *_shortages(capacity, _free(capacity, ()), least)]:
        if shortage[2] or not zero_is_unknown:
            raise _too_large(pool, shortage)


def free_devices(capacity: PoolCapacity, live: Iterable[LiveGang]) -> tuple[str, ...]:
    """Devices that no live gang holds, in the pool's order."""
    taken = {device for gang in live for placement in gang.placements for device in placement.devices}
    return tuple(device for device in capacity.devices if device not in taken)


_Shortage = tuple[str, int, int, str]
"""What is short, how much is asked, how much is free, and the flag that sets it."""


def _free(capacity: PoolCapacity, live: Sequence[LiveGang]) -> _Free:
    return _Free(
        ranks=capacity.ranks - sum(gang.demand.ranks for gang in live),
        cpus=capacity.cpus - sum(gang.demand.cpus for gang in live),
        memory=capacity.memory_bytes - sum(gang.demand.memory for gang in live),
        devices=free_devices(capacity, live),
    )


def _shortages(capacity: PoolCapacity, free: _Free, demand: Demand) -> list[_Shortage]:
    kind = f"{capacity.device_kind} GPUs".strip()
    asked: list[_Shortage] = [
        (kind, demand.gpus, len(free.devices), "--gpus-per-node or --nodes"),
        ("ranks", demand.ranks, free.ranks, "--procs-per-node or --nodes"),
        ("reserved CPU cores", demand.cpus, free.cpus, "--cpus-per-rank"),
        ("bytes of reserved memory", demand.memory, free.memory, "--memory"),
    ]
    return [shortage for shortage in asked if shortage[1] > max(shortage[2], 0)]


def _fit(capacity: PoolCapacity, free: _Free, demand: Demand, *, most_nodes: int | None) -> Demand | None:
    """The demand at the largest of its sizes that fits now; None: not even the smallest does."""
    most = capacity.nodes if most_nodes is None else max(demand.fewest_nodes, min(most_nodes, capacity.nodes))
    for nodes in range(min(demand.nodes, most), demand.fewest_nodes - 1, -1):
        sized = replace(demand, nodes=nodes)
        if not _shortages(capacity, free, sized):
            return sized
    return None


def _place(demand: Demand, devices: Sequence[str]) -> tuple[NodePlacement, ...]:
    each = demand.gpus_per_node
    return tuple(
        NodePlacement(node=node, devices=tuple(devices[node * each : (node + 1) * each]))
        for node in range(demand.nodes)
    )


def _take(free: _Free, demand: Demand) -> _Free:
    return _Free(
        ranks=free.ranks - demand.ranks,
        cpus=free.cpus - demand.cpus,
        memory=free.memory - demand.memory,
        devices=free.devices[demand.gpus :],
    )


def _explain(
    capacity: PoolCapacity, free: _Free, blocked: Sequence[WaitingRun], holders: Sequence[str]
) -> tuple[Wait, ...]:
    waits = []
    for position, run in enumerate(blocked, start=1):
        if position == 1:
            least = replace(run.demand, nodes=run.demand.fewest_nodes)
            short = _shortages(capacity, free, least)
            message = f"First in the queue: {_lack(short[0])}{_held_by(holders)}."
        else:
            message = f"Position {position} in the queue, behind {blocked[0].run_id}, which waits for its turn."
        waits.append(Wait(run_id=run.run_id, position=position, message=message))
    return tuple(waits)


def _lack(shortage: _Shortage) -> str:
    what, asked, free, _ = shortage
    return f"needs {_amount(what, asked)}, {_amount('', max(free, 0), unit_of=what)} free"


def _held_by(holders: Sequence[str]) -> str:
    if not holders:
        return ""
    shown = ", ".join(holders[:3])
    more = len(holders) - 3
    return f" while {shown}{f' and {more} more' if more > 0 else ''} {'runs' if len(holders) == 1 else 'run'}"


def _too_large(pool: str, shortage: _Shortage) -> GangTooLarge:
    what, asked, has, flag = shortage
    return GangTooLarge(
        f"The gang can never start: {_amount(what, asked)} asked, pool `{pool}` has {_amount('', has, unit_of=what)}",
        fix=f"Lower {flag}, or choose another --pool.",
    )


def _amount(what: str, count: int, *, unit_of: str = "") -> str:
    """`3 ranks`, or `16.0 GB of reserved memory`."""
    if "bytes" in (what or unit_of):
        return f"{count / 1e9:.1f} GB {what.removeprefix('bytes').strip()}".strip()
    return f"{count} {what}".strip()
