"""What follows for a run whose launch is gone without a word of its leader, or was put back by its backend. Pure.

Imports `gangline.domain` and the store's rows alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gangline.control.facts import NO_PLACE, STOPPED_EXIT_CODE, Cancel, Change, Facts, Step, exit_code_for
from gangline.domain.gang import Observation
from gangline.domain.hints import hint_for
from gangline.domain.phase import Budget, Phase, Reason
from gangline.domain.restart import decide_restart
from gangline.domain.spec import OnTimeLimit
from gangline.store.rows import AttemptRow, Move, RunRow

__all__ = [
    "AT_FAULT",
    "frozen",
    "knows_better",
    "lost",
    "next_launch",
    "outside",
    "put_back",
    "sentence",
    "stopped",
    "to_queue",
    "without_word",
]


AT_FAULT = "at_fault"
"""Key in the nodes of an attempt that was closed: whether the backend says that it was this one that failed."""
_UNEXPLAINED = frozenset(
    {None, Reason.USER_ERROR, Reason.ENVIRONMENT_MISMATCH, Reason.STORAGE, Reason.RENDEZVOUS_FAILED}
)
"""Reasons of a backend that leave it to the agents' words what was wrong."""
_MOST_WORDS = 300


def lost(facts: Facts) -> list[Step]:
    """The launch is gone and no leader has said why."""
    observation = facts.observation
    if observation is not None and observation.cancelled:
        return [stopped(facts, outside(observation))]
    preempted = _is_preempted(facts)
    reason = _loss_reason(facts, preempted=preempted)
    message = _loss_message(facts, reason)
    if reason is Reason.TIME_LIMIT:
        return _out_of_time(facts, message)
    decision = decide_restart(facts.policy, facts.used, reason)
    outcome = "preempted" if preempted else "failed"
    closed = _close(facts, outcome=outcome, reason=reason, message=message, restart_message=decision.message)
    if not decision.restart:
        return [_give_up(facts, reason, f"{message} {sentence(decision.message)}", closed)]
    changes = {
        **next_launch(facts.run),
        "not_before": facts.now + decision.delay_s,
        "launch_restarts": _counted(facts.run, decision.budget),
    }
    if facts.newest is not None:
        changes["told_attempt"] = facts.newest.number
    phase = Phase.PREEMPTED if preempted else Phase.RESTARTING
    text = f"{message} {sentence(decision.message)}"
    return to_queue(facts, Move(phase=phase, reason=reason, message=text, changes=changes, attempts=closed))


def knows_better(facts: Facts, attempt: AttemptRow) -> bool:
    """Whether the backend can say why agents were told to end, of which their leader saw the signal alone."""
    seen = facts.observation
    if attempt.outcome != "preempted" or seen is None or not facts.confirmed_gone:
        return False
    return seen.reason not in {None, Reason.PREEMPTED, Reason.KILLED}


def without_word(facts: Facts, attempt: AttemptRow) -> Facts:
    """The same, as if the newest attempt's leader had said nothing of its end: who pays is decided anew."""
    used = dict(facts.used)
    if attempt.budget in Budget._value2member_map_:
        used[Budget(attempt.budget)] = used.get(Budget(attempt.budget), 1) - 1
    silent = replace(attempt, outcome=None, next=None, next_delay_s=0.0, budget=None)
    return replace(facts, attempts=[*facts.attempts[:-1], silent], used=used)


def put_back(facts: Facts, cut: AttemptRow) -> list[Step]:
    """The backend has put the launch back into its queue, and begins it anew: no second job, but a restart."""
    observation, run = facts.observation, facts.run
    preempted = observation is not None and observation.preempted
    told = None if observation is None else observation.reason
    reason = Reason.PREEMPTED if preempted else told or Reason.NODE_LOST
    detail = f" ({observation.detail})" if observation is not None and facts.pending and observation.detail else ""
    message = f"The backend took the machines of attempt {cut.number} away, and queued its launch again{detail}."
    decision = decide_restart(facts.policy, facts.used, reason)
    outcome = "preempted" if preempted else "failed"
    blamed = () if observation is None else observation.at_fault or ()
    closed = [_closed(facts, _blame(cut, blamed), outcome, reason, message, decision.message)]
    text = f"{message} {sentence(decision.message)}"
    if not decision.restart:
        ended = {"ended": facts.now, "exit_code": exit_code_for(reason)}
        failed = Move(phase=Phase.FAILED, reason=reason, message=text, changes=ended, attempts=closed)
        return [failed, Cancel(why="No restart is left, and the backend would begin the launch again.")]
    changes = {"launch_restarts": _counted(run, decision.budget), "told_attempt": cut.number}
    phase = Phase.PREEMPTED if preempted else Phase.RESTARTING
    return to_queue(facts, Move(phase=phase, reason=reason, message=text, changes=changes, attempts=closed))


