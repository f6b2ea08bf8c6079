"""What Slurm's own programs write into the log of a job: why it was ended, who of its machines failed. Pure.

`slurmstepd` and `srun` say there what the controller may never tell, above all where no accounts are kept.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["NODE_FAILED", "PREEMPTED", "REQUEUED", "JobWords", "MemoryKill", "parse_words"]

_BLAME = re.compile(
    r"^srun: error: (?:Node failure on ([\w.-]+)|Task launch for \S+ failed on node ([\w.-]+): .*)$", re.MULTILINE
)
"""Lists such as `node[02-03]` are left alone: then nobody is named."""
REQUEUED, PREEMPTED, NODE_FAILED = "JOB REQUEUE", "PREEMPTION", "NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS"
_RETURNS = frozenset({REQUEUED, PREEMPTED, NODE_FAILED})
"""After these, Slurm may have begun the job again."""
_ENDED = re.compile(
    r"^slurmstepd\S*: error: \*\*\* JOB \d+ ON \S+ CANCELLED AT \S+(?: DUE TO (.+?))? \*\*\*$", re.MULTILINE
)
_MEMORY = re.compile(
    r"^slurmstepd(?:-(\S+))?: error: (?:StepId=\S+ exceeded memory limit \((\d+) > (\d+)\), being killed|"
    r"Exceeded (?:job|step) memory limit|Detected \d+ oom[_-]kill event)",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryKill:
    """Slurm, or the kernel for it, has killed processes of the job for their memory."""

    host: str = ""
    used_bytes: int | None = None
    limit_bytes: int | None = None

    def describe(self) -> str:
        """In a phrase."""
        where = f" on {self.host}" if self.host else ""
        if self.used_bytes is None or self.limit_bytes is None:
            return f"it used more memory than it had asked for{where}"
        return f"it used {self.used_bytes >> 20} MiB of memory{where}, and had asked for {self.limit_bytes >> 20} MiB"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobWords:
    """What the end of a job's log says."""

    ends: tuple[str, ...] = ()
    """Why Slurm has ended it, in its words, once for each of its lives that it has ended; "" where it gives none."""
    blamed: tuple[str, ...] = ()
    """Machines that `srun` names as failed."""
    memory: MemoryKill | None = None
    """In its newest life."""


def parse_words(text: str) -> JobWords:
    """Read the end of a job's log, to which each life of the job has added."""
    ended = list(_ENDED.finditer(text))
    returned = [one.end() for one in ended if one[1] in _RETURNS]
    return JobWords(
        ends=tuple(one[1] or "" for one in ended),
        blamed=tuple(sorted({found[1] or found[2] for found in _BLAME.finditer(text)})),
        memory=_parse_memory(text[returned[-1] :] if returned else text),
    )


def _parse_memory(text: str) -> MemoryKill | None:
    """The one with figures, if there is one."""
    found = sorted(_MEMORY.finditer(text), key=lambda one: one[2] is None)
    if not found:
        return None
    used, limit = found[0][2], found[0][3]
    return MemoryKill(
        host=found[0][1] or "",
        used_bytes=None if used is None else int(used),
        limit_bytes=None if limit is None else int(limit),
    )
