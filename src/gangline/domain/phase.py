"""Where a run stands (phase), why it got there (reason), and the one function that moves it.

Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from gangline.domain.errors import Conflict

__all__ = [
    "ACTIVE",
    "BUDGET_OF",
    "TERMINAL",
    "TRANSITIONS",
    "Budget",
    "IllegalMove",
    "Phase",
    "PhaseChange",
    "Reason",
    "RunState",
    "advance",
]


class Phase(str, Enum):
    """Where a run stands."""

    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    RESTARTING = "restarting"
    STOPPING = "stopping"
    PREEMPTED = "preempted"
    UNKNOWN = "unknown"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"

    def __str__(self) -> str:
        return self.value


class Reason(str, Enum):
    """Why an attempt or a run ended as it did."""

    USER_ERROR = "user_error"
    OUT_OF_MEMORY = "out_of_memory"
    KILLED = "killed"
    HANG = "hang"
    NODE_LOST = "node_lost"
    PREEMPTED = "preempted"
    TIME_LIMIT = "time_limit"
    START_TIMEOUT = "start_timeout"
    RENDEZVOUS_FAILED = "rendezvous_failed"
    COMMUNICATION = "communication"
    ENVIRONMENT_MISMATCH = "environment_mismatch"
    UNHEALTHY_NODE = "unhealthy_node"
    STORAGE = "storage"
    STOPPED_BY_USER = "stopped_by_user"
    LEASE_ENDED = "lease_ended"
    BACKEND_REJECTED = "backend_rejected"
    PLATFORM = "platform"

    def __str__(self) -> str:
        return self.value


class Budget(str, Enum):
    """The separate retry budgets."""

    USER = "user"
    INFRASTRUCTURE = "infrastructure"
    PREEMPTION = "preemption"
    CONTINUATION = "continuation"
    """No failure: the time limit was over, and the run goes on by its own policy."""

    def __str__(self) -> str:
        return self.value


BUDGET_OF: Mapping[Reason, Budget | None] = {
    Reason.USER_ERROR: Budget.USER,
    Reason.OUT_OF_MEMORY: Budget.USER,
    Reason.HANG: Budget.USER,
    Reason.STORAGE: Budget.USER,
    Reason.KILLED: Budget.INFRASTRUCTURE,
    Reason.NODE_LOST: Budget.INFRASTRUCTURE,
    Reason.START_TIMEOUT: Budget.INFRASTRUCTURE,
    Reason.RENDEZVOUS_FAILED: Budget.INFRASTRUCTURE,
    Reason.COMMUNICATION: Budget.INFRASTRUCTURE,
    Reason.UNHEALTHY_NODE: Budget.INFRASTRUCTURE,
    Reason.PLATFORM: Budget.INFRASTRUCTURE,
    Reason.PREEMPTED: Budget.PREEMPTION,
    Reason.TIME_LIMIT: None,
    Reason.ENVIRONMENT_MISMATCH: None,
    Reason.STOPPED_BY_USER: None,
    Reason.LEASE_ENDED: None,
    Reason.BACKEND_REJECTED: None,
}
"""Which budget pays for a restart after this reason; None: such an end is never retried."""

_ENDINGS = frozenset({Phase.SUCCEEDED, Phase.FAILED, Phase.STOPPED})

TRANSITIONS: Mapping[Phase, frozenset[Phase]] = {
    Phase.QUEUED: frozenset({Phase.STARTING, Phase.STOPPING, Phase.FAILED, Phase.STOPPED}),
    Phase.STARTING: frozenset(
        {Phase.RUNNING, Phase.RESTARTING, Phase.STOPPING, Phase.PREEMPTED, Phase.UNKNOWN, Phase.QUEUED} | _ENDINGS
    ),
    Phase.RUNNING: frozenset({Phase.RESTARTING, Phase.STOPPING, Phase.PREEMPTED, Phase.UNKNOWN} | _ENDINGS),
    Phase.RESTARTING: frozenset(
        {Phase.RUNNING, Phase.STARTING, Phase.STOPPING, Phase.PREEMPTED, Phase.UNKNOWN} | _ENDINGS
    ),
    Phase.STOPPING: _ENDINGS,
    Phase.PREEMPTED: frozenset({Phase.QUEUED, Phase.FAILED, Phase.STOPPED}),
    Phase.UNKNOWN: frozenset(
        {Phase.STARTING, Phase.RUNNING, Phase.RESTARTING, Phase.STOPPING, Phase.PREEMPTED, Phase.QUEUED} | _ENDINGS
    ),
    Phase.SUCCEEDED: frozenset(),
    Phase.FAILED: frozenset(),
    Phase.STOPPED: frozenset(),
}
"""Every move that the platform makes by itself. `gangline resume` is the one move out of an ending; see `advance`."""

TERMINAL: frozenset[Phase] = frozenset(phase for phase, following in TRANSITIONS.items() if not following)
ACTIVE: frozenset[Phase] = frozenset(TRANSITIONS) - TERMINAL - {Phase.QUEUED}
"""Phases in which a backend may hold machines for the run."""


class IllegalMove(Conflict):
    """A run was to be moved along an edge that does not exist."""

    code = "illegal_move"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """The part of a run that changes: its phase and what explains it."""

    phase: Phase = Phase.QUEUED
    reason: Reason | None = None
    message: str = ""
    """One sentence for people: why it waits, or why it ended."""
    version: int = 0
    """Grows by one with every move; a write is guarded by the version that was read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseChange:
    """The event that belongs to one move; stored in the same transaction as the new state."""

    old: Phase
    new: Phase
    reason: Reason | None
    message: str
    data: Mapping[str, Any] = field(default_factory=dict)


def advance(
    state: RunState,
    phase: Phase,
    *,
    reason: Reason | None = None,
    message: str = "",
    reopen: bool = False,
) -> tuple[RunState, PhaseChange]:
    """Move a run to another phase.

    Args:
        reopen: a person asked to resume a run that has ended; the only way out of FAILED and STOPPED, to QUEUED.
    Returns:
        The new state, its version one higher, and the event to store with it.
    Raises:
        IllegalMove: the table has no such edge, or a failure has no reason.
    """
    if reopen:
        legal = state.phase in {Phase.FAILED, Phase.STOPPED} and phase is Phase.QUEUED
    else:
        legal = phase in TRANSITIONS[state.phase]
    if not legal:
        raise IllegalMove(f"A run that is {state.phase} cannot become {phase}")
    if phase in {Phase.FAILED, Phase.STOPPED} and reason is None:
        raise IllegalMove(f"A run cannot become {phase} without a reason")
    moved = replace(state, phase=phase, reason=reason, message=message, version=state.version + 1)
    return moved, PhaseChange(old=state.phase, new=phase, reason=reason, message=message)