def stopped(facts: Facts, message: str = "") -> Move:
    """The run is over because a person wanted it, or nobody wanted it to go on."""
    lease = facts.run.stop_cause == "lease"
    reason = Reason.LEASE_ENDED if lease else Reason.STOPPED_BY_USER
    by = ": nobody renewed its lease any more" if lease else f" by {facts.run.stop_by}" if facts.run.stop_by else ""
    ended = _close(facts, outcome="stopped", reason=reason, message=message or "Stopped.")
    code = exit_code_for(reason) if reason is Reason.LEASE_ENDED else STOPPED_EXIT_CODE
    return Move(
        phase=Phase.STOPPED,
        reason=reason,
        message=message or f"Stopped{by}.",
        changes={"ended": facts.now, "exit_code": code, **NO_PLACE},
        attempts=ended,
    )


def next_launch(run: RunRow) -> dict[str, Any]:
    """Columns of a run whose launch is gone, and that is to have another."""
    return {"launch": run.launch + 1, **NO_PLACE}


def to_queue(facts: Facts, move: Move) -> list[Step]:
    """Let a run wait for the place of its next launch: as RESTARTING, or after preemption as QUEUED."""
    phase = facts.run.phase
    if move.phase is Phase.PREEMPTED and phase not in {Phase.QUEUED, Phase.PREEMPTED}:
        return [replace(move, changes={}), replace(move, phase=Phase.QUEUED, attempts=())]
    if phase is Phase.PREEMPTED:
        return [replace(move, phase=Phase.QUEUED)]
    if phase in {Phase.RESTARTING, Phase.QUEUED}:
        return [Change(changes={**move.changes, "message": move.message}, attempts=move.attempts)]
    return [move]


def frozen(facts: Facts) -> str:
    """That the leader is silent, in words."""
    return f"The agent of node 0 has shown no sign of life for {facts.leader_silent_s:.0f} s."


def outside(observation: Observation) -> str:
    """That somebody else has ended the launch, in words."""
    return f"Ended outside Gangline{f' ({observation.detail})' if observation.detail else ''}."


def sentence(text: str) -> str:
    """A clause as a sentence."""
    return f"{text[0].upper()}{text[1:]}." if text else ""


def _is_preempted(facts: Facts) -> bool:
    """By the backend's word; without one, by what the leader has said before."""
    seen = facts.observation
    if seen is not None and (seen.preempted or seen.reason is not None):
        return seen.preempted
    return facts.run.phase is Phase.PREEMPTED


def _loss_reason(facts: Facts, *, preempted: bool) -> Reason:
    if preempted:
        return Reason.PREEMPTED
    if facts.storage_fault:
        return Reason.STORAGE
    if facts.observation is not None and facts.observation.reason is not None:
        return facts.observation.reason
    return Reason.PLATFORM if facts.begun is None else Reason.NODE_LOST


def _out_of_time(facts: Facts, message: str) -> list[Step]:
    """The backend has ended the launch at its time limit; the run goes on by its own policy."""
    goes_on, why = _continuation(facts)
    is_stop = facts.stop.on_time_limit is OnTimeLimit.STOP
    outcome = "stopped" if goes_on or is_stop else "failed"
    text = f"{message} {sentence(why)}".strip()
    closed = _close(facts, outcome=outcome, reason=Reason.TIME_LIMIT, message=message, restart_message=why)
    if not goes_on:
        move = _give_up(facts, Reason.TIME_LIMIT, text, closed)
        return [replace(move, phase=Phase.STOPPED) if is_stop else move]
    changes = {**next_launch(facts.run), "launch_restarts": _counted(facts.run, Budget.CONTINUATION)}
    if facts.newest is not None:
        changes["told_attempt"] = facts.newest.number
    move = Move(phase=Phase.RESTARTING, reason=Reason.TIME_LIMIT, message=text, changes=changes, attempts=closed)
    return to_queue(facts, move)


