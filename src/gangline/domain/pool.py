"""A pool: one configured backend, as the platform team describes it. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from gangline.domain.spec import SlurmOptions

__all__ = ["SlurmPool", "WaitIn"]


class WaitIn(str, Enum):
    """Where runs wait that a Slurm cluster has no room for."""

    SLURM = "slurm"
    GANGLINE = "gangline"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmPool:
    """A Slurm cluster, reached by its own commands or over SSH."""

    name: str
    work: str
    """Absolute path of a folder that login and compute nodes share; runs, code and agents live below it."""
    ssh: str | None = None
    """Host as `ssh` knows it (an alias of the user's own configuration); None: the commands are on this machine."""
    ssh_options: tuple[str, ...] = ()
    """Arguments for `ssh` ahead of the host, e.g. `-F`, `/path/config`."""
    python: str | None = None
    """Interpreter >= 3.10 of the agents, there; None: the newest that is found on the login node."""
    ranks_python: str | None = None
    """Interpreter of the ranks where a run names none; None: `python3` as it is found after `setup`."""
    defaults: SlurmOptions = field(default_factory=SlurmOptions)
    """What holds for every run that does not say otherwise."""
    gpus_per_node: int = 0
    cpus_per_node: int = 0
    """Of the largest node; 0: Slurm is asked."""
    wait_in: WaitIn = WaitIn.SLURM
    max_jobs: int | None = None
    """Most jobs of Gangline's in Slurm at once; further runs wait in Gangline."""
    poll_s: float = 5.0
    """How often `squeue` is asked, for all runs together; at least 0.2."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables for every rank of the pool, e.g. `NCCL_SOCKET_IFNAME`."""
