"""What a cluster has, from `sinfo`: enough to refuse the impossible, and to know a GPU's share of the cores. Pure."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gangline.domain.gang import PoolCapacity, PoolPart
from gangline.domain.pool import SlurmPool

__all__ = ["NodeKind", "decide_capacity", "decide_cpus", "decide_parts", "in_partitions", "parse_sinfo", "render_sinfo"]

_GRES = re.compile(r"([A-Za-z_][\w-]*)(?::(\w[\w.-]*))?:(\d+)(?:[KMGTP])?(?=[(,]|$)")
_MOST = 1_000_000
_MIB = 1 << 20
_MANY_BYTES = 1 << 60
_FIELDS = {
    "Partition": 80,
    "Nodes": 12,
    "CPUs": 12,
    "Memory": 16,
    "Time": 20,
    "Size": 24,
    "StateCompact": 16,
    "CPUsState": 40,
    "Gres": 240,
    "GresUsed": 240,
}
"""Columns of fixed width, which every version understands; each is longer than what it holds."""
_USABLE = re.compile(r"(idle|mix|alloc|comp|plnd)[~#^+-]*")
"""States of nodes that take jobs, or will when what they run is over; other marks than these keep jobs away."""
_SHARES = re.compile(r"\d+/(\d+)/\d+/\d+")
"""Processors that are allocated, idle, out of order, and all."""
_TIME = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeKind:
    """Nodes of one partition that are alike."""

    partition: str
    nodes: int
    cpus: int
    memory_bytes: int
    gres: str = ""
    """Generic resources of each, in Slurm's words."""
    is_default: bool = False
    """Of the partition that jobs go to which name none."""
    most_s: float = math.inf
    """Longest time limit of a job."""
    most_nodes: float = math.inf
    """Of one job."""
    idle_nodes: int = 0
    """Of all that are counted here, with nothing on them."""
    free_cpus: int = 0
    free_gpus: int = 0

    def count(self, name: str, model: str = "") -> int:
        """How many of a generic resource each node has; of any model, where none is named."""
        found = _GRES.findall(self.gres)
        return sum(int(number) for one, of, number in found if one == name and model in {"", of})

    @property
    def gpus(self) -> int:
        return self.count("gpu")


def render_sinfo() -> list[str]:
    """The question."""
    columns = ",".join(f"{name}:{width}" for name, width in _FIELDS.items())
    return ["env", "-u", "SINFO_PARTITION", "sinfo", "--noheader", "--exact", f"--Format={columns}"]


def parse_sinfo(out: str) -> list[NodeKind]:
    """The answer; lines that are none are passed over."""
    found = [_parse_line(line) for line in out.splitlines()]
    return [kind for kind in found if kind is not None]


def _parse_line(line: str) -> NodeKind | None:
    said, at = {}, 0
    for name, width in _FIELDS.items():
        said[name], at = line[at : at + width].strip(), at + width
    numbers = [said[name].rstrip("+") for name in ("Nodes", "CPUs", "Memory")]
    if not all(number.isdigit() for number in numbers):
        return None
    nodes, cpus, memory_mib = map(int, numbers)
    most_nodes = said["Size"].rpartition("-")[2]
    kind = NodeKind(
        partition=said["Partition"].rstrip("*"),
        is_default=said["Partition"].endswith("*"),
        nodes=nodes,
        cpus=cpus,
        memory_bytes=memory_mib * _MIB,
        gres="" if said["Gres"] == "(null)" else said["Gres"],
        most_s=_parse_limit(said["Time"]),
        most_nodes=int(most_nodes) if most_nodes.isdigit() else math.inf,
    )
    shares = _SHARES.fullmatch(said["CPUsState"])
    if not _USABLE.fullmatch(said["StateCompact"]) or shares is None:
        return kind
    used = sum(int(number) for one, _, number in _GRES.findall(said["GresUsed"]) if one == "gpu")
    idle = nodes if said["StateCompact"].startswith("idle") else 0
    return replace(kind, idle_nodes=idle, free_cpus=int(shares[1]), free_gpus=nodes * max(0, kind.gpus - used))


def in_partitions(kinds: Sequence[NodeKind], names: str | None) -> list[NodeKind]:
    """Those of the partitions that a job names, or of the default one."""
    wanted = names.split(",") if names else []
    return [kind for kind in kinds if (kind.partition in wanted if wanted else kind.is_default)]


def _parse_limit(text: str) -> float:
    """Seconds of `days-hours:minutes:seconds`; what is none is no limit."""
    found = _TIME.fullmatch(text)
    if found is None:
        return math.inf
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def decide_capacity(pool: SlurmPool, kinds: Sequence[NodeKind]) -> PoolCapacity:
    """What one gang could have at most; where nothing is known of the cluster, Slurm has the word."""
    if not kinds:
        devices = tuple(str(number) for number in range(_MOST // 10)) if pool.gpus_per_node else ()
        return PoolCapacity(
            nodes=_MOST,
            ranks=_MOST,
            cpus=_MOST,
            memory_bytes=_MANY_BYTES,
            devices=devices,
            knows_devices=bool(devices),
        )
    by_partition: dict[str, list[NodeKind]] = defaultdict(list)
    for kind in kinds:
        by_partition[kind.partition].append(kind)
    parts = list(by_partition.values())
    gpus = max(sum(kind.nodes * max(kind.gpus, pool.gpus_per_node) for kind in part) for part in parts)
    return PoolCapacity(
        nodes=max(sum(kind.nodes for kind in part) for part in parts),
        ranks=_MOST,
        cpus=max(sum(kind.nodes * max(kind.cpus, pool.cpus_per_node) for kind in part) for part in parts),
        memory_bytes=max(sum(kind.nodes * kind.memory_bytes for kind in part) for part in parts) or _MANY_BYTES,
        devices=tuple(str(number) for number in range(gpus)),
    )


def decide_parts(pool: SlurmPool, kinds: Sequence[NodeKind]) -> tuple[PoolPart, ...]:
    """What each partition has, and what of it is free."""
    usual = {kind.partition for kind in in_partitions(kinds, pool.defaults.partition)}
    by_partition: dict[str, list[NodeKind]] = defaultdict(list)
    for kind in kinds:
        by_partition[kind.partition].append(kind)
    return tuple(
        PoolPart(
            name=name,
            is_usual=name in usual,
            nodes=sum(kind.nodes for kind in part),
            idle_nodes=sum(kind.idle_nodes for kind in part),
            cpus=sum(kind.nodes * kind.cpus for kind in part),
            free_cpus=sum(kind.free_cpus for kind in part),
            devices=sum(kind.nodes * kind.gpus for kind in part),
            free_devices=sum(kind.free_gpus for kind in part),
        )
        for name, part in by_partition.items()
    )


def decide_cpus(pool: SlurmPool, kinds: Sequence[NodeKind], *, gpus: int, ranks: int) -> int:
    """Cores for each node of a gang that reserves none: the share that goes with its GPUs, at least one a rank."""
    if not gpus:
        return ranks
    if pool.cpus_per_node and pool.gpus_per_node:
        shares = [pool.cpus_per_node * gpus // pool.gpus_per_node]
    else:
        shares = [kind.cpus * gpus // kind.gpus for kind in kinds if kind.gpus >= gpus]
    return max(ranks, min(shares, default=0))
