"""What is true of a launch, from all that speaks of it: squeue, sacct, scontrol, and the files of its agents. Pure.

No single silence is an end. GONE needs a positive word (an ended state of this very job; the leader's last word and
the end of the batch script), or two silences that last: a queue that answers and does not list the job, and a
controller that says again and again that it knows no such job, while no file shows a sign of life.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gangline.backends.slurm.evidence import Answers, Ask, Claim, Footprint, Memory, is_of
from gangline.backends.slurm.records import JobRecord
from gangline.backends.slurm.states import Standing
from gangline.backends.slurm.tokens import parse_token
from gangline.backends.slurm.verdict import tell_end, tell_why_back
from gangline.backends.slurm.waits import explain_wait, render_clock
from gangline.domain.gang import Liveness, Observation

__all__ = ["decide_question", "weigh"]

REQUEUE_PATIENCE_S = 30.0
"""How long after an end that Slurm may follow by a requeue that is waited for."""
ENDING_PATIENCE_S = 120.0
"""How long a job may be COMPLETING, as with a node that does not answer, before that counts as its end."""
QUIET_S = 60.0
CONFIRM_TIMES = 3
CONFIRM_S = 20.0
"""So often, and over so long, a controller has to say that it knows no such job."""
_MOST_QUESTIONS = 2


def decide_question(claim: Claim, memory: Memory, answers: Answers, now: float) -> Ask | None:
    """Whom to ask about this job before it is weighed; None: the queue's word will do."""
    if not answers.is_fresh:
        return None
    record = _ours(answers.queue, _by_their_clock(claim, answers))
    if record is None:
        is_their_turn = answers.has_accounts and memory.last_asked is not Ask.ACCOUNTS
        return Ask.ACCOUNTS if is_their_turn else Ask.CONTROLLER
    return _ask_of(record, memory, answers, now)


def _ask_of(record: JobRecord, memory: Memory, answers: Answers, now: float) -> Ask | None:
    """What the queue does not say of a job that it lists: who cancelled it, why it is back, how it ended."""
    if not answers.has_accounts or memory.asked_accounts >= _MOST_QUESTIONS:
        return None
    meaning, standing = record.state.meaning, record.state.standing
    who = standing is Standing.ENDED and meaning.cancelled and not record.by
    why = standing is Standing.PENDING and (record.restarts or 0) > len(memory.lives)
    stuck = (
        standing is Standing.ENDING and memory.ended_since is not None and now - memory.ended_since > ENDING_PATIENCE_S
    )
    return Ask.ACCOUNTS if who or why or stuck else None


def weigh(
    claim: Claim, memory: Memory, answers: Answers, footprint: Footprint, now: float
) -> tuple[Memory, Observation]:
    """What is true of the launch now, and what to remember for the next time.

    Args:
        now: by a clock that never goes back.
    """
    claim = _by_their_clock(claim, answers)
    record = _ours(answers.queue, claim) or _ours(answers.controller, claim)
    memory = _remember(claim, memory, answers, footprint, now)
    if _is_over_by_files(memory, record, footprint):
        return memory, tell_end(claim, memory, record, footprint)
    if not answers.is_fresh and record is None:
        return memory, Observation(liveness=Liveness.UNKNOWN, detail=answers.trouble)
    if record is not None:
        return memory, _listed(claim, memory, record, footprint, answers, now)
    return memory, _absent(claim, memory, footprint, now)


def _by_their_clock(claim: Claim, answers: Answers) -> Claim:
    return replace(claim, submitted=claim.submitted + answers.clock_offset_s)


def _ours(record: JobRecord | None, claim: Claim) -> JobRecord | None:
    return record if record is not None and is_of(record, claim) else None


