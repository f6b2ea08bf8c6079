"""What is to be done about one run, from what is known of it.

Pure, and by state alone, never by what was seen to happen:
a server that is killed between any two steps decides the same again.

Imports `gangline.domain` and the store's rows alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gangline.domain.gang import Liveness, Observation
from gangline.domain.hints import hint_for
from gangline.domain.phase import TERMINAL, TRANSITIONS, Budget, Phase, Reason
from gangline.domain.restart import RestartDecision, decide_restart
from gangline.domain.spec import RestartPolicy
from gangline.store.rows import AttemptRow, Move, RunRow

__all__ = [
    "END_PATIENCE_S",
    "EXIT_CODES",
    "LEADER_PATIENCE_S",
    "STOPPED_EXIT_CODE",
    "STOP_MARGIN_S",
    "UNKNOWN_PATIENCE_S",
    "Cancel",
    "Change",
    "Facts",
    "Step",
    "Submit",
    "decide",
    "decide_used",
]

STOP_MARGIN_S = 10.0
"""How much longer than its grace a stop may take before the launch is ended by force."""
END_PATIENCE_S = 15.0
"""How long agents may linger after their result before they are ended by force."""
UNKNOWN_PATIENCE_S = 30.0
"""How long a backend may be silent about a launch before the run says so."""
LEADER_PATIENCE_S = 60.0
"""How long a leader that has shown that it lives may then show nothing, before its launch is ended by force."""
STOPPED_EXIT_CODE = 130
EXIT_CODES: Mapping[Reason, int] = {
    Reason.BACKEND_REJECTED: 65,
    Reason.NODE_LOST: 71,
    Reason.PREEMPTED: 143,
    Reason.STORAGE: 74,
    Reason.PLATFORM: 70,
}
"""What `gangline` exits with where no rank has left a code of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything that the decision about one run rests on."""

    run: RunRow
    attempts: Sequence[AttemptRow] = ()
    """Those of the launch that `run.launch` names, by number."""
    observation: Observation | None = None
    """None: there is no handle to ask about."""
    confirmed_gone: bool = False
    """The launch was GONE twice in a row, and its files were read to their end after the first time."""
    unknown_for_s: float = 0.0
    leader_silent_s: float = 0.0
    """Since the last sign of life of the leader; time in which the server itself did not look is left out."""
    leader_patience_s: float = LEADER_PATIENCE_S
    was_prepared: bool = False
    """`launch.json` of the launch exists: its agents may have been started, even without a handle."""
    policy: RestartPolicy = field(default_factory=RestartPolicy)
    used: Mapping[Budget, int] = field(default_factory=dict)
    grace_s: float = 30.0
    agent_words: str = ""
    """The end of what the agents of a lost launch have printed."""
    storage_fault: str = ""
    """What a lost launch, or its folder, says of a disk that is full; "" where neither does."""
    now: float = 0.0

    @property
    def gone(self) -> bool:
        return self.observation is not None and self.observation.liveness is Liveness.GONE

    @property
    def newest(self) -> AttemptRow | None:
        return self.attempts[-1] if self.attempts else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Change columns of the run, not its phase."""

    changes: Mapping[str, Any]
    attempts: Sequence[AttemptRow] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """End the launch by force."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Submit:
    """Hand the launch to the backend, again if its handle is not known: the key makes that harmless."""


Step = Move | Change | Cancel | Submit

_NO_PLACE: Mapping[str, Any] = {"handle": None, "placement": None}


def decide(facts: Facts) -> list[Step]:
    """The steps for one run, in order; [] where it may go on as it is."""
    run, newest = facts.run, facts.newest
    if run.phase in TERMINAL:
        return _after_end(facts)
    if run.phase is Phase.STOPPING:
        return _stopping(facts)
    if newest is not None and newest.next == "end":
        return [_end(facts, newest)]
    if newest is not None and newest.next == "relaunch":
        return _relaunch(facts, newest)
    return _going_on(facts)


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
        return _lost(facts) if facts.confirmed_gone else []
    if facts.observation is None or facts.observation.liveness is Liveness.UNKNOWN:
        return _silent(facts)
    if facts.leader_silent_s >= facts.leader_patience_s:
        return [Cancel(why=f"{_frozen(facts)} The launch is ended by force.")]
    return _alive(facts)


def _frozen(facts: Facts) -> str:
    return f"The agent of node 0 has shown no sign of life for {facts.leader_silent_s:.0f} s."


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
        return [Submit() if facts.newest is not None else Change(changes=_NO_PLACE)]
    if facts.gone:
        return [Change(changes=_NO_PLACE)] if facts.confirmed_gone else []
    if run.ended is not None and facts.now - run.ended > END_PATIENCE_S:
        return [Cancel(why="The run is over, but its agents linger.")]
    return []


def _stopping(facts: Facts) -> list[Step]:
    run, newest = facts.run, facts.newest
    if newest is not None and newest.next == "end":
        return [_end(facts, newest)]
    if run.handle is None:
        return [Submit()] if run.placement is not None and facts.was_prepared else [_stopped(facts)]
    if facts.gone:
        return [_stopped(facts)] if facts.confirmed_gone else []
    deadline = (run.stop_asked or facts.now) + facts.grace_s + STOP_MARGIN_S
    if facts.now >= deadline:
        return [Cancel(why="The gang has not ended within its grace.")]
    return []


def _stopped(facts: Facts, message: str = "") -> Move:
    by = f" by {facts.run.stop_by}" if facts.run.stop_by else ""
    ended = _close(facts, outcome="stopped", reason=Reason.STOPPED_BY_USER, message="Stopped.")
    return Move(
        phase=Phase.STOPPED,
        reason=Reason.STOPPED_BY_USER,
        message=message or f"Stopped{by}.",
        changes={"ended": facts.now, "exit_code": STOPPED_EXIT_CODE, **_NO_PLACE},
        attempts=ended,
    )


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
        message = f"{message} {_sentence(attempt.restart_message)}".strip()
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
        return [_stopped(facts, _outside(facts.observation))]
    message = f"{attempt.message} {_sentence(attempt.restart_message)}".strip()
    reason = _reason_of(attempt, Phase.FAILED)
    ended = attempt.ended or facts.now
    if facts.confirmed_gone:
        changes = {**_next_launch(run), "not_before": ended + attempt.next_delay_s, "told_attempt": attempt.number}
        return _to_queue(facts, Move(phase=_between(attempt), reason=reason, message=message, changes=changes))
    steps: list[Step] = []
    if run.phase is not _between(attempt) and _is_legal(run.phase, _between(attempt)):
        steps.append(
            Move(phase=_between(attempt), reason=reason, message=message, changes={"told_attempt": attempt.number})
        )
    if not facts.gone and facts.now - ended > END_PATIENCE_S:
        steps.append(Cancel(why="The launch was to end for another one, but its agents linger."))
    return steps


def _between(attempt: AttemptRow) -> Phase:
    return Phase.PREEMPTED if attempt.outcome == "preempted" else Phase.RESTARTING


def _next_launch(run: RunRow) -> dict[str, Any]:
    return {"launch": run.launch + 1, **_NO_PLACE}


def _to_queue(facts: Facts, move: Move) -> list[Step]:
    """Let a run wait for the place of its next launch: as RESTARTING, or after preemption as QUEUED."""
    phase = facts.run.phase
    if move.phase is Phase.PREEMPTED:
        queued = replace(move, phase=Phase.QUEUED)
        if phase is Phase.PREEMPTED:
            return [queued]
        return [replace(move, changes={}), replace(queued, attempts=())]
    if phase is Phase.RESTARTING:
        return [Change(changes={**move.changes, "message": move.message}, attempts=move.attempts)]
    return [move]


def _lost(facts: Facts) -> list[Step]:
    """The launch is gone and no leader has said why."""
    observation = facts.observation
    if observation is not None and observation.cancelled:
        return [_stopped(facts, _outside(observation))]
    preempted = facts.run.phase is Phase.PREEMPTED or (observation is not None and observation.preempted)
    reason = _loss_reason(facts, preempted=preempted)
    message = _loss_message(facts, reason)
    decision = decide_restart(facts.policy, facts.used, reason)
    outcome = "preempted" if preempted else "failed"
    closed = _close(facts, outcome=outcome, reason=reason, message=message, restart_message=decision.message)
    if not decision.restart:
        return [_give_up(facts, reason, f"{message} {_sentence(decision.message)}", closed)]
    changes = {
        **_next_launch(facts.run),
        "not_before": facts.now + decision.delay_s,
        "launch_restarts": _counted(facts.run, decision),
    }
    if facts.newest is not None:
        changes["told_attempt"] = facts.newest.number
    phase = Phase.PREEMPTED if preempted else Phase.RESTARTING
    text = f"{message} {_sentence(decision.message)}"
    return _to_queue(facts, Move(phase=phase, reason=reason, message=text, changes=changes, attempts=closed))


def _loss_reason(facts: Facts, *, preempted: bool) -> Reason:
    if preempted:
        return Reason.PREEMPTED
    if facts.storage_fault:
        return Reason.STORAGE
    return Reason.PLATFORM if facts.newest is None else Reason.NODE_LOST


def _give_up(facts: Facts, reason: Reason, message: str, closed: Sequence[AttemptRow]) -> Move:
    changes = {"ended": facts.now, "exit_code": EXIT_CODES[reason], **_NO_PLACE}
    return Move(phase=Phase.FAILED, reason=reason, message=message, changes=changes, attempts=closed)


def _counted(run: RunRow, decision: RestartDecision) -> dict[str, int]:
    budget = str(decision.budget)
    return {**run.launch_restarts, budget: run.launch_restarts.get(budget, 0) + 1}


def _close(facts: Facts, *, outcome: str, reason: Reason, message: str, restart_message: str = "") -> list[AttemptRow]:
    """The newest attempt of a launch that left no result, as far as the server can tell."""
    if facts.newest is None or facts.newest.outcome is not None:
        return []
    return [
        replace(
            facts.newest,
            outcome=outcome,
            reason=reason.value,
            message=message,
            ended=facts.now,
            restart_message=restart_message,
            signature=None,
            hint=hint_for(reason, run=facts.run.id),
        )
    ]


def _loss_message(facts: Facts, reason: Reason) -> str:
    detail = facts.observation.detail if facts.observation is not None else ""
    if reason is Reason.PREEMPTED:
        said = "The backend took the machines away"
    elif facts.leader_silent_s >= facts.leader_patience_s:
        said = f"{_frozen(facts)} Its launch was ended by force"
    elif facts.newest is None:
        said = f"The agents of launch {facts.run.launch} ended before they began an attempt"
    else:
        said = f"The agents of attempt {facts.newest.number} are gone, and left no result"
    if reason is Reason.STORAGE:
        return f"{said}: {facts.storage_fault}."
    words = f"\n{facts.agent_words.strip()}" if facts.agent_words.strip() else ""
    return f"{said}{f' ({detail})' if detail else ''}.{words}"


def _outside(observation: Observation) -> str:
    return f"Ended outside Gangline{f' ({observation.detail})' if observation.detail else ''}."


def _silent(facts: Facts) -> list[Step]:
    """The backend says nothing; the files may still say that the gang moves."""
    if facts.unknown_for_s < UNKNOWN_PATIENCE_S or facts.run.phase is Phase.UNKNOWN:
        return []
    detail = facts.observation.detail if facts.observation is not None else ""
    message = f"The backend has not answered for {facts.unknown_for_s:.0f} s; nothing is decided until it does."
    if not _is_legal(facts.run.phase, Phase.UNKNOWN):
        return []
    return [Move(phase=Phase.UNKNOWN, message=f"{message} {detail}".strip())]


def _alive(facts: Facts) -> list[Step]:
    run, newest = facts.run, facts.newest
    if run.phase is Phase.PREEMPTED:
        return []
    if newest is None:
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
    return f"{ended[-1].message} {_sentence(ended[-1].restart_message)}".strip() if ended else "The gang restarts."


def _pending(facts: Facts) -> list[Step]:
    detail = facts.observation.detail if facts.observation is not None else ""
    if facts.run.phase is Phase.UNKNOWN:
        return [Move(phase=Phase.STARTING, message=detail)]
    is_pending = facts.observation is not None and facts.observation.liveness is Liveness.PENDING
    message = detail if is_pending and detail else facts.run.message
    return [] if message == facts.run.message else [Change(changes={"message": message})]


def _moved(facts: Facts, phase: Phase, message: str) -> list[Step]:
    if facts.run.phase is phase or not _is_legal(facts.run.phase, phase):
        return []
    return [Move(phase=phase, message=message)]


def _is_legal(old: Phase, new: Phase) -> bool:
    return new in TRANSITIONS[old]


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}." if text else ""
