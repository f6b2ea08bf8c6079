"""What no partition that a gang asks for could ever hold, where Slurm itself would let it wait for ever. Pure.

Only what is sure is refused: nodes that are drained or down still count, and partitions that `sinfo` does not show
may be there all the same.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

from gangline.backends.slurm.capacity import NodeKind, in_partitions
from gangline.backends.slurm.render import render_time
from gangline.domain.errors import Rejected, nearest
from gangline.domain.gang import GangSpec
from gangline.domain.pool import SlurmPool
from gangline.domain.spec import SlurmOptions

__all__ = ["OVERRIDES", "explain_partition", "find_misfit"]

OVERRIDES = re.compile(r"\b(Over)?Part(ition)?(MaxNodes|TimeLimit|QOS)\b", re.IGNORECASE)
"""Flags of a QOS by which its jobs may go beyond the limits of partitions."""
_MINUTE_S = 60
_ASKED = re.compile(r"(?:gres:)?([A-Za-z_][\w-]*)(?::((?!\d+$)\w[\w.-]*))?(?:[:=](\d+))?")


def find_misfit(gang: GangSpec, options: SlurmOptions, kinds: Sequence[NodeKind], pool: SlurmPool) -> Rejected | None:
    """Why the gang can never start; None: nothing is known against it.

    Args:
        options: of pool and run, merged.
        kinds: all that the cluster has; empty: not known.
    """
    mine = in_partitions(kinds, options.partition)
    if not mine or options.script is not None:
        return None
    return _too_long(gang, mine) or _too_many_nodes(gang, mine) or _no_such_nodes(gang, options, mine, pool)


def explain_partition(options: SlurmOptions, kinds: Sequence[NodeKind], refused: Rejected) -> Rejected:
    """Slurm refuses the partition: name those that there are."""
    names = sorted({kind.partition for kind in kinds})
    wrong = [name for name in (options.partition or "").split(",") if name and name not in names]
    if not wrong or not names or "partition" not in refused.why.lower() or "account" in refused.why.lower():
        return refused
    return Rejected(
        f"Slurm has no partition `{wrong[0]}` for you",
        why=refused.why,
        fix=f"Give another --partition. {nearest(wrong[0], names)}",
    )


def _names(kinds: Iterable[NodeKind]) -> str:
    found = sorted({kind.partition for kind in kinds})
    return " or ".join(f"`{name}`" for name in found)


def _too_long(gang: GangSpec, kinds: Sequence[NodeKind]) -> Rejected | None:
    most_s = max(kind.most_s for kind in kinds)
    if gang.time_limit_s is None or math.ceil(gang.time_limit_s / _MINUTE_S) * _MINUTE_S <= most_s:
        return None
    asked, most = render_time(gang.time_limit_s), render_time(most_s)
    return Rejected(
        f"Partition {_names(kinds)} has a time limit of {most}, and the run asks for {asked}",
        why="Slurm would let the job wait for ever (PartitionTimeLimit)",
        fix="Lower --time-limit, with --on-time-limit continue for what takes longer, or choose another --partition.",
    )


def _too_many_nodes(gang: GangSpec, kinds: Sequence[NodeKind]) -> Rejected | None:
    names = {kind.partition for kind in kinds}
    has = max(sum(kind.nodes for kind in kinds if kind.partition == name) for name in names)
    most = max(kind.most_nodes for kind in kinds)
    least = gang.min_nodes or gang.nodes
    if least <= min(has, most):
        return None
    limit = f"takes jobs of at most {most:g} nodes" if most < has else f"has {_count(has)}"
    fix = "Lower --nodes, or choose another --partition."
    return Rejected(f"Partition {_names(kinds)} {limit}, and the run asks for {least}", fix=fix)


def _no_such_nodes(
    gang: GangSpec, options: SlurmOptions, kinds: Sequence[NodeKind], pool: SlurmPool
) -> Rejected | None:
    """Devices that too few nodes have."""
    asked = _asked(gang, options)
    for name, model, count in asked:
        fit = sum(kind.nodes for kind in kinds if _holds(kind, name, model, count, pool))
        if fit >= (gang.min_nodes or gang.nodes):
            continue
        what = f"{count} {name}" + (f" of type {model}" if model else "")
        has = "no node" if fit == 0 else f"only {_count(fit)}"
        there = sorted({kind.gres for kind in kinds if kind.gres}) or ["none at all"]
        flag = "--gres" if options.gres is not None else "--gpus-per-node"
        return Rejected(
            f"Partition {_names(kinds)} has {has} with {what}, and the run asks for {gang.min_nodes or gang.nodes}",
            why=f"Its nodes have: {'; '.join(there)}",
            fix=f"Change {flag} or --nodes, or choose another --partition.",
        )
    return None


def _asked(gang: GangSpec, options: SlurmOptions) -> list[tuple[str, str, int]]:
    """Name, model and count of what each node is to have, as far as it can be read."""
    if options.gres is None:
        return [("gpu", "", gang.gpus_per_node)] if gang.gpus_per_node else []
    found = [_ASKED.fullmatch(one.strip()) for one in options.gres.split(",")]
    return [(one[1], one[2] or "", int(one[3] or 1)) for one in found if one is not None]


def _holds(kind: NodeKind, name: str, model: str, count: int, pool: SlurmPool) -> bool:
    if name == "gpu" and not model and pool.gpus_per_node >= count:
        return True  # whoever set up the pool knows better
    return kind.count(name, model) >= count


def _count(nodes: int) -> str:
    return "1 node" if nodes == 1 else f"{nodes} nodes"
