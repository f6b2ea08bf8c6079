"""How an attempt ended and what follows: `result.json`. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gangline.agent.attempt import Attempt, Ending, Hang, RankRecord
from gangline.agent.classify import Verdict, decide_port_taken, decide_verdict, exit_status, last_line
from gangline.agent.lastlook import STOPPED
from gangline.agent.launchspec import LaunchSpec
from gangline.agent.watch.places import render_ranks
from gangline.domain.hints import hint_for
from gangline.domain.phase import Budget, Reason
from gangline.domain.restart import Repeated, RestartDecision, decide_restart
from gangline.domain.signals import signal_name
from gangline.domain.signature_talk import LEFT_EARLY
from gangline.domain.spec import OnHang, OnTimeLimit

__all__ = [
    "EXIT_CODES",
    "MOST_FREE_RETRIES",
    "Outcome",
    "Standing",
    "decide_lost_folder",
    "decide_outcome",
    "explain_failure",
    "render_first_failure",
    "render_result",
]

EXIT_CODES: Mapping[Reason, int] = {
    Reason.STOPPED_BY_USER: 130,
    Reason.LEASE_ENDED: 129,
    Reason.PREEMPTED: 143,
    Reason.TIME_LIMIT: 124,
    Reason.STORAGE: 74,
}
"""What `gangline` exits with where no rank has a code of its own; anything else is 71."""
_NO_RANK_CODE = 71
_RAISED_CODE = 1
"""Of a rank that an exception would have ended, had the platform not been faster."""
_SAID_CHARS = 200
_LOST_RUNTIME = "Its runtime ends ranks like this when a process of the job is gone, and none has failed before it."
_MOST_ABSENT = 3
MOST_FREE_RETRIES = 5
"""How often a taken port is answered by another one, for nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How an attempt ended, and what follows."""

    outcome: str
    reason: Reason | None
    message: str
    exit_code: int
    next: str
    """`end`, `restart` (the same agents) or `relaunch` (the server makes new ones)."""
    delay_s: float = 0.0
    budget: Budget | None = None
    restart_message: str = ""
    free_retry: bool = False
    """The restart is paid for by no budget."""
    signature: str | None = None
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where the launch stands when an attempt of it ends."""

    used: Mapping[Budget, int] = field(default_factory=dict)
    """Restarts that each budget has paid for so far."""
    free_retries: int = 0
    """Restarts of this launch that cost nothing, so far."""
    repeated: Repeated = field(default_factory=Repeated)
    """How often attempts have ended like this one; this one counts."""
    lost_nodes: int = 0


def decide_outcome(
    launch: LaunchSpec,
    attempt: Attempt,
    standing: Standing,
    *,
    missing_outputs: Sequence[str] = (),
    newest_step: int | None = None,
) -> Outcome:
    """Decide once no process of the attempt is left.

    Args:
        missing_outputs: declared outputs that are not there; looked at only after a success.
        newest_step: of the newest complete checkpoint; looked at only after a time limit.
    """
    ending = attempt.ending
    cause = ending.cause if ending is not None else "failure"
    if cause == "success":
        return _after_success(launch, standing, missing_outputs)
    if cause == "stop":
        reason = (ending.reason if ending is not None else None) or Reason.STOPPED_BY_USER
        message = ending.message if ending is not None else ""
        return Outcome(outcome="stopped", reason=reason, message=message, exit_code=EXIT_CODES[reason], next="end")
    if ending is not None and cause == "time_limit":
        return _after_time_limit(launch, attempt, ending, used=standing.used, newest_step=newest_step)
    if cause == "preemption":
        verdict = Verdict(reason=Reason.PREEMPTED, message=ending.message if ending is not None else "")
        return _failed(
            launch, attempt, verdict, exit_code=EXIT_CODES[Reason.PREEMPTED], standing=standing, outcome="preempted"
        )
    return _after_failure(launch, attempt, standing)


def decide_lost_folder(path: str, message: str) -> Outcome:
    """The end of an attempt whose run directory went away under it: nothing is left to go on from.

    Args:
        message: why the attempt was ended, if not by its ranks' success.
    """
    what = f"{path} was removed while the ranks ran: what they had written there is lost."
    return Outcome(
        outcome="failed",
        reason=Reason.STORAGE,
        message=f"{what} {message}".strip(),
        exit_code=EXIT_CODES[Reason.STORAGE],
        next="end",
        restart_message="no restart: what the run needs is gone with it",
    )


