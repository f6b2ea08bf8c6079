"""The specs of runs as objects, and what follows from them alone."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from threading import Lock

from gangline.domain.gang import GangSpec, NodePlacement
from gangline.domain.spec import RunSpec
from gangline.queue.fit import Demand
from gangline.store.rows import RunRow
from gangline.store.store import Store
from gangline.wire.spec import spec_from_mapping

__all__ = ["Specs", "demand_of", "gang_of"]

_MOST_KEPT = 4096
_NOTICE_S = 60.0
"""Where a run has no time limit of its own, but its machines are given for a while."""


class Specs:
    """Specs of runs; each revision of one is read once. Safe for threads."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._kept: OrderedDict[tuple[str, int], RunSpec] = OrderedDict()
        self._lock = Lock()

    def get(self, run: RunRow) -> RunSpec:
        """The spec of a run.

        Raises:
            NotFound: there is no such run.
        """
        key = (run.id, run.revision)
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        spec = spec_from_mapping(self._store.spec_and_client(run.id)[0])
        with self._lock:
            self._kept[key] = spec
            if len(self._kept) > _MOST_KEPT:
                self._kept.popitem(last=False)
        return spec


def demand_of(spec: RunSpec) -> Demand:
    """What a gang of this spec holds; the spec is complete."""
    resources = spec.resources
    return Demand(
        nodes=resources.nodes,
        min_nodes=resources.min_nodes,
        procs_per_node=resources.procs_per_node or 1,
        gpus_per_node=resources.gpus_per_node or 0,
        cpus_per_rank=resources.cpus_per_rank,
        memory_bytes=resources.memory_bytes,
    )


def gang_of(spec: RunSpec, run: RunRow, *, run_dir: Path, first_attempt: int) -> GangSpec:
    """What a backend is asked to start for the launch that `run` names."""
    resources = spec.resources
    procs = resources.procs_per_node or 1
    devices = run.placement or [[] for _ in range(resources.nodes)]
    return GangSpec(
        run_id=run.id,
        name=run.name,
        launch=run.launch,
        first_attempt=first_attempt,
        run_dir=str(run_dir),
        nodes=len(devices),
        min_nodes=resources.min_nodes,
        procs_per_node=procs,
        placements=tuple(NodePlacement(node=node, devices=tuple(ids)) for node, ids in enumerate(devices)),
        gpus_per_node=resources.gpus_per_node or 0,
        cpus_per_node=(resources.cpus_per_rank or 0) * procs,
        memory_bytes=resources.memory_bytes,
        time_limit_s=spec.stop.time_limit_s,
        notice_s=spec.stop.notice_s() or _NOTICE_S,
        grace_s=spec.stop.grace_s,
        slurm=spec.slurm,
    )
