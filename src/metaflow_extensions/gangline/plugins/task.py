"""Which task a gang runs, told by the trampoline to the ranks in one variable; and how it is told to end.

Standard library only.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
from collections.abc import Mapping
from dataclasses import asdict, dataclass

__all__ = ["BEGAN", "CARD", "LOCAL", "OWN", "TOLD", "VARIABLE", "GangTask", "ToldToEndError", "task_of_rank"]

VARIABLE = "METAFLOW_GANGLINE_TASK"
BEGAN = "METAFLOW_GANGLINE_BEGAN"
"""When the flow's runtime began to run it, in seconds since 1970."""
LOCAL = "local"
"""The pool where @gang names none: this machine, or the container."""
CARD = "gangline.run"
"""Type of the card of a gang."""
OWN = frozenset({"card", "lease_s", "volume"})
"""Options of @gang that are no keys of a spec."""
TOLD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals by which a process is told to end."""
_KEY_CHARS = 150


class ToldToEndError(BaseException):
    """A signal, or the end of the runtime."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GangTask:
    """One attempt of one task."""

    flow: str
    run: str
    step: str
    task: str
    retry: int
    """Metaflow's number of this attempt."""
    pool: str = "local"
    split: int | None = None
    """Which one of a foreach it is, where that begins with its step."""
    root: str = ""
    """The run of the flow that all resumes go back to: its own where it resumes none."""
    part: str = ""
    """Which task of its step it is, by the items of all foreaches around it (`parts.py`)."""
    tags: tuple[str, ...] = ()
    begun: int = 0
    """How often earlier attempts of the task have started a gang."""

    @property
    def pathspec(self) -> str:
        return f"{self.flow}/{self.run}/{self.step}/{self.task}"

    def key(self, store: str) -> str:
        """What makes a trampoline that comes back find its run again.

        Args:
            store: where the flow's results lie: two services may count their runs alike.
        """
        whole = f"{store} {self.pathspec}/{self.retry}"
        return f"metaflow/{hashlib.sha256(whole.encode()).hexdigest()[:32]}/{self.pathspec}/{self.retry}"[:_KEY_CHARS]

    def to_text(self) -> str:
        return json.dumps(asdict(self))


def task_of_rank(environ: Mapping[str, str] = os.environ) -> GangTask | None:
    """The task whose gang this process is a rank of; None: it is none."""
    text = environ.get(VARIABLE)
    if not text or not environ.get("GANGLINE_RUN_ID"):
        return None
    told = json.loads(text)
    return GangTask(**{**told, "tags": tuple(told["tags"])})
