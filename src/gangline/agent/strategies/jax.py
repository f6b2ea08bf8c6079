"""JAX: where the processes find their coordinator, and which devices each takes. Pure; standard library only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.agent.launchspec import LaunchSpec
from gangline.agent.strategies.rules import Rules

if TYPE_CHECKING:
    from gangline.agent.environ import AttemptTerms

__all__ = ["RULES"]


class JaxRules(Rules):
    """What `jax.distributed.initialize` takes: it reads address and devices by itself, the two numbers are passed."""

    def environment(self, launch: LaunchSpec, terms: AttemptTerms, rank: int) -> dict[str, str]:
        return {
            **_devices(launch, terms, rank),
            "JAX_COORDINATOR_ADDRESS": f"{terms.master_addr}:{terms.master_port}",
            "JAX_NUM_PROCESSES": str(terms.shape.world_size),
            "JAX_PROCESS_ID": str(rank),
        }


def _devices(launch: LaunchSpec, terms: AttemptTerms, rank: int) -> dict[str, str]:
    """Each rank's share of its node's devices: a JAX process takes every device that it is not told to leave."""
    node = terms.shape.node_of(rank)
    devices, ranks = len(launch.devices_of(node)), terms.shape.ranks_of(node)
    if not devices:
        return {}
    place, share = rank - ranks[0], max(1, devices // len(ranks))
    return {"JAX_LOCAL_DEVICE_IDS": ",".join(str((place * share + at) % devices) for at in range(share))}


RULES = JaxRules()