def render_result(attempt: Attempt, outcome: Outcome) -> dict[str, Any]:
    """The content of `result.json`."""
    failure = attempt.culprit() if outcome.outcome == "failed" else None
    return {
        "version": 1,
        "attempt": attempt.number,
        "launch": attempt.launch,
        "outcome": outcome.outcome,
        "reason": outcome.reason.value if outcome.reason is not None else None,
        "message": outcome.message,
        "exit_code": outcome.exit_code,
        "started": attempt.started,
        "running": attempt.running,
        "ended": attempt.ended,
        "resume": attempt.resume.path or None,
        "resume_step": attempt.resume.step,
        "start_mode": attempt.start_mode,
        "first_failure": None if failure is None else _render_failure(failure),
        "nodes_at_fault": _nodes_at_fault(attempt),
        "ranks": [_render_rank(attempt.ranks[rank], attempt.ending) for rank in sorted(attempt.ranks)],
        "next": outcome.next,
        "next_delay_s": outcome.delay_s,
        "budget": outcome.budget.value if outcome.budget is not None else None,
        "restart_message": outcome.restart_message,
        "signature": outcome.signature,
        "hint": outcome.hint,
    }


def _nodes_at_fault(attempt: Attempt) -> list[dict[str, Any]]:
    """Nodes that the leader knows to have caused the end, besides that of the first failing rank."""
    ending = attempt.ending
    if ending is None:
        return []
    found = dict(ending.nodes)
    if ending.hang is not None and ending.hang.blocked and ending.hang.rank in attempt.ranks:
        found[attempt.ranks[ending.hang.rank].node] = "blocked"
    return [{"node": node, "host": attempt.hosts.get(node, ""), "why": found[node]} for node in sorted(found)]


def _after_success(launch: LaunchSpec, standing: Standing, missing: Sequence[str]) -> Outcome:
    if not missing:
        return Outcome(outcome="succeeded", reason=None, message="All ranks exited with 0.", exit_code=0, next="end")
    message = f"All ranks exited with 0, but declared outputs are not there: {'; '.join(missing)}."
    decision = decide_restart(launch.restarts, standing.used, Reason.STORAGE)
    verdict = Verdict(reason=Reason.STORAGE, message=message, hint=_HINT_OUTPUTS)
    return _with(decision, verdict, exit_code=EXIT_CODES[Reason.STORAGE])


def _after_time_limit(
    launch: LaunchSpec, attempt: Attempt, ending: Ending, *, used: Mapping[Budget, int], newest_step: int | None
) -> Outcome:
    if launch.stop.on_time_limit is not OnTimeLimit.CONTINUE:
        outcome = "stopped" if launch.stop.on_time_limit is OnTimeLimit.STOP else "failed"
        return _time_is_over(ending.message, outcome=outcome, hint=_HINT_TIME_LIMIT.format(run=launch.run_id))
    most, spent = launch.stop.max_continuations, used.get(Budget.CONTINUATION, 0)
    begun = attempt.resume.step
    if newest_step is None or (begun is not None and newest_step <= begun):
        since = "in this attempt" if begun is None else f"since step {begun}"
        message = f"{ending.message} No checkpoint was saved {since}, so that going on would do the same again."
        return _time_is_over(message, hint=_HINT_NO_PROGRESS)
    if most is not None and spent >= most:
        message = f"{ending.message} No continuation is left of --max-continuations {most}."
        return _time_is_over(message, hint=_HINT_TIME_LIMIT.format(run=launch.run_id))
    of = "" if most is None else f" of {most}"
    return Outcome(
        outcome="stopped",
        reason=Reason.TIME_LIMIT,
        message=ending.message,
        exit_code=EXIT_CODES[Reason.TIME_LIMIT],
        next="relaunch" if ending.from_outside or attempt.stuck else "restart",
        budget=Budget.CONTINUATION,
        restart_message=f"goes on from step {newest_step} (continuation {spent + 1}{of})",
    )


def _time_is_over(message: str, *, outcome: str = "failed", hint: str) -> Outcome:
    code = EXIT_CODES[Reason.TIME_LIMIT]
    return Outcome(outcome=outcome, reason=Reason.TIME_LIMIT, message=message, exit_code=code, next="end", hint=hint)


_HINT_TIME_LIMIT = (
    "Go on with `gangline resume {run}`, raise `--time-limit`, or let such runs go on by themselves with "
    "`--on-time-limit continue`."
)
_HINT_OUTPUTS = (
    "See in the logs whether writing them failed and was caught; what is no output of this run has to leave `outputs`."
)
_HINT_STOPPED = (
    "See who stopped it: `kill -STOP`, a scheduler that suspends jobs, a terminal, a debugger. "
    "Nothing is wrong with the code."
)
_HINT_NO_PROGRESS = (
    "Save more often than once in a time limit: ask `gangline.should_stop()` once a step, save when it says yes, and "
    "give `--time-limit-notice` enough time for a step and a save."
)


