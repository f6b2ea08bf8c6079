"""One job as one of Slurm's commands tells it, and the words and numbers that it is told in. Pure.

Imports `gangline.domain` and the table of states alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gangline.backends.slurm.states import JobState

__all__ = ["OOM_SIGNAL", "JobRecord", "flag_in", "number_in", "pair_in", "parse_status", "said", "time_in"]

OOM_SIGNAL = 125
"""How Slurm marks a step that ran out of memory (`0:125`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """What one command says of one job. None: it does not say."""

    job: str
    state: JobState
    reason: str = ""
    name: str | None = None
    comment: str | None = None
    restarts: int | None = None
    requeues: bool | None = None
    """Whether Slurm may put it back into its queue by itself."""
    exit_code: int | None = None
    signal: int | None = None
    out_of_memory: bool = False
    """A step of it ran out of memory, whatever the job's own state is."""
    submitted: float | None = None
    """Times are those of the cluster's clock."""
    start: float | None = None
    """When it started; of a pending job, when Slurm expects it to."""
    end: float | None = None
    """Of a running job, when its time is over; inf: it has no limit."""
    num_nodes: int | None = None
    nodes: str = ""
    by: str = ""
    """Who cancelled it."""


def parse_status(status: int | None) -> tuple[int | None, int | None]:
    """Exit code and signal of a wait status; each None where the status is."""
    if status is None:
        return None, None
    signal = status & 0x7F
    return (0, signal) if signal else (status >> 8 & 0xFF, 0)


def said(text: str) -> str:
    """Without Slurm's many words for nothing."""
    return "" if text.strip() in {"(null)", "N/A", "Unknown", "None assigned", "None"} else text.strip()


def number_in(text: str) -> int | None:
    """A whole number, if that is what it is."""
    return int(text) if re.fullmatch(r"-?\d+", text.strip()) else None


def flag_in(text: str) -> bool | None:
    """0 or 1."""
    return {"0": False, "1": True, "no": False, "yes": True}.get(text.strip().lower())


def time_in(text: str) -> float | None:
    """Seconds since the epoch; what is no time, or none yet, is None."""
    number = number_in(text)
    return None if number is None or number <= 0 else float(number)


def pair_in(text: str) -> tuple[int | None, int | None]:
    """`code:signal`."""
    found = re.fullmatch(r"(\d+):(\d+)", text.strip())
    return (int(found[1]), int(found[2])) if found else (None, None)
