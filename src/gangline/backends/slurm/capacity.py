"""What a cluster has, from `sinfo`: enough to refuse the impossible, and to know a GPU's share of the cores. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from gangline.domain.gang import PoolCapacity
from gangline.domain.pool import SlurmPool

__all__ = ["NodeKind", "decide_capacity", "decide_cpus", "parse_sinfo", "render_sinfo"]

_GPUS = re.compile(r"\bgpu:(?:[^:,()]+:)?(\d+)")
_MOST = 1_000_000
_MIB = 1 << 20
_MANY_BYTES = 1 << 60


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeKind:
    """Nodes of one partition that are alike."""

    partition: str
    nodes: int
    cpus: int
    memory_bytes: int
    gpus: int


def render_sinfo(pool: SlurmPool) -> list[str]:
    """The question."""
    partition = [f"--partition={pool.defaults.partition}"] if pool.defaults.partition else []
    return ["sinfo", "--noheader", "--exact", *partition, "--format=%R|%D|%c|%m|%G"]


def parse_sinfo(out: str) -> list[NodeKind]:
    """The answer; lines that are none are passed over."""
    kinds = []
    for line in out.splitlines():
        parts = line.strip().split("|")
        if len(parts) != 5 or not all(part.rstrip("+").isdigit() for part in parts[1:4]):  # noqa: PLR2004 - as asked for
            continue
        nodes, cpus, memory_mib = (int(part.rstrip("+")) for part in parts[1:4])
        gpus = sum(int(count) for count in _GPUS.findall(parts[4]))
        kinds.append(NodeKind(partition=parts[0], nodes=nodes, cpus=cpus, memory_bytes=memory_mib * _MIB, gpus=gpus))
    return kinds


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
