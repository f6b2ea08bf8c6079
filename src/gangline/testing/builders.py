"""Valid objects of the domain in one call; a test names only what it is about."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from gangline.domain.gang import GangSpec, NodePlacement, PoolCapacity
from gangline.domain.spec import RunSpec

__all__ = ["make_capacity", "make_gang", "make_spec"]

_GROUPS = ("resources", "environment", "checkpoint", "restarts", "stop")


def make_spec(**overrides: Any) -> RunSpec:  # noqa: ANN401 - as many types as fields
    """A valid `RunSpec` for `train.py`.

    Args:
        overrides: fields of `RunSpec`, or of the objects inside it by their bare names, such as
            `make_spec(nodes=2, max_restarts=1)`.
    Raises:
        SpecInvalid: there is no such field.
    """
    spec = RunSpec(entry="train.py")
    for group in _GROUPS:
        part = getattr(spec, group)
        inner = {item.name: overrides.pop(item.name) for item in fields(part) if item.name in overrides}
        spec = replace(spec, **{group: replace(part, **inner)})
    return replace(spec, **overrides)


def make_gang(**overrides: Any) -> GangSpec:  # noqa: ANN401 - as many types as fields
    """A `GangSpec` of one node and one rank; `placements` follow from `nodes` unless they are given."""
    values: dict[str, Any] = {
        "run_id": "train-2abc",
        "name": "train",
        "launch": 0,
        "first_attempt": 0,
        "run_dir": "/nowhere/train-2abc",
        "nodes": 1,
        "procs_per_node": 1,
        **overrides,
    }
    values.setdefault("placements", tuple(NodePlacement(node=node) for node in range(values["nodes"])))
    return GangSpec(**values)


def make_capacity(**overrides: Any) -> PoolCapacity:  # noqa: ANN401 - as many types as fields
    """A pool of 8 cores, 32 GB, 64 ranks and no devices."""
    values = {"nodes": 64, "ranks": 64, "cpus": 8, "memory_bytes": 32 * 10**9, **overrides}
    return PoolCapacity(**values)
