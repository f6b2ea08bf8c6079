"""What may speak of a launch: our own claim, what Slurm has answered, what agents have left, what was seen before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from gangline.backends.slurm.endings import ExitMark
from gangline.backends.slurm.jobwords import JobWords
from gangline.backends.slurm.records import JobRecord
from gangline.backends.slurm.tokens import Token, job_name, parse_token

__all__ = ["Answers", "Ask", "Claim", "Footprint", "Memory", "is_of"]

RECYCLED_S = 600.0
"""A job that was submitted so long before or after ours is another one with its number, where nothing else tells."""


class Ask(Enum):
    """Whom to ask besides the queue."""

    ACCOUNTS = "accounts"
    CONTROLLER = "controller"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What our handle says of the job."""

    job: str
    token: Token | None
    submitted: float
    """By our clock."""
    log: str = ""
    """Far path of the job's output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """What the launch has left in its files, as far as they are here."""

    mark: ExitMark | None = None
    last_word: str = ""
    """What the leader's newest result of this launch says comes next: `end`, `relaunch`, `restart`; "" without one."""
    alive_sign: int | None = None
    """When the leader touched its sign of life last, by whatever clock; only its change counts."""
    words: JobWords = field(default_factory=JobWords)
    """What Slurm's own programs have left in the job's log."""
    has_log: bool = False
    """The job's log says something."""
    is_cancelled: bool = False
    """Gangline itself has asked Slurm to end the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What was said of one job in one poll."""

    is_fresh: bool = True
    """The queue has answered."""
    trouble: str = ""
    """Why it has not."""
    wall: float = 0.0
    """Seconds since the epoch, now."""
    clock_offset_s: float = 0.0
    """How far the cluster's clock is ahead of ours."""
    queue: JobRecord | None = None
    lives: Sequence[JobRecord] | None = None
    """All that accounting has of its number; None: not asked, or no answer."""
    has_accounts: bool = True
    """False: this cluster keeps none."""
    controller: JobRecord | None = None
    is_invalid: bool = False
    """The controller knows no such job."""
    asked: Ask | None = None
    """Whom else was asked about this job, maybe in vain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What earlier polls have seen of one job."""

    absent_since: float | None = None
    absent_times: int = 0
    invalid_times: int = 0
    ended_since: float | None = None
    asked_accounts: int = 0
    last_asked: Ask | None = None
    restarts: int = 0
    requeues: bool = False
    """Slurm may put it back into its queue by itself, even after its script has ended."""
    lives: Sequence[JobRecord] = ()
    alive_sign: int | None = None
    alive_at: float | None = None
    """When that sign was last seen to change."""


def is_of(record: JobRecord, claim: Claim) -> bool:
    """Whether a record is of our job, and not of another one that bears its number by now.

    By its comment; by its name, where a site rewrites comments; by its time, where it has neither.
    """
    said = parse_token(record.comment or "")
    if said is not None and claim.token is not None:
        return said == claim.token
    if claim.token is not None and record.name == job_name(claim.token.run_id, claim.token.launch):
        return True
    return record.submitted is None or abs(record.submitted - claim.submitted) <= RECYCLED_S
