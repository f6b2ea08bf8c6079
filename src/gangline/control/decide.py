"""What is to be done about one run, from what is known of it.

Pure, and by state alone, never by what was seen to happen:
a server that is killed between any two steps decides the same again.

Imports `gangline.domain` and the store's rows alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gangline.control.facts import (
    END_PATIENCE_S,
    LOST_PATIENCE_S,
    NO_PLACE,
    STOP_MARGIN_S,
    STOPPED_EXIT_CODE,
    UNKNOWN_PATIENCE_S,
    Cancel,
    Change,
    Explain,
    Facts,
    Step,
    Submit,
)
from gangline.control.losing import (
    frozen,
    knows_better,
    lost,
    next_launch,
    outside,
    put_back,
    sentence,
    stopped,
    to_queue,
    without_word,
)
from gangline.domain.gang import Liveness
from gangline.domain.phase import TERMINAL, TRANSITIONS, Budget, Phase, Reason
from gangline.store.rows import AttemptRow, Move, RunRow

__all__ = ["decide", "decide_used"]


def decide(facts: Facts) -> list[Step]:
    """The steps for one run, in order; [] where it may go on as it is."""
    run, newest = facts.run, facts.newest
    if run.phase in TERMINAL:
        return _after_end(facts)
    if run.phase is Phase.STOPPING:
        return _stopping(facts)
    if run.phase is Phase.QUEUED and _has_left_queue(facts):
        started = replace(facts, run=replace(run, phase=Phase.STARTING))
        return [Move(phase=Phase.STARTING, message="Agents are starting."), *decide(started)]
    if newest is not None and newest.next == "end":
        return [_end(facts, newest)]
    if newest is not None and newest.next == "relaunch":
        return _relaunch(facts, newest)
    return _going_on(facts)


def _has_left_queue(facts: Facts) -> bool:
    """Whether the machines of a queued run are there, by what backend or files say."""
    is_alive = facts.observation is not None and facts.observation.liveness is Liveness.ALIVE
    return facts.run.placement is not None and (is_alive or facts.begun is not None)


def decide_used(run: RunRow, attempts: Sequence[AttemptRow]) -> dict[Budget, int]:
    """Restarts that each budget has paid for since the run was submitted or resumed.

    Those of leaders and of the server.
    """
    used = {Budget(name): count for name, count in run.launch_restarts.items()}
    for attempt in attempts:
        if attempt.number >= run.budget_from and attempt.next in {"restart", "relaunch"} and attempt.budget:
            budget = Budget(attempt.budget)
            used[budget] = used.get(budget, 0) + 1
    return used


def _going_on(facts: Facts) -> list[Step]:
    """No leader has said that the launch is over."""
    if facts.run.handle is None:
        return _without_handle(facts)
    if facts.gone:
        return lost(facts) if facts.confirmed_gone else []
    if facts.observation is None or facts.observation.liveness is Liveness.UNKNOWN:
        return _silent(facts)
    if facts.cut_off is not None:
        return put_back(facts, facts.cut_off)
    if facts.leader_silent_s >= facts.leader_patience_s and facts.begun is not None and not facts.pending:
        return [Cancel(why=f"{frozen(facts)} The launch is ended by force.")]
    return _alive(facts)


def _without_handle(facts: Facts) -> list[Step]:
    """The run waits for a place, or the handle of its launch was not noted: then it is asked for under the same key."""
    if facts.run.placement is None:
        return []
    return [Submit(), *(_alive(facts) if facts.newest is not None else [])]


def _after_end(facts: Facts) -> list[Step]:
    """The run is over; its machines are let go once nothing runs on them any more."""
    run = facts.run
    if run.handle is None:
        if run.placement is None:
            return []
        return [Submit() if facts.newest is not None or facts.was_prepared else Change(changes=NO_PLACE)]
    if facts.gone:
        return [Change(changes=NO_PLACE)] if facts.confirmed_gone else []
    if facts.over_for_s > _patience_s(facts.newest):
        return [Cancel(why="The run is over, but its agents linger.")]
    return []


def _stopping(facts: Facts) -> list[Step]:
    run, newest = facts.run, facts.newest
    if newest is not None and newest.next == "end":
        return [_end(facts, newest)]
    if run.handle is None:
        return [Submit()] if run.placement is not None and facts.was_prepared else [stopped(facts)]
    if facts.gone:
        return [stopped(facts)] if facts.confirmed_gone else []
    if facts.pending and facts.begun is None:
        return [Cancel(why="The launch has not begun, and is taken out of the backend's queue.")]
    deadline = (run.stop_asked or facts.now) + facts.grace_s + STOP_MARGIN_S
    if facts.now >= deadline:
        return [Cancel(why="The gang has not ended within its grace.")]
    return []


def _end(facts: Facts, attempt: AttemptRow) -> Move:
    """The leader said that the run is over, and how."""
    phase = {"succeeded": Phase.SUCCEEDED, "stopped": Phase.STOPPED}.get(attempt.outcome or "", Phase.FAILED)
    reason = _reason_of(attempt, phase)
    exit_code = attempt.exit_code
    if exit_code is None:
        exit_code = 0 if phase is Phase.SUCCEEDED else STOPPED_EXIT_CODE if phase is Phase.STOPPED else 1
    changes: dict[str, Any] = {"ended": attempt.ended or facts.now, "exit_code": exit_code}
    changes["told_attempt"] = attempt.number
    message = attempt.message
    if phase is Phase.FAILED and attempt.restart_message:
        message = f"{message} {sentence(attempt.restart_message)}".strip()
    return Move(phase=phase, reason=reason, message=message, changes=changes)


def _reason_of(attempt: AttemptRow, phase: Phase) -> Reason | None:
    if phase is Phase.SUCCEEDED:
        return None
    if attempt.reason in Reason._value2member_map_:
        return Reason(attempt.reason)
    return Reason.STOPPED_BY_USER if phase is Phase.STOPPED else Reason.PLATFORM


def _relaunch(facts: Facts, attempt: AttemptRow) -> list[Step]:
    """The leader has ended its launch and wants another; it begins once the old one is gone."""
    run = facts.run
    if run.handle is None:
        return [Submit()]
    if facts.observation is not None and facts.observation.cancelled and facts.confirmed_gone:
        return [stopped(without_word(facts, attempt), outside(facts.observation))]
    if knows_better(facts, attempt):
        return lost(without_word(facts, attempt))
    message = f"{attempt.message} {sentence(attempt.restart_message)}".strip()
    reason = _reason_of(attempt, Phase.FAILED)
    if facts.confirmed_gone:
        if attempt.outcome == "preempted" and facts.observation is not None and facts.observation.detail:
            message = f"{message} {facts.observation.detail}."  # agents were sent a signal; the backend knows why
        not_before = facts.now - facts.over_for_s + attempt.next_delay_s
        changes = {**next_launch(run), "not_before": not_before, "told_attempt": attempt.number}
        return to_queue(facts, Move(phase=_between(attempt), reason=reason, message=message, changes=changes))
    steps: list[Step] = []
    if run.phase is not _between(attempt) and _is_legal(run.phase, _between(attempt)):
        steps.append(
            Move(phase=_between(attempt), reason=reason, message=message, changes={"told_attempt": attempt.number})
        )
    if not facts.gone and facts.over_for_s > _patience_s(attempt):
        steps.append(Cancel(why="The launch was to end for another one, but its agents linger."))
    return steps


def _patience_s(attempt: AttemptRow | None) -> float:
    """How long the agents of an attempt that is over may linger."""
    is_lost = attempt is not None and attempt.reason == Reason.NODE_LOST.value
    return LOST_PATIENCE_S if is_lost else END_PATIENCE_S


def _between(attempt: AttemptRow) -> Phase:
    return Phase.PREEMPTED if attempt.outcome == "preempted" else Phase.RESTARTING


def _silent(facts: Facts) -> list[Step]:
    """The backend says nothing; the files may still say that the gang moves."""
    if facts.unknown_for_s < UNKNOWN_PATIENCE_S or facts.run.phase is Phase.UNKNOWN:
        return []
    detail = facts.observation.detail if facts.observation is not None else ""
    if facts.run.phase is Phase.QUEUED:
        return _explained(facts, f"The backend does not answer; the run keeps its place there. {detail}".strip())
    message = f"For {facts.unknown_for_s:.0f} s nobody says how the gang stands; nothing is decided until it is known."
    if not _is_legal(facts.run.phase, Phase.UNKNOWN):
        return []
    return [Move(phase=Phase.UNKNOWN, message=f"{message} {detail}".strip())]


def _alive(facts: Facts) -> list[Step]:
    run, newest = facts.run, facts.begun
    if run.phase is Phase.PREEMPTED:
        is_put_back = newest is None and facts.newest is not None
        return [Move(phase=Phase.QUEUED, message=run.message)] if is_put_back else []
    if newest is None or (facts.pending and newest.outcome is not None):
        return _pending(facts)
    if newest.next == "restart" or (newest.running is None and len(facts.attempts) > 1):
        return _moved(facts, Phase.RESTARTING, _restart_message(facts))
    if newest.running is None:
        return _moved(facts, Phase.STARTING, "Ranks are starting.")
    if run.phase is Phase.RUNNING and run.told_attempt is not None and newest.number > run.told_attempt:
        told = Move(phase=Phase.RESTARTING, message=_restart_message(facts))
        return [told, *_running(facts, newest)]
    return _running(facts, newest) if run.phase is not Phase.RUNNING else _failing(facts, newest)


def _failing(facts: Facts, newest: AttemptRow) -> list[Step]:
    """A rank has failed, and the attempt is being ended: say why at once."""
    if newest.first_failure is None or newest.outcome is not None:
        return []
    message = f"{newest.message} The other ranks are being ended."
    return [] if message == facts.run.message else [Change(changes={"message": message})]


def _running(facts: Facts, newest: AttemptRow) -> list[Step]:
    ranks = (len(newest.nodes) or facts.run.nodes) * facts.run.procs_per_node
    message = f"Attempt {newest.number} is running with {ranks} {'rank' if ranks == 1 else 'ranks'}."
    return [Move(phase=Phase.RUNNING, message=message, changes={"told_attempt": newest.number})]


def _restart_message(facts: Facts) -> str:
    ended = [attempt for attempt in facts.attempts if attempt.next == "restart"]
    return f"{ended[-1].message} {sentence(ended[-1].restart_message)}".strip() if ended else "The gang restarts."


def _pending(facts: Facts) -> list[Step]:
    """No agent has begun anything."""
    run, detail = facts.run, facts.observation.detail if facts.observation is not None else ""
    if not facts.pending:
        if run.phase is Phase.UNKNOWN:
            return [Move(phase=Phase.STARTING, message=detail)]
        return _explained(facts, detail) if facts.has_queue and run.phase is Phase.STARTING else []
    if facts.has_queue and run.phase in {Phase.STARTING, Phase.UNKNOWN}:
        return [Move(phase=Phase.QUEUED, message=detail or f"Waits in the queue of pool `{run.pool}`.")]
    if run.phase is Phase.UNKNOWN:
        return [Move(phase=Phase.STARTING, message=detail)]
    return _explained(facts, detail)


def _explained(facts: Facts, message: str) -> list[Step]:
    return [Explain(message=message)] if message and message != facts.run.message else []


def _moved(facts: Facts, phase: Phase, message: str) -> list[Step]:
    if facts.run.phase is phase or not _is_legal(facts.run.phase, phase):
        return []
    return [Move(phase=phase, message=message)]


def _is_legal(old: Phase, new: Phase) -> bool:
    return new in TRANSITIONS[old]
