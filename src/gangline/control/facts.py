"""What the decision about one run rests on, and the steps that it may lead to. Pure.

Imports `gangline.domain` and the store's rows alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from gangline.domain.gang import Liveness, Observation
from gangline.domain.phase import Budget, Reason
from gangline.domain.spec import RestartPolicy, StopPolicy
from gangline.store.rows import AttemptRow, Move, RunRow

__all__ = [
    "ALONE_PATIENCE_S",
    "END_PATIENCE_S",
    "EXIT_CODES",
    "LEADER_PATIENCE_S",
    "LOST_PATIENCE_S",
    "NO_PLACE",
    "STOPPED_EXIT_CODE",
    "STOP_MARGIN_S",
    "UNKNOWN_PATIENCE_S",
    "Cancel",
    "Change",
    "Explain",
    "Facts",
    "Step",
    "Submit",
    "exit_code_for",
    "find_cut_off",
]

STOP_MARGIN_S = 10.0
"""How much longer than its grace a stop may take before the launch is ended by force."""
END_PATIENCE_S = 15.0
"""How long agents may linger after their result before they are ended by force."""
LOST_PATIENCE_S = 3.0
"""The same of the agents of a gang that has lost one: that one cannot hear that it is over, and the others can."""
UNKNOWN_PATIENCE_S = 30.0
"""How long a backend may be silent about a launch before the run says so."""
LEADER_PATIENCE_S = 30.0
"""How long a leader that has shown that it lives may then show nothing, before its launch is ended by force."""
ALONE_PATIENCE_S = 10.0
"""The same where all other agents of its launch are gone: they hear a leader by another way, and had missed it, too."""
STOPPED_EXIT_CODE = 130
EXIT_CODES: Mapping[Reason, int] = {
    Reason.BACKEND_REJECTED: 65,
    Reason.LEASE_ENDED: 129,
    Reason.NODE_LOST: 71,
    Reason.PREEMPTED: 143,
    Reason.STORAGE: 74,
    Reason.PLATFORM: 70,
    Reason.TIME_LIMIT: 124,
    Reason.OUT_OF_MEMORY: 137,
    Reason.KILLED: 137,
    Reason.USER_ERROR: 1,
}
"""What `gangline` exits with where no rank has left a code of its own; anything else is 71."""
_NO_RANK_CODE = 71


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything that the decision about one run rests on."""

    run: RunRow
    attempts: Sequence[AttemptRow] = ()
    """Those of the launch that `run.launch` names, by number."""
    observation: Observation | None = None
    """None: there is no handle to ask about."""
    confirmed_gone: bool = False
    """The launch was GONE twice in a row, and its files were read to their end after the first time."""
    cut_off: AttemptRow | None = None
    """An attempt whose launch the backend has put back into its queue, or has begun anew since; see `find_cut_off`."""
    has_queue: bool = False
    """The backend lets launches wait by itself (OWN_QUEUE)."""
    unknown_for_s: float = 0.0
    over_for_s: float = 0.0
    """Since this server first saw that the launch has come to its end, by its own clock; 0 while it has not. Agents
    tell the time by theirs."""
    leader_silent_s: float = 0.0
    """Since the last sign of life of the leader; time in which the server itself did not look is left out."""
    leader_patience_s: float = LEADER_PATIENCE_S
    was_prepared: bool = False
    """Its backend may have been asked for the launch: its agents may exist, even without a handle."""
    policy: RestartPolicy = field(default_factory=RestartPolicy)
    stop: StopPolicy = field(default_factory=StopPolicy)
    saved_step: int | None = None
    """Step of the newest checkpoint that the newest attempt has saved; looked for where its time is over."""
    used: Mapping[Budget, int] = field(default_factory=dict)
    grace_s: float = 30.0
    agent_words: str = ""
    """The end of what the agents of a lost launch have printed."""
    storage_fault: str = ""
    """What a lost launch, or its folder, says of a disk that is full; "" where neither does."""
    now: float = 0.0

    @property
    def gone(self) -> bool:
        return self.observation is not None and self.observation.liveness is Liveness.GONE

    @property
    def pending(self) -> bool:
        return self.observation is not None and self.observation.liveness is Liveness.PENDING

    @property
    def newest(self) -> AttemptRow | None:
        return self.attempts[-1] if self.attempts else None

    @property
    def begun(self) -> AttemptRow | None:
        """The newest attempt, unless the server has closed it: its agents are gone, others have begun nothing yet."""
        return None if self.newest is None or _is_closed(self.newest) else self.newest


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Change columns of the run, not its phase."""

    changes: Mapping[str, Any]
    attempts: Sequence[AttemptRow] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Explain:
    """Say why the run waits: no event, and nothing that has to be on the disk at once."""

    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """End the launch by force."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Submit:
    """Hand the launch to the backend, again if its handle is not known: the key makes that harmless."""


Step = Move | Change | Explain | Cancel | Submit
NO_PLACE: Mapping[str, Any] = {"handle": None, "placement": None}


def exit_code_for(reason: Reason) -> int:
    """What `gangline` exits with where no rank has left a code of its own."""
    return EXIT_CODES.get(reason, _NO_RANK_CODE)


def find_cut_off(
    attempts: Sequence[AttemptRow], observation: Observation | None, *, was_alive: bool
) -> AttemptRow | None:
    """The attempt that was cut off because the backend began its launch anew, or is about to.

    Args:
        attempts: of one launch, by number.
        was_alive: the launch is known to have had its machines before; a backend may be slow to say so.
    """
    for cut, following in pairwise(attempts):
        if cut.outcome is None and _has_new_agents(following):
            return cut
    waits_again = was_alive and observation is not None and observation.liveness is Liveness.PENDING
    return attempts[-1] if waits_again and attempts and attempts[-1].outcome is None else None


def _has_new_agents(attempt: AttemptRow) -> bool:
    return any(node.get("node") == 0 and node.get("since") == attempt.number for node in attempt.nodes)


def _is_closed(attempt: AttemptRow) -> bool:
    """Whether the server knows the end, because no leader was left to say it."""
    return attempt.outcome is not None and attempt.next is None