def _after_failure(launch: LaunchSpec, attempt: Attempt, standing: Standing) -> Outcome:
    failure = attempt.first_failure()
    ending = attempt.ending
    if ending is not None and ending.hang is not None:
        return _after_hang(launch, attempt, ending.hang, standing)
    if ending is not None and ending.reason is not None:
        verdict = Verdict(reason=ending.reason, message=ending.message)
        return _failed(
            launch, attempt, verdict, exit_code=EXIT_CODES.get(ending.reason, _NO_RANK_CODE), standing=standing
        )
    if failure is None:
        verdict = Verdict(reason=Reason.PLATFORM, message="The gang ended, and no rank says why.")
        return _failed(launch, attempt, verdict, exit_code=_NO_RANK_CODE, standing=standing)
    end = failure.end()
    if decide_port_taken(end, attempt.master_port) and standing.free_retries < MOST_FREE_RETRIES:
        return _port_taken(attempt, failure)
    verdict = explain_failure(launch, attempt, failure)
    if _stopped(attempt, failure):
        budget = Budget.INFRASTRUCTURE
        return _failed(launch, attempt, verdict, exit_code=_NO_RANK_CODE, standing=standing, budget=budget)
    raised = failure.ended_by == "platform" and not failure.exit_code
    code = _RAISED_CODE if raised else exit_status(failure.exit_code, failure.signal)
    return _failed(launch, attempt, verdict, exit_code=code, standing=standing)


def explain_failure(launch: LaunchSpec, attempt: Attempt, failure: RankRecord) -> Verdict:
    """Why the first rank failed, as far as all that is known of the attempt tells."""
    verdict = decide_verdict(
        failure.end(), own=launch.signatures, facts={"run": launch.run_id, "python": launch.python}
    )
    if failure.lost_runtime and verdict.reason is Reason.USER_ERROR:
        return Verdict(reason=Reason.COMMUNICATION, message=f"{verdict.message} {_LOST_RUNTIME}")
    left = attempt.left_early()
    if left is None or not failure.lost_a_peer:
        missing = _say_missing(attempt, failure)
        hint = _HINT_STOPPED if _stopped(attempt, failure) else verdict.hint
        return replace(verdict, message=f"{missing} {verdict.message}", hint=hint) if missing else verdict
    who = f"Rank {left.rank} on node {left.node} ({left.host})"
    sentence = LEFT_EARLY.sentence.replace("ended with exit code 0", left.how_it_left)
    message = (
        f"{who} {sentence.replace('another rank', f'rank {failure.rank}')}{last_line(left.log_tail)}. {verdict.message}"
    )
    return Verdict(reason=LEFT_EARLY.reason, message=message, signature=LEFT_EARLY.id, hint=LEFT_EARLY.hint)


def _stopped(attempt: Attempt, failure: RankRecord) -> bool:
    """Whether a rank that others had waited for in vain could not come, as its process was stopped from outside."""
    return any(record.place == STOPPED for record in attempt.absent(failure))


def _say_missing(attempt: Attempt, failure: RankRecord) -> str:
    """Of a collective that timed out: who did not come to it, or who came to which; "" where it is not known."""
    absent = [f"rank {one.rank} on node {one.node} ({one.host}): {one.place}" for one in attempt.absent(failure)]
    if absent:
        more = f" and {len(absent) - _MOST_ABSENT} more" if len(absent) > _MOST_ABSENT else ""
        return f"Missing was {'; '.join(absent[:_MOST_ABSENT])}{more}."
    places: dict[str, list[int]] = {}
    for record in attempt.ranks.values() if failure.waited_in_vain else ():
        if record.place and record.place.startswith("waiting"):
            places.setdefault(record.place, []).append(record.rank)
    if len(places) < 2:  # noqa: PLR2004 - different ones
        return ""
    said = [f"{render_ranks(ranks)} {where}" for where, ranks in sorted(places.items(), key=lambda one: len(one[1]))]
    return f"The ranks were in different calls: {', '.join(said[:_MOST_ABSENT])}."


