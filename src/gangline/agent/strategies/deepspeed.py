"""DeepSpeed: what its own launcher would tell a process, and a hostfile. Pure; standard library only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.agent.launchspec import LaunchSpec
from gangline.agent.strategies.rules import Rules

if TYPE_CHECKING:
    from gangline.agent.environ import AttemptTerms

__all__ = ["RULES", "render_hostfile"]

HOSTFILE = "hostfile"


class DeepspeedRules(Rules):
    """`deepspeed.init_distributed()` reads the common contract; some tools around it want these."""

    def environment(self, launch: LaunchSpec, terms: AttemptTerms, rank: int) -> dict[str, str]:
        place, _ = divmod(rank, launch.procs_per_node)
        numbers = {
            "CROSS_RANK": place,
            "CROSS_SIZE": len(terms.shape.nodes),
            "LOCAL_SIZE": launch.procs_per_node,
        }
        return {name: str(number) for name, number in numbers.items()}

    def files(self, launch: LaunchSpec, terms: AttemptTerms) -> dict[str, str]:
        return {HOSTFILE: render_hostfile(terms, launch.procs_per_node)}


def render_hostfile(terms: AttemptTerms, slots: int) -> str:
    """A line for each node, in order: its address and how many ranks it holds."""
    return "".join(f"{address} slots={slots}\n" for address in terms.addresses)


RULES = DeepspeedRules()
