"""Horovod, over MPI: who and where a process is, under the names that Horovod's own launcher gives. Pure.

Standard library only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.agent.launchspec import LaunchSpec
from gangline.agent.strategies.mpi import MpiRules

if TYPE_CHECKING:
    from gangline.agent.environ import AttemptTerms

__all__ = ["RULES"]


class HorovodRules(MpiRules):
    """What `horovodrun --mpi` gives, and the variables that scripts read."""

    def environment(self, launch: LaunchSpec, terms: AttemptTerms, rank: int) -> dict[str, str]:
        place, local_rank = divmod(rank, launch.procs_per_node)
        numbers = {
            "RANK": rank,
            "SIZE": terms.shape.world_size,
            "LOCAL_RANK": local_rank,
            "LOCAL_SIZE": launch.procs_per_node,
            "CROSS_RANK": place,
            "CROSS_SIZE": len(terms.shape.nodes),
        }
        told = {f"HOROVOD_{name}": str(number) for name, number in numbers.items()}
        return {**told, "HOROVOD_CONTROLLER": "mpi", "HOROVOD_CPU_OPERATIONS": "mpi"}


RULES = HorovodRules()
