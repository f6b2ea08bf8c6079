"""The files of a Ray pool: the server sees them as the cluster's nodes do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gangline.backends.local.site import LocalSite
from gangline.domain.errors import SpecInvalid
from gangline.domain.pool import RayPool
from gangline.domain.spec import RunSpec, SlurmOptions

__all__ = ["RaySite"]


class RaySite(LocalSite):
    """Implements `gangline.ports.Site`."""

    def __init__(self, pool: RayPool) -> None:
        self._pool = pool

    def check(self, spec: RunSpec) -> None:
        if spec.slurm != SlurmOptions():
            raise SpecInvalid(
                f"Options of Slurm mean nothing in pool `{spec.pool}`",
                why="It is a Ray cluster",
                fix="Choose a Slurm cluster with --pool (`gangline pools` lists them), or leave them out.",
            )

    def python(self, asked: str | None, client: Mapping[str, Any]) -> str:
        """The interpreter asked for, else the pool's, else the one that submits: of a folder that all nodes see."""
        return super().python(asked or self._pool.ranks_python, client)

    def unseen_python(self, asked: str | None) -> str:
        return super().unseen_python(asked or self._pool.ranks_python)
