"""TensorFlow: every rank is a worker of the cluster that `TF_CONFIG` lists. Pure; standard library only."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from gangline.agent.launchspec import LaunchSpec
from gangline.agent.strategies.rules import Rules

if TYPE_CHECKING:
    from gangline.agent.environ import AttemptTerms

__all__ = ["RULES"]


class TensorflowRules(Rules):
    """One port for each rank."""

    def num_ports(self, launch: LaunchSpec) -> int:
        return launch.procs_per_node

    def environment(self, launch: LaunchSpec, terms: AttemptTerms, rank: int) -> dict[str, str]:  # noqa: ARG002
        task = {"type": "worker", "index": rank}
        return {"TF_CONFIG": json.dumps({"cluster": {"worker": list(terms.cluster)}, "task": task})}


RULES = TensorflowRules()
