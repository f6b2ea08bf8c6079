"""Jobs of ours in Slurm that nobody needs, or that do nothing: found, and said why. Pure.

A job is ours by its comment alone; of another server's it is only said that it is there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gangline.backends.slurm.records import JobRecord
from gangline.backends.slurm.states import Standing
from gangline.backends.slurm.tokens import Token, parse_token
from gangline.backends.slurm.waits import explain_wait
from gangline.domain.pool import JobStanding, PoolJob

__all__ = ["Sight", "Survey", "decide_jobs"]

YOUNG_S = 120.0
"""A job that is no older may belong to a submit that is under way."""
SILENT_S = 300.0
"""How long agents show no sign of life before their allocation counts as idle."""
UNSEEN_S = 600.0
"""How long a job runs before the lack of any sign of its agents does."""
LEFT_S = 120.0
"""How long a job outlives its own script."""

Launch = tuple[str, int]
"""Run and number of the launch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What the files of one launch show. None: it is not known."""

    silent_s: float | None = None
    """Since its leader's last sign of life."""
    has_leader: bool = False
    """A leader has shown itself at some time."""
    quiet_s: float | None = None
    """Since the last word in a log, a metric or a checkpoint, while its ranks use no processor; 0 where they do."""
    marked_s: float | None = None
    """Since its batch script has ended."""
    is_fresh: bool = False
    """The mirror holds what there was a moment ago; else nothing is concluded from what is not there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What is known when jobs are judged."""

    home: str
    """Identity of this server's state folder."""
    expected: Mapping[Launch, str | None]
    """Launches that the server counts on, and the job of each; None: it is being submitted."""
    sights: Mapping[Launch, Sight] = field(default_factory=dict)
    now: float
    """By the cluster's clock."""
    quiet_s: float = 1800.0
    """How long a run may make no progress."""


def decide_jobs(records: Sequence[JobRecord], survey: Survey) -> list[PoolJob]:
    """A verdict on each job of Gangline's that is not over, and on each launch whose job Slurm does not even list."""
    live = [record for record in records if record.state.standing is not Standing.ENDED]
    judged = []
    for record in live:
        token = parse_token(record.comment or "")
        if token is not None:
            judged.append(_judge(record, token, survey))
    listed = {record.job for record in records}
    missing = [
        _missing(launch, job) for launch, job in survey.expected.items() if job is not None and job not in listed
    ]
    return sorted(judged, key=lambda one: (len(one.job), one.job)) + missing


def _judge(record: JobRecord, token: Token, survey: Survey) -> PoolJob:
    launch = (token.run_id, token.launch)
    standing, text, fix = JobStanding.FOLLOWED, "", ""
    if token.home != survey.home:
        standing, text = JobStanding.OTHERS, "it belongs to another server of Gangline"
    elif launch not in survey.expected or survey.expected[launch] not in {None, record.job}:
        if _age_s(record, survey.now) >= YOUNG_S:
            standing, text = JobStanding.ORPHAN, _why_orphan(launch, survey)
            fix = "`--end-zombies` ends it."
    else:
        standing, text, fix = _judge_followed(record, launch, survey)
    return PoolJob(
        job=record.job,
        state=record.state.name,
        run_id=token.run_id,
        launch=token.launch,
        since=record.start if record.state.standing is not Standing.PENDING else record.submitted,
        nodes=record.num_nodes,
        standing=standing,
        text=text,
        fix=fix,
    )


def _why_orphan(launch: Launch, survey: Survey) -> str:
    newer = [number for run_id, number in survey.expected if run_id == launch[0]]
    other = survey.expected.get(launch)
    if other is not None:
        return f"its launch has another job, {other}"
    if newer:
        return f"its run goes on with launch {max(newer)}"
    return "no run that is not over counts on it"


def _age_s(record: JobRecord, now: float) -> float:
    return float("inf") if record.submitted is None else now - record.submitted


def _judge_followed(record: JobRecord, launch: Launch, survey: Survey) -> tuple[JobStanding, str, str]:
    if record.state.standing is Standing.PENDING:
        wait = explain_wait(record.reason)
        text = f"{wait.word} ({wait.text})"
        if wait.never:
            return JobStanding.NEVER, text, wait.fix
        return JobStanding.FOLLOWED, text, ""
    sight = survey.sights.get(launch, Sight())
    ran_s = 0.0 if record.start is None else survey.now - record.start
    if record.state.standing is not Standing.RUNNING or not sight.is_fresh:
        return JobStanding.FOLLOWED, "", ""
    idle = _why_idle(sight, ran_s)
    if idle:
        return JobStanding.IDLE, idle, "`--end-zombies` ends it; its run then goes on as after a lost node."
    if sight.quiet_s is not None and min(sight.quiet_s, ran_s) >= survey.quiet_s:
        text = f"no rank has written or computed anything for {_minutes(sight.quiet_s)}"
        return (
            JobStanding.STUCK,
            text,
            f"`gangline stacks {launch[0]}` says where; `gangline stop {launch[0]}` ends it.",
        )
    return JobStanding.FOLLOWED, "", ""


def _why_idle(sight: Sight, ran_s: float) -> str:
    if sight.marked_s is not None and sight.marked_s >= LEFT_S:
        return f"its script ended {_minutes(sight.marked_s)} ago, and Slurm still keeps its nodes"
    if sight.silent_s is not None and min(sight.silent_s, ran_s) >= SILENT_S:
        return f"its agents have shown no sign of life for {_minutes(sight.silent_s)}"
    if not sight.has_leader and ran_s >= UNSEEN_S:
        return f"it has run for {_minutes(ran_s)}, and no agent has shown up"
    return ""


def _minutes(time_s: float) -> str:
    minutes = int(time_s // 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h"  # noqa: PLR2004 - two hours read better so


def _missing(launch: Launch, job: str) -> PoolJob:
    text = "its run counts on it, and Slurm does not list it; whether it has ended is being found out"
    return PoolJob(job=job, state="", run_id=launch[0], launch=launch[1], standing=JobStanding.MISSING, text=text)