def _continuation(facts: Facts) -> tuple[bool, str]:
    """Whether a run goes on after its time, as a leader would decide it; and what is said of it."""
    if facts.stop.on_time_limit is not OnTimeLimit.CONTINUE:
        return False, ""
    begun = None if facts.newest is None else facts.newest.resume_step
    if facts.saved_step is None or (begun is not None and facts.saved_step <= begun):
        return False, "no checkpoint was saved in this attempt, so that going on would do the same again"
    most, spent = facts.stop.max_continuations, facts.used.get(Budget.CONTINUATION, 0)
    if most is not None and spent >= most:
        return False, f"no continuation is left of --max-continuations {most}"
    of = "" if most is None else f" of {most}"
    return True, f"goes on from step {facts.saved_step} (continuation {spent + 1}{of})"


def _give_up(facts: Facts, reason: Reason, message: str, closed: Sequence[AttemptRow]) -> Move:
    changes = {"ended": facts.now, "exit_code": exit_code_for(reason), **NO_PLACE}
    return Move(phase=Phase.FAILED, reason=reason, message=message, changes=changes, attempts=closed)


def _counted(run: RunRow, budget: Budget | None) -> dict[str, int]:
    name = str(budget)
    return {**run.launch_restarts, name: run.launch_restarts.get(name, 0) + 1}


def _close(facts: Facts, *, outcome: str, reason: Reason, message: str, restart_message: str = "") -> list[AttemptRow]:
    """The newest attempt of a launch that left no result, as far as the server can tell."""
    if facts.newest is None or facts.newest.outcome is not None:
        return []
    blamed = None if facts.observation is None else facts.observation.at_fault
    return [_closed(facts, _blame(facts.newest, blamed), outcome, reason, message, restart_message)]


def _blame(attempt: AttemptRow, hosts: Sequence[str] | None) -> AttemptRow:
    """Note which of its nodes have failed; None: nobody knows."""
    if hosts is None:
        return attempt
    return replace(attempt, nodes=[{**node, AT_FAULT: node.get("host") in hosts} for node in attempt.nodes])


def _closed(
    facts: Facts, attempt: AttemptRow, outcome: str, reason: Reason, message: str, restart_message: str
) -> AttemptRow:
    return replace(
        attempt,
        outcome=outcome,
        reason=reason.value,
        message=message,
        ended=attempt.ended or facts.now,
        restart_message=restart_message,
        signature=None,
        hint=hint_for(reason, run=facts.run.id),
    )


def _loss_message(facts: Facts, reason: Reason) -> str:
    detail = facts.observation.detail if facts.observation is not None else ""
    if reason is Reason.PREEMPTED:
        said = "The backend took the machines away"
    elif facts.leader_silent_s >= facts.leader_patience_s:
        said = f"{frozen(facts)} Its launch was ended by force"
    elif facts.begun is None:
        said = f"The agents of launch {facts.run.launch} ended before they began an attempt"
    elif facts.begun.ended is not None:
        said = f"The agents of attempt {facts.begun.number} were told to end"
    else:
        said = _gone(facts.begun)
    if reason is Reason.TIME_LIMIT:
        said = f"The backend's time limit was reached. {said}"
    elif reason is Reason.BACKEND_REJECTED:
        said = f"The backend refuses the launch. {said}"
    if reason is Reason.STORAGE and facts.storage_fault:
        return f"{said}: {facts.storage_fault}."
    return f"{said}{f' ({detail})' if detail else ''}.{_last_words(facts)}"


def _last_words(facts: Facts) -> str:
    """The last line that agents, or what was to become them, have left."""
    told = None if facts.observation is None else facts.observation.reason
    lines = [line.strip() for line in facts.agent_words.splitlines() if line.strip()]
    if not lines or told not in _UNEXPLAINED:
        return ""
    return f' The last line of their log is "{lines[-1][:_MOST_WORDS]}".'


def _gone(attempt: AttemptRow) -> str:
    """That nobody is left of an attempt, and where its leader was."""
    led = next((node for node in attempt.nodes if node.get("node") == 0 and node.get("host")), None)
    where = "" if led is None else f"node 0 on {led['host']}"
    if len(attempt.nodes) == 1:
        return f"The agent of attempt {attempt.number}{f' ({where})' if where else ''} is gone, and left no result"
    leader = f"; {where} led them" if where else ""
    return f"The agents of attempt {attempt.number} are gone, and left no result{leader}"
