"""What the store takes and gives back: rows as frozen objects, and the batch that one reading of a run directory makes.

Must not import SQLAlchemy: control's pure parts use these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gangline.domain.phase import Phase, Reason, RunState

__all__ = [
    "AttemptRow",
    "CheckpointRow",
    "EventRow",
    "IngestBatch",
    "Move",
    "NewEvent",
    "NewRun",
    "NodeMark",
    "Points",
    "RunRow",
    "clean_text",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRun:
    """A run as it is submitted."""

    id: str
    key: str
    name: str
    project: str
    user: str
    pool: str
    priority: int
    nodes: int
    procs_per_node: int
    gpus_per_node: int
    labels: Mapping[str, str]
    spec: Mapping[str, Any]
    client: Mapping[str, Any]
    snapshot: str | None
    created: float
    message: str = ""
    rerun_of: str | None = None
    debug_of: str | None = None
    lease_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """Everything of a run but its spec and its client, which are large."""

    id: str
    key: str
    name: str
    project: str
    user: str
    pool: str
    priority: int
    nodes: int
    procs_per_node: int
    gpus_per_node: int
    labels: Mapping[str, str]
    snapshot: str | None
    phase: Phase
    reason: Reason | None
    message: str
    version: int
    created: float
    started: float | None
    ended: float | None
    exit_code: int | None
    launch: int
    """Number of the launch that lives; without a handle, of the one that comes next."""
    handle: Mapping[str, Any] | None
    """None: no machines are held, or the server was killed before it could note what it holds."""
    placement: Sequence[Sequence[str]] | None
    """Devices of each node of the launch; None: the run holds no place."""
    launch_restarts: Mapping[str, int]
    """Restarts that the server decided because no leader was left to decide them, by budget."""
    budget_from: int
    """Attempts before this number (before `gangline resume`) do not count against the budgets."""
    attempt: int | None
    attempt_nodes: int | None
    """Nodes of that attempt; fewer than `nodes` where an elastic gang runs with what there is."""
    told_attempt: int | None
    """Newest attempt that `phase` speaks of."""
    step: int | None
    total_steps: int | None
    not_before: float | None
    stop_asked: float | None
    stop_grace_s: float | None
    stop_by: str | None
    """Who asked for the stop; None: nobody did, as of a lease that ended."""
    stop_cause: str | None = None
    """Why it is to stop, as `control.jsonl` has it: `stop`, `lease`; None: it is not to."""
    lease_s: float | None = None
    """How long the run goes on when nobody renews; None: it needs nobody."""
    unread: bool = False
    """The run was adopted from its folder, and what that holds was not read to its end yet."""
    rerun_of: str | None = None
    """Run whose spec and code this one has taken over."""
    debug_of: str | None = None
    """Run that this one repeats in a smaller world, for a person to look at."""
    branch_attempt: int = 0
    """First attempt that began at the checkpoint that the spec names (`start_from`)."""
    revision: int = 0
    """How often `gangline resume` has changed the spec."""

    @property
    def state(self) -> RunState:
        """What `domain.phase.advance` moves."""
        return RunState(phase=self.phase, reason=self.reason, message=self.message, version=self.version)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewEvent:
    """An entry for a run's history; the store numbers it."""

    time: float
    kind: str
    message: str
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRow:
    """An entry in a run's history; `seq` counts from 0 without gaps."""

    seq: int
    time: float
    kind: str
    message: str
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRow:
    """What is known of one attempt; `ranks` and `nodes` have the shapes of `wire.views.RankView` and `NodeView`."""

    number: int
    launch: int
    outcome: str | None = None
    """`succeeded`, `failed`, `stopped`, `preempted`; None while no end is known."""
    reason: str | None = None
    message: str = ""
    exit_code: int | None = None
    started: float | None = None
    running: float | None = None
    ended: float | None = None
    resume: str | None = None
    resume_step: int | None = None
    start_mode: str | None = None
    next: str | None = None
    """What the leader said follows: `end`, `restart`, `relaunch`; None if no leader has said anything."""
    next_delay_s: float = 0.0
    budget: str | None = None
    """The budget that paid for the restart that follows."""
    restart_message: str = ""
    signature: str | None = None
    """Row of the table of signatures that explains the first failure."""
    hint: str = ""
    """What a person can do about it."""
    first_failure: Mapping[str, Any] | None = None
    ranks: Sequence[Mapping[str, Any]] = ()
    nodes: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A run to another phase, with what changes in the same transaction."""

    phase: Phase
    reason: Reason | None = None
    message: str = ""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Further columns of the run."""
    attempts: Sequence[AttemptRow] = ()
    events: Sequence[NewEvent] = ()
    marks: Sequence[NodeMark] = ()
    reopen: bool = False
    """A person asked to resume a run that has ended; see `domain.phase.advance`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRow:
    """One committed checkpoint."""

    path: str
    step: int
    attempt: int
    size_bytes: int
    num_files: int
    time: float
    duration_s: float | None
    kept: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeMark:
    """One attempt that ended, with evidence against a machine."""

    pool: str
    host: str
    run_id: str
    attempt: int
    kind: str
    """See `queue.health`."""
    time: float
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """New values of one metric of one rank in one attempt, as they were logged; a batch has one of these for each."""

    rank: int
    name: str
    attempt: int
    steps: list[int | None]
    """None: the step after the one before."""
    times: list[float]
    values: list[float]
    """May hold NaN and infinities."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestBatch:
    """What one reading of a run directory found; stored whole or not at all."""

    cursors: Mapping[str, tuple[int, int]]
    """Per file: the offset that was read from, and the one to go on from."""
    events: Sequence[NewEvent] = ()
    attempts: Sequence[AttemptRow] = ()
    checkpoints: Sequence[CheckpointRow] = ()
    removed_checkpoints: Sequence[str] = ()
    points: Sequence[Points] = ()
    marks: Sequence[NodeMark] = ()
    attempt: int | None = None
    """Newest attempt that has begun."""
    attempt_nodes: int | None = None
    step: int | None = None
    total_steps: int | None = None
    started: float | None = None
    """When the first attempt ran; kept if the run has one already."""


def clean_text(text: str) -> str:
    """Text that every database takes: no NUL, no lone surrogates."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()
