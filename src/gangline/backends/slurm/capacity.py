"""What a cluster has, from `sinfo`: enough to refuse the impossible, and to know a GPU's share of the cores. Pure."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from gangline.domain.gang import PoolCapacity
from gangline.domain.pool import SlurmPool

__all__ = ["NodeKind", "decide_capacity", "decide_cpus", "in_partitions", "parse_sinfo", "render_sinfo"]

_GRES = re.compile(r"([A-Za-z_][\w-]*)(?::(\w[\w.-]*))?:(\d+)(?:[KMGTP])?(?=[(,]|$)")
_MOST = 1_000_000
_MIB = 1 << 20
_MANY_BYTES = 1 << 60
_TIME = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)")
_COLUMNS = 7


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

    def count(self, name: str, model: str = "") -> int:
        """How many of a generic resource each node has; of any model, where none is named."""
        found = _GRES.findall(self.gres)
        return sum(int(number) for one, of, number in found if one == name and model in {"", of})

    @property
    def gpus(self) -> int:
        return self.count("gpu")


def render_sinfo() -> list[str]:
    """The question."""
    return ["env", "-u", "SINFO_PARTITION", "sinfo", "--noheader", "--exact", "--format=%P|%D|%c|%m|%G|%l|%s"]


def parse_sinfo(out: str) -> list[NodeKind]:
    """The answer; lines that are none are passed over."""
    kinds = []
    for line in out.splitlines():
        parts = line.strip().split("|")
        if len(parts) != _COLUMNS or not all(part.rstrip("+").isdigit() for part in parts[1:4]):
            continue
        nodes, cpus, memory_mib = (int(part.rstrip("+")) for part in parts[1:4])
        most_nodes = parts[6].rpartition("-")[2]
        kinds.append(
            NodeKind(
                partition=parts[0].rstrip("*"),
                is_default=parts[0].endswith("*"),
                nodes=nodes,
                cpus=cpus,
                memory_bytes=memory_mib * _MIB,
                gres="" if parts[4] == "(null)" else parts[4],
                most_s=_parse_limit(parts[5]),
                most_nodes=int(most_nodes) if most_nodes.isdigit() else math.inf,
            )
        )
    return kinds


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
        return PoolCapacity(nodes=_MOST, ranks=_MOST, cpus=_MOST, memory_bytes=_MANY_BYTES, devices=devices)
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


def decide_cpus(pool: SlurmPool, kinds: Sequence[NodeKind], *, gpus: int, ranks: int) -> int:
    """Cores for each node of a gang that reserves none: the share that goes with its GPUs, at least one a rank."""
    if not gpus:
        return ranks
    if pool.cpus_per_node and pool.gpus_per_node:
        shares = [pool.cpus_per_node * gpus // pool.gpus_per_node]
    else:
        shares = [kind.cpus * gpus // kind.gpus for kind in kinds if kind.gpus >= gpus]
    return max(ranks, min(shares, default=0))
