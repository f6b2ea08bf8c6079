"""What makes a Slurm job recognisable as one launch of a run: its comment, and its name where sites rewrite comments.

Pure; imports the standard library alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Token", "job_name", "parse_token"]

_PREFIX = "gangline"
_TOKEN = re.compile(rf"{_PREFIX}:([0-9a-f]{{12}}):([a-z0-9-]+)/(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """One launch, told apart from those of every other server that uses the same cluster."""

    home: str
    """Identity of the state folder; see `rundir.identity`."""
    run_id: str
    launch: int

    def __str__(self) -> str:
        return f"{_PREFIX}:{self.home}:{self.run_id}/{self.launch}"


def parse_token(comment: str) -> Token | None:
    """The token in a job's comment; None: it is none of Gangline's."""
    found = _TOKEN.fullmatch(comment.strip())
    return None if found is None else Token(home=found[1], run_id=found[2], launch=int(found[3]))


def job_name(run_id: str, launch: int) -> str:
    """What `squeue` shows: the run's id, which begins with what people called it, and the number of the launch."""
    return f"{run_id}.{launch}"
