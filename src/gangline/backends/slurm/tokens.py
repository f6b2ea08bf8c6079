"""What makes a Slurm job recognisable as one launch of a run: its comment, and its name where sites rewrite comments.

Pure but for `home_identity`; imports the standard library and `rundir` alone.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from pathlib import Path

from gangline.rundir.files import write_text
from gangline.rundir.home import Home

__all__ = ["Token", "home_identity", "job_name", "parse_token"]

_PREFIX = "gangline"
_TOKEN = re.compile(rf"{_PREFIX}:([0-9a-f]{{12}}):([a-z0-9-]+)/(\d+)")
_IDENTITY = re.compile(r"[0-9a-f]{12}")
_IDENTITY_BYTES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """One launch, told apart from those of every other server that uses the same cluster."""

    home: str
    """Identity of the state folder; see `home_identity`."""
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


def home_identity(home: Home) -> str:
    """A few random digits that a state folder keeps for ever; made when they are first asked for."""
    path = Path(home.path, "identity")
    try:
        found = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        found = ""
    if not _IDENTITY.fullmatch(found):
        found = secrets.token_hex(_IDENTITY_BYTES)
        write_text(path, f"{found}\n", durable=True)
    return found
