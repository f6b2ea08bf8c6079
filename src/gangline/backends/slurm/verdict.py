"""Why a job has ended, or why Slurm has put it back, by the best witness of several. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from gangline.backends.slurm.endings import Ending, Left, describe_ending, reason_of
from gangline.backends.slurm.evidence import Claim, Footprint, Memory
from gangline.backends.slurm.jobwords import NODE_FAILED, PREEMPTED, REQUEUED
from gangline.backends.slurm.records import JobRecord
from gangline.backends.slurm.states import STATES, Standing, StateMeaning
from gangline.domain.gang import Liveness, Observation
from gangline.domain.phase import Reason

__all__ = ["tell_end", "tell_why_back"]


def tell_why_back(memory: Memory, footprint: Footprint) -> StateMeaning:
    """What Slurm has last put the job back for: as accounts have it, or the job's own log."""
    states = [life.state for life in memory.lives if not life.state.meaning.cancelled]  # those don't come back
    over = [state for state in states if state.standing is Standing.ENDED or state.meaning.is_requeue]
    if over:
        return _BY_HAND if over[-1].standing is not Standing.ENDED else over[-1].meaning
    ends = footprint.words.ends
    if len(ends) < max(1, memory.restarts):  # a machine that was lost says nothing: they may be of an earlier life
        return StateMeaning(standing=Standing.UNKNOWN)
    return _WORDS.get(ends[-1], StateMeaning(standing=Standing.UNKNOWN))


_BY_HAND = StateMeaning(
    standing=Standing.ENDED, reason=Reason.PREEMPTED, preempted=True, words="somebody wanted it (scontrol requeue)"
)
_WORDS: Mapping[str, StateMeaning] = {
    REQUEUED: _BY_HAND,
    PREEMPTED: STATES["PREEMPTED"],
    NODE_FAILED: STATES["NODE_FAIL"],
}


def tell_end(claim: Claim, memory: Memory, record: JobRecord | None, footprint: Footprint) -> Observation:
    """The end, as the best witness tells it: accounting has the final state, and who cancelled."""
    lives = [life for life in memory.lives if life.state.standing is Standing.ENDED]
    known = record is not None and record.state.standing is Standing.ENDED
    witness = record if known or not lives else lives[-1]
    by = ""
    if not footprint.is_cancelled and witness is not None and witness.state.meaning.cancelled:
        who = next((one.by for one in (witness, *reversed(lives)) if one.by), "")
        by = (f"user {who}" if who.isdigit() else who) or "somebody"
    if footprint.last_word not in {"end", "relaunch"}:
        left = Left(mark=footprint.mark, log=claim.log, has_log=footprint.has_log, memory=footprint.words.memory)
        ending = describe_ending(claim.job, witness, left, by=by)
        return _render_gone(ending, at_fault=_at_fault(witness, footprint))
    # The leader has said how it ended, and the job's exit code is the run's: it has no meaning of our own.
    bare = None if witness is None else replace(witness, exit_code=None, signal=None)
    ending = describe_ending(claim.job, bare, Left(log=claim.log, has_log=True), by=by)
    if footprint.last_word == "relaunch" and (ending.reason is not None or ending.preempted):
        return _render_gone(
            ending, at_fault=_at_fault(witness, footprint)
        )  # agents that are told to end don't know why; Slurm does
    back = tell_why_back(memory, footprint) if footprint.last_word == "relaunch" and memory.restarts else None
    if back is not None and back.reason is not None and not ending.cancelled:  # Slurm had put it back, and we took it
        detail = f"Slurm had put job {claim.job} back into its queue, as {back.words}"
        ending = Ending(detail=detail, reason=back.reason, preempted=back.preempted)
        return _render_gone(ending, at_fault=footprint.words.blamed or ())
    said = f" ({witness.state.name})" if witness is not None else ""
    detail = ending.detail if ending.cancelled else f"Slurm job {claim.job} has ended{said}"
    return Observation(liveness=Liveness.GONE, detail=detail, cancelled=ending.cancelled)


def _at_fault(witness: JobRecord | None, footprint: Footprint) -> Sequence[str] | None:
    """Slurm gives a whole job up for one node; that is seldom the leader's."""
    if footprint.words.blamed:
        return footprint.words.blamed
    is_slurms_word = witness is not None and Reason.NODE_LOST in {witness.state.meaning.reason, reason_of(witness)}
    return () if is_slurms_word else None


def _render_gone(ending: Ending, *, at_fault: Sequence[str] | None) -> Observation:
    is_silent = ending.reason is None and not ending.cancelled and not ending.preempted
    by_node = bool(at_fault) and (is_silent or ending.reason is Reason.NODE_LOST)
    return Observation(
        liveness=Liveness.GONE,
        detail=f"{ending.detail}; srun names {', '.join(at_fault or ())}" if by_node else ending.detail,
        cancelled=ending.cancelled,
        preempted=ending.preempted,
        reason=Reason.NODE_LOST if by_node else ending.reason,
        at_fault=at_fault,
    )