def _remember(claim: Claim, memory: Memory, answers: Answers, footprint: Footprint, now: float) -> Memory:
    if footprint.alive_sign is not None and footprint.alive_sign != memory.alive_sign:
        memory = replace(memory, alive_sign=footprint.alive_sign, alive_at=now)
    if answers.asked is not None:
        times = memory.asked_accounts + (1 if answers.asked is Ask.ACCOUNTS else 0)
        memory = replace(memory, last_asked=answers.asked, asked_accounts=times)
    if answers.lives is not None:
        lives = [life for life in answers.lives if is_of(life, claim) or _follows(life, answers.lives, claim)]
        memory = replace(memory, lives=tuple(lives))
    if not answers.is_fresh:
        return memory
    record = _ours(answers.queue, claim) or _ours(answers.controller, claim)
    if record is None:
        is_other = answers.queue is not None or answers.controller is not None
        return replace(
            memory,
            absent_since=now if memory.absent_since is None else memory.absent_since,
            absent_times=memory.absent_times + 1,
            invalid_times=memory.invalid_times + (1 if answers.is_invalid or is_other else 0),
        )
    is_over = record.state.standing in {Standing.ENDED, Standing.ENDING}
    since = now if memory.ended_since is None else memory.ended_since
    return replace(
        memory,
        absent_since=None,
        absent_times=0,
        invalid_times=0,
        ended_since=since if is_over else None,
        restarts=max(memory.restarts, record.restarts or 0),
        requeues=memory.requeues if record.requeues is None else record.requeues,
        asked_accounts=0 if (record.restarts or 0) > memory.restarts else memory.asked_accounts,
    )


def _follows(life: JobRecord, lives: Sequence[JobRecord], claim: Claim) -> bool:
    """A later life of ours: accounting often keeps no comment, and a requeue changes when a job was submitted."""
    if parse_token(life.comment or "") is not None or life.submitted is None:
        return False
    earlier = [one for one in lives if one.submitted is not None and one.submitted < life.submitted]
    if not earlier:
        return False
    before = max(earlier, key=lambda one: one.submitted or 0.0)
    returned = before.state.meaning.may_return or before.state.meaning.is_requeue
    return returned and (is_of(before, claim) or _follows(before, lives, claim))


def _is_over_by_files(memory: Memory, record: JobRecord | None, footprint: Footprint) -> bool:
    """The leader has said that the launch is over, and the batch script of this life of the job has ended.

    Of a job that Slurm may put back after that, as at a preemption, Slurm's own word is waited for. So it is where the
    leader wants another launch: agents are sent the same signal when machines are taken away and when a person has
    cancelled the job, after which there must be none.
    """
    if memory.requeues or footprint.last_word != "end" or not _is_marked(memory, footprint):
        return False
    return record is None or record.state.standing is not Standing.PENDING


def _is_marked(memory: Memory, footprint: Footprint) -> bool:
    return footprint.mark is not None and footprint.mark.restart >= memory.restarts


def _listed(
    claim: Claim, memory: Memory, record: JobRecord, footprint: Footprint, answers: Answers, now: float
) -> Observation:
    """Slurm has a record of the job. That it is listed does not say that it runs."""
    standing, job = record.state.standing, claim.job
    if standing is Standing.PENDING:
        return _waiting(claim, memory, record, footprint, answers.wall)
    if standing is Standing.UNKNOWN:
        detail = f"Slurm says {record.state.raw} of job {job}, which is not known here; it counts as not finished"
        return Observation(liveness=Liveness.ALIVE, detail=detail)
    if standing is Standing.RUNNING:
        text = _running(job, record, memory, footprint)
        back = tell_why_back(memory, footprint) if memory.restarts else None
        return Observation(
            liveness=Liveness.ALIVE,
            detail=text,
            ends_at=record.end,
            preempted=back is not None and back.preempted,
            reason=None if back is None else back.reason,
        )
    return _over(claim, memory, record, footprint, answers, now)