def render_first_failure(failure: RankRecord, verdict: Verdict) -> dict[str, Any]:
    """The record `first_failure` of the leader's journal: what is known before the attempt is over."""
    known = {"reason": verdict.reason.value, "message": verdict.message, "hint": verdict.hint}
    return {**known, "signature": verdict.signature, "failure": _render_failure(failure)}


def _after_hang(launch: LaunchSpec, attempt: Attempt, hang: Hang, standing: Standing) -> Outcome:
    """A hang is the code's own, unless something from outside held the rank that the others wait for."""
    verdict = Verdict(reason=Reason.HANG, message=hang.message, hint=hang.hint)
    if launch.watch.on_hang is OnHang.FAIL:
        message = "no restart: --on-hang is fail"
        decision = RestartDecision(restart=False, delay_s=0.0, budget=None, message=message)
    else:
        budget = Budget.INFRASTRUCTURE if hang.infrastructure else None
        decision = decide_restart(
            launch.restarts, standing.used, Reason.HANG, repeated=standing.repeated, budget=budget
        )
    return _with(decision, verdict, exit_code=_NO_RANK_CODE, same_agents=not attempt.stuck)


def _port_taken(attempt: Attempt, failure: RankRecord) -> Outcome:
    return Outcome(
        outcome="failed",
        reason=Reason.RENDEZVOUS_FAILED,
        message=f"Port {attempt.master_port} on which the ranks were to meet was taken by another program.",
        exit_code=exit_status(failure.exit_code, failure.signal),
        next="restart",
        restart_message="another port is tried; this restart is not counted",
        free_retry=True,
    )


def _failed(
    launch: LaunchSpec,
    attempt: Attempt,
    verdict: Verdict,
    *,
    exit_code: int,
    standing: Standing,
    outcome: str = "failed",
    budget: Budget | None = None,
) -> Outcome:
    verdict = replace(verdict, hint=verdict.hint or hint_for(verdict.reason, run=launch.run_id))
    decision = decide_restart(launch.restarts, standing.used, verdict.reason, repeated=standing.repeated, budget=budget)
    left = launch.nodes - standing.lost_nodes
    goes_on_smaller = verdict.reason is Reason.NODE_LOST and launch.fewest_nodes <= left < launch.nodes
    if goes_on_smaller and decision.restart:
        decision = replace(decision, message=f"{decision.message}, with {left} of {launch.nodes} nodes")
    same_agents = (goes_on_smaller or verdict.reason not in _ENDS_THE_LAUNCH) and not attempt.stuck
    return _with(decision, verdict, exit_code=exit_code, outcome=outcome, same_agents=same_agents)


_ENDS_THE_LAUNCH = frozenset({Reason.NODE_LOST, Reason.PREEMPTED, Reason.START_TIMEOUT, Reason.UNHEALTHY_NODE})


def _with(
    decision: RestartDecision,
    verdict: Verdict,
    *,
    exit_code: int,
    outcome: str = "failed",
    same_agents: bool = True,
) -> Outcome:
    return Outcome(
        outcome=outcome,
        reason=verdict.reason,
        message=verdict.message,
        exit_code=exit_code,
        next=("restart" if same_agents else "relaunch") if decision.restart else "end",
        delay_s=decision.delay_s,
        budget=decision.budget,
        restart_message=decision.message,
        signature=verdict.signature,
        hint=verdict.hint,
    )


def _render_failure(record: RankRecord) -> dict[str, Any]:
    error = record.error or {}
    return {
        "rank": record.rank,
        "node": record.node,
        "host": record.host,
        "pid": record.pid,
        "exit_code": record.exit_code,
        "signal": record.signal,
        "signal_name": signal_name(record.signal),
        "time": record.failed_at,
        "error_type": error.get("type") or None,
        "error_message": error.get("message"),
        "error_in_log": bool(error.get("in_log")),
        "traceback": error.get("traceback"),
        "causes": error.get("causes") or [],
        "log_tail": record.log_tail,
        "step": record.step,
        "total_steps": record.total,
        "phase": record.phase,
    }


def _render_rank(record: RankRecord, ending: Ending | None) -> dict[str, Any]:
    seen = ending.hang.places.get(record.rank) if ending is not None and ending.hang is not None else None
    names = ("rank", "node", "pid", "exit_code", "signal", "ended_by", "started", "ended", "peak_rss_bytes", "step")
    error = record.error or {}
    said = ": ".join(str(error[key]) for key in ("type", "message") if error.get(key))
    line = said.splitlines()[0][:_SAID_CHARS] if said else None
    return {
        **{name: getattr(record, name) for name in names},
        "phase": record.phase,
        "place": seen or record.place,
        "error": line,
    }
