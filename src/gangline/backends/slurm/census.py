"""What a cluster has, by `sinfo`."""

from __future__ import annotations

import logging

from gangline.backends.asking import Asked
from gangline.backends.slurm.capacity import NodeKind, parse_sinfo, render_sinfo
from gangline.backends.slurm.link import Link
from gangline.domain.errors import BackendError
from gangline.domain.pool import SlurmPool

__all__ = ["take_census"]

_log = logging.getLogger(__name__)

_SINFO_S = 20.0


def take_census(pool: SlurmPool, link: Link) -> Asked[tuple[NodeKind, ...]]:
    """The kinds of nodes of a cluster, as it says from time to time."""

    def ask() -> tuple[NodeKind, ...] | None:
        try:
            ran = link.run(render_sinfo(), timeout_s=_SINFO_S)
        except BackendError as error:
            _log.info("pool %s did not say what it has: %s", pool.name, error)
            return None
        return tuple(parse_sinfo(ran.out)) or None if ran.rc == 0 else None

    return Asked(ask, name="gangline-sinfo")
