"""How a job ended, in a phrase for people and as a reason for control. Pure."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass

from gangline.backends.slurm.jobwords import MemoryKill
from gangline.backends.slurm.records import JobRecord
from gangline.backends.slurm.states import Standing
from gangline.domain.phase import Reason

__all__ = ["Ending", "ExitMark", "Left", "describe_ending", "reason_of"]

_LAUNCH_SIGNAL = 53
"""What Slurm says of a batch script whose output it could not open (`RaisedSignal:53`)."""
_AT_ONCE_S = 2.0
_SIGNAL_CODE = 128
_CODES: Mapping[int, tuple[Reason | None, str]] = {
    3: (Reason.RENDEZVOUS_FAILED, "an agent did not reach its gang"),
    4: (Reason.NODE_LOST, "the agents have lost the one that leads them"),
    5: (Reason.STORAGE, "the disk of the work folder is full"),
    66: (Reason.STORAGE, "a node does not see the pool's work folder"),
    67: (Reason.USER_ERROR, "a set-up line failed; the job's log has its words"),
    69: (Reason.ENVIRONMENT_MISMATCH, "the interpreter of the agents is not on a node"),
}
"""Exit codes of our own batch script: those of agents, and of what runs before them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitMark:
    """What the batch script has left when it ended (`job.exit`)."""

    exit_code: int
    restart: int
    """In which of the job's lives: 0, and one more each time Slurm put it back into its queue."""
    time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """Why a launch is gone."""

    detail: str
    reason: Reason | None = None
    cancelled: bool = False
    preempted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """What the job has left."""

    mark: ExitMark | None = None
    log: str
    """Far path of its log."""
    has_log: bool
    """The log is there and says something."""
    memory: MemoryKill | None = None
    """The log says that processes were killed for their memory."""


def describe_ending(job: str, record: JobRecord | None, left: Left, *, by: str = "") -> Ending:
    """The best that can be said of a launch whose leader has said nothing.

    Args:
        record: what Slurm says of the end; None: it knows the job no longer.
        by: who has cancelled it, if anybody has; "" where that is not known, or it was Gangline.
    """
    if record is None or record.state.standing not in {Standing.ENDED, Standing.ENDING}:
        return _without_word(job, left)
    said = f"Slurm job {job} {_how(record)}"
    if record.state.meaning.cancelled:
        return _cancelled(job, record, by)
    meaning = record.state.meaning
    if record.out_of_memory or meaning.reason is Reason.OUT_OF_MEMORY:
        return _out_of_memory(said, left.memory or MemoryKill())
    if meaning.reason is not None:
        return Ending(detail=f"{said}: {meaning.words}", reason=meaning.reason, preempted=meaning.preempted)
    if record.reason in _BY_REASON and record.signal != _LAUNCH_SIGNAL:
        reason, words = _BY_REASON[record.reason]
        return Ending(detail=f"{said}: {words}", reason=reason)
    return _by_code(said, record, left) if left.memory is None else _out_of_memory(said, left.memory)


def _out_of_memory(said: str, memory: MemoryKill) -> Ending:
    return Ending(detail=f"{said}: {memory.describe()}", reason=Reason.OUT_OF_MEMORY)


_BY_REASON: Mapping[str, tuple[Reason, str]] = {
    "TimeLimit": (Reason.TIME_LIMIT, "the time limit that it was submitted with was over"),
    "NodeDown": (Reason.NODE_LOST, "a node of it failed"),
    "OutOfMemory": (Reason.OUT_OF_MEMORY, "it used more memory than it had asked for"),
    "BadConstraints": (Reason.BACKEND_REJECTED, "no node has what it asks for"),
    "SystemFailure": (Reason.NODE_LOST, "Slurm itself has failed"),
}


def reason_of(record: JobRecord) -> Reason | None:
    """What the pending-or-end reason of Slurm's record stands for here."""
    reason, _ = _BY_REASON.get(record.reason, (None, ""))
    return reason


def _how(record: JobRecord) -> str:
    state = record.state.name
    if record.signal:
        return f"ended as {state} by signal {_signal_name(record.signal)}"
    if record.exit_code:
        return f"ended as {state} with exit code {record.exit_code}"
    return f"ended as {state}"


def _signal_name(number: int) -> str:
    try:
        return f"{number} ({signal.Signals(number).name})"
    except ValueError:
        return str(number)


def _without_word(job: str, left: Left) -> Ending:
    mark = left.mark
    if left.memory is not None:
        return _out_of_memory(f"Slurm knows job {job} no longer", left.memory)
    if mark is None:
        return Ending(detail=f"Slurm knows job {job} no longer, and cannot say how it ended")
    reason, words = _CODES.get(mark.exit_code, (None, ""))
    said = f"Slurm knows job {job} no longer; its script ended with exit code {mark.exit_code}"
    return Ending(detail=f"{said}: {words}" if words else said, reason=reason or _by_shell(mark.exit_code))


def _by_shell(code: int) -> Reason | None:
    return Reason.KILLED if code == _SIGNAL_CODE + signal.SIGKILL else None


def _cancelled(job: str, record: JobRecord, by: str) -> Ending:
    if "Dependency" in record.reason:
        detail = f"Slurm job {job} was given up by Slurm: a job that it depends on has ended in a way that forbids it"
        return Ending(detail=detail, reason=Reason.BACKEND_REJECTED)
    if not by:
        return Ending(detail=f"Slurm job {job} was cancelled")
    return Ending(detail=f"Slurm job {job} was cancelled by {by}", cancelled=True)


def _by_code(said: str, record: JobRecord, left: Left) -> Ending:
    code = record.exit_code or (left.mark.exit_code if left.mark is not None else 0)
    if record.signal == _LAUNCH_SIGNAL or (record.reason == "JobLaunchFailure" and not record.signal):
        where = f" on {record.nodes}" if record.nodes else ""
        words = f"Slurm could not start its script{where}; mostly its output {left.log} cannot be written there"
        return Ending(detail=f"{said}: {words}", reason=Reason.STORAGE)
    if record.signal == signal.SIGKILL:
        return Ending(detail=said, reason=Reason.KILLED)
    if code in _CODES:
        reason, words = _CODES[code]
        return Ending(detail=f"{said}: {words}", reason=reason)
    if not left.has_log and _ran_s(record) <= _AT_ONCE_S:
        words = (
            f"it ended at once and left nothing; mostly its folder or its output {left.log} is not there on its nodes"
        )
        return Ending(detail=f"{said}: {words}")
    return Ending(detail=said, reason=_by_shell(code))


def _ran_s(record: JobRecord) -> float:
    if record.start is None or record.end is None:
        return float("inf")
    return record.end - record.start
