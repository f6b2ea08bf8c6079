"""What to do about an end for which no rank is to blame, by its reason. Pure data; standard library only."""

from __future__ import annotations

from collections.abc import Mapping

from gangline.domain.phase import Reason

__all__ = ["HINTS", "hint_for"]

HINTS: Mapping[Reason, str] = {
    Reason.NODE_LOST: "Look at the machine: it may have lost its power, its network or its memory. The agents' own logs are in "
    "`launches/` of the run's folder, which `gangline show {run} --full` names.",
    Reason.START_TIMEOUT: "See in `launches/` of the run's folder (`gangline show {run} --full` names it) what the agents of the missing "
    "nodes say; raise `--start-timeout` where their machines are only slow.",
    Reason.RENDEZVOUS_FAILED: "See that all nodes reach each other, on all ports, by the address that the leader advertises (GANGLINE_ADDRESS).",
    Reason.STORAGE: "Make room or mend the path that is named, then `gangline resume {run}`.",
    Reason.ENVIRONMENT_MISMATCH: "Install the same on all nodes, take the odd one out of the pool, or start all the same with `--on-mismatch warn`.",
    Reason.UNHEALTHY_NODE: "Take the node out of the pool until somebody has looked at it.",
    Reason.HANG: "Look for the rank that did not come: `gangline logs {run} --all-ranks --tail 20` shows where each one was.",
    Reason.BACKEND_REJECTED: "Change what is asked for: the backend says above what it does not take; `gangline pools` lists what there is.",
    Reason.PLATFORM: "Look at `gangline server logs` and at `launches/` of the run's folder (`gangline show {run} --full`), and report it: this is a fault of Gangline.",
}
"""Where a rank is to blame, the hint comes from the table of signatures; other ends explain themselves."""


def hint_for(reason: Reason, *, run: str = "RUN") -> str:
    """What to do about it; "" where there is nothing to say."""
    return HINTS.get(reason, "").replace("{run}", run)