def _over(
    claim: Claim, memory: Memory, record: JobRecord, footprint: Footprint, answers: Answers, now: float
) -> Observation:
    """Slurm says that the job has ended, or is about to."""
    job, over_for_s = claim.job, now - (memory.ended_since if memory.ended_since is not None else now)
    if record.state.standing is Standing.ENDING:
        quiet = memory.alive_at is None or now - memory.alive_at > QUIET_S
        if over_for_s <= ENDING_PATIENCE_S or not quiet:
            return Observation(liveness=Liveness.ALIVE, detail=f"Slurm job {job} is ending ({record.state.name})")
        return tell_end(claim, memory, record, footprint)
    if record.state.meaning.may_return and record.requeues is not False and over_for_s < REQUEUE_PATIENCE_S:
        detail = f"Slurm says {record.state.name} of job {job}, and may put it back into its queue"
        return Observation(liveness=Liveness.UNKNOWN, detail=detail)
    if _ask_of(record, memory, answers, now) is not None:
        return Observation(liveness=Liveness.ALIVE, detail=f"Slurm job {job} has ended ({record.state.name})")
    return tell_end(claim, memory, record, footprint)


def _running(job: str, record: JobRecord, memory: Memory, footprint: Footprint) -> str:
    where = f" on {record.nodes}" if record.nodes else ""
    if _is_marked(memory, footprint):
        return f"Slurm still counts job {job} as running{where}, though its script has ended"
    words = f": {record.state.meaning.words}" if record.state.meaning.words else ""
    again = f", for the {_ordinal(memory.restarts + 1)} time" if memory.restarts else ""
    return f"Slurm job {job} runs{where}{again}{words}"


def _ordinal(number: int) -> str:
    return {2: "second", 3: "third"}.get(number, f"{number}th")


def _waiting(claim: Claim, memory: Memory, record: JobRecord, footprint: Footprint, wall: float) -> Observation:
    """One sentence why it waits; after a requeue also why Slurm has taken it back."""
    job, meaning = claim.job, record.state.meaning
    wait = explain_wait(record.reason)
    text = f"Slurm job {job} waits: {wait.word} ({wait.text})"
    if not record.reason:
        text = f"Slurm job {job} waits: {meaning.words or wait.text}"
    if record.start is not None and not wait.never:
        text += f"; Slurm expects it to start at {render_clock(record.start, now=wall)}"
    if wait.never:
        text += "; as things are it will never start"
    if wait.fix:
        text += f". {wait.fix.removesuffix('.')}"
    if not memory.restarts and not meaning.is_requeue:
        return Observation(liveness=Liveness.PENDING, detail=text)
    back = tell_why_back(memory, footprint)
    why = f", as {back.words}" if back.words else ""
    return Observation(
        liveness=Liveness.PENDING,
        detail=f"Slurm has put job {job} back into its queue{why} (restart {max(1, memory.restarts)}). {text}",
        preempted=back.preempted,
        reason=back.reason,
    )


def _absent(claim: Claim, memory: Memory, footprint: Footprint, now: float) -> Observation:
    """The queue has answered, and does not list the job."""
    job = claim.job
    since = memory.absent_since if memory.absent_since is not None else now
    if memory.alive_at is not None and memory.alive_at > since and now - memory.alive_at <= QUIET_S:
        detail = f"Slurm does not list job {job} any more, but its agents show that they live"
        return Observation(liveness=Liveness.ALIVE, detail=detail)
    last = memory.lives[-1] if memory.lives else None
    has_ended = last is not None and last.state.standing is Standing.ENDED
    enough = 2 if last is not None and last.state.meaning.may_return else 1
    if _is_marked(memory, footprint) or (has_ended and memory.absent_times >= enough):
        return tell_end(claim, memory, last, footprint)
    if footprint.last_word in {"end", "relaunch"} and memory.absent_times > 1:
        return tell_end(claim, memory, last, footprint)
    if memory.invalid_times >= CONFIRM_TIMES and now - since >= CONFIRM_S:
        return tell_end(claim, memory, last if has_ended else None, footprint)
    detail = f"Slurm does not list job {job}; whether it has ended is being found out"
    return Observation(liveness=Liveness.UNKNOWN, detail=detail)
