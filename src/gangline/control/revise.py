"""A spec made from another one: a revision for `resume`, a new run for `rerun`, a smaller world for `debug`. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gangline.domain.errors import InvalidRequest, nearest
from gangline.domain.naming import LOCAL, MAX_NAME_CHARS, name_from
from gangline.domain.spec import EntryKind, ResumeMode, RunSpec, SlurmOptions
from gangline.wire.difference import flatten
from gangline.wire.reading import Origin, read_spec
from gangline.wire.schema import keys
from gangline.wire.spec import merge_layers, spec_from_mapping, spec_to_mapping

__all__ = ["DEBUG_LABEL", "World", "check_resumable", "derive_debug", "derive_rerun", "revise"]

DEBUG_LABEL = "debug"
_NAME_CHARS = MAX_NAME_CHARS - len("-debug")


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The smaller world of `gangline debug`."""

    nodes: int = 1
    procs_per_node: int = 1
    start_from: str | None = None
    """Checkpoint, absolute; None: from the beginning."""
    pdb_rank: int | None = None
    """Rank that a person debugs."""


def check_resumable(changes: Mapping[str, Any]) -> None:
    """Refuse a change that would make another run of it.

    Raises:
        InvalidRequest: naming the key, and what may change.
    """
    resumable = {".".join(key.path) for key in keys().values() if key.resumable}
    for key in flatten(changes):
        if key not in resumable:
            near = nearest(key, resumable)
            may = (
                near
                if near.startswith("Did")
                else "What may change: sizes, restarts, time limits, priority, keep_last."
            )
            raise InvalidRequest(
                f"`{key}` of a run cannot change when it is resumed",
                why="It goes on as the run that it was",
                fix=f"{may} `gangline rerun` makes a new run with other values.",
            )


def revise(spec: RunSpec, changes: Mapping[str, Any], *, start_from: str | None = None) -> RunSpec:
    """The spec with other values, and another checkpoint to start from.

    Args:
        changes: nested, under canonical keys, checked by `check_resumable`.
    Raises:
        InvalidRequest: a value is wrong.
    """
    revised = _changed(spec, changes)
    if start_from is None:
        return revised
    return replace(revised, checkpoint=replace(revised.checkpoint, start_from=start_from))


def derive_rerun(spec: RunSpec, changes: Mapping[str, Any], *, args: Sequence[str] | None = None) -> RunSpec:
    """The spec of a new run that starts afresh, with the code of the old one.

    Where the checkpoint path is shared with the old run, its checkpoints are left alone: `resume: never`, unless the
    changes say otherwise.
    """
    fresh = replace(spec, checkpoint=replace(spec.checkpoint, start_from=None), pdb_rank=None)
    if fresh.checkpoint.path is not None:
        fresh = replace(fresh, checkpoint=replace(fresh.checkpoint, resume=ResumeMode.NEVER))
    pool = changes.get("pool", spec.pool)
    derived = _changed(_moved(fresh, str(pool)), changes)
    return derived if args is None else replace(derived, args=tuple(args))


def derive_debug(spec: RunSpec, run_id: str, world: World) -> RunSpec:
    """The spec of a run that repeats `run_id` in a smaller world, for a person to look at.

    It saves in its own folder, is never restarted and has no time limit; hangs are warned about.

    Raises:
        InvalidRequest: a debugger was asked for in what is no Python program.
    """
    if world.pdb_rank is not None and spec.entry_kind is EntryKind.COMMAND:
        raise InvalidRequest(
            f"Run `{run_id}` is a command, and --pdb needs a Python script or module",
            why=f"Its ranks run `{spec.entry}`.",
            fix="Leave out --pdb, or submit the script itself: gangline submit train.py.",
        )
    changes: dict[str, Any] = {
        "name": name_from(f"{(spec.name or 'run')[:_NAME_CHARS]}-debug"),
        "pool": LOCAL,
        "resources": {
            "nodes": world.nodes,
            "min_nodes": None,
            "procs_per_node": world.procs_per_node,
            "gpus_per_node": None,
        },
        "checkpoint": {"path": None, "start_from": world.start_from, "resume": "auto"},
        "restarts": {"max_restarts": 0, "max_infrastructure_restarts": 0, "max_preemptions": 0},
        "stop": {"time_limit_s": None},
        "labels": {DEBUG_LABEL: run_id},
        "pdb_rank": world.pdb_rank,
        "watch": {"on_hang": "warn"},
    }
    return spec_from_mapping(merge_layers(spec_to_mapping(_moved(spec, LOCAL)), changes))


def _moved(spec: RunSpec, pool: str) -> RunSpec:
    """Without what means something in its own pool alone, where it goes to another one."""
    if pool == spec.pool:
        return spec
    return replace(spec, slurm=SlurmOptions(), environment=replace(spec.environment, python=None))


def _changed(spec: RunSpec, changes: Mapping[str, Any]) -> RunSpec:
    layer = read_spec(changes, Origin("", by_hand=True))
    return spec_from_mapping(
        merge_layers(spec_to_mapping(spec), _with_pairs(spec, layer.get("resources") or {}), layer)
    )


def _with_pairs(spec: RunSpec, changed: Mapping[str, Any]) -> dict[str, Any]:
    """Where each rank had an accelerator, as many of the one follow from another number of the other."""
    old = spec.resources
    pair = ("procs_per_node", "gpus_per_node")
    given = [name for name in pair if name in changed]
    if len(given) != 1 or old.gpus_per_node != old.procs_per_node:
        return {}
    return {"resources": {name: None for name in pair if name not in given}}
