"""What one look at the Jobs API says of one launch. Pure.

Silence ends nothing. A launch is gone when its job is over, when its own session has no such job, or when another
session of the cluster answers: one whose head was started anew has lost all that ran in it.
"""

from __future__ import annotations

from gangline.backends.ray.api import Job
from gangline.backends.ray.record import DriverState
from gangline.backends.ray.watch import Look
from gangline.domain.gang import Liveness, Observation
from gangline.domain.phase import Reason

__all__ = ["judge"]

_PLATFORM_CODES = frozenset({66, 67, 126, 127})
"""The driver was not started, or has refused to go on: trying it again would give the same."""


def judge(look: Look | None, submission: str, *, session: str, submitted: float, state: DriverState) -> Observation:
    """What is known of a launch.

    Args:
        submission: what Ray knows its job by.
        session: of the cluster that took it.
        submitted: when that was, by the monotonic clock; -inf: an earlier server has done it.
        state: what its driver has said last.
    """
    if look is None:
        return Observation(liveness=Liveness.UNKNOWN, detail="Nobody has looked since the server started.")
    if look.version is None:
        return Observation(liveness=Liveness.UNKNOWN, detail=look.why)
    job = look.jobs.get(submission)
    if job is None and look.began <= submitted:
        return Observation(liveness=Liveness.PENDING, detail="Ray has taken the job.")
    if job is None:
        return Observation(
            liveness=Liveness.GONE, detail=_gone(look.version.session, session), reason=Reason.NODE_LOST, at_fault=()
        )
    return _ended(job) if job.is_over else _lives(job, state)


def _gone(now: str, before: str) -> str:
    if now != before:
        return f"the Ray cluster was started anew ({now}; the launch was in {before})"
    return "its job was deleted from the Ray cluster"


def _lives(job: Job, state: DriverState) -> Observation:
    if state.started:
        return Observation(liveness=Liveness.ALIVE, lost_nodes=state.gone)
    if state.waits is not None:
        return Observation(liveness=Liveness.PENDING, detail=state.waits)
    said = job.message.strip().splitlines()
    waits = said[0] if job.status == "PENDING" and said else "its driver begins"
    return Observation(liveness=Liveness.PENDING, detail=f"Ray has taken the job; {waits}")


def _ended(job: Job) -> Observation:
    if job.status == "STOPPED":
        return Observation(liveness=Liveness.GONE, detail="its Ray job was stopped", cancelled=True)
    if job.status == "SUCCEEDED":
        return Observation(liveness=Liveness.GONE, detail="the agents have ended")
    lines = [line.strip() for line in job.message.strip().splitlines() if line.strip()]
    said = next((line.removeprefix("gangline: ") for line in reversed(lines) if line.startswith("gangline: ")), "")
    text = said or (lines[-1] if lines else "its Ray job has failed")
    reason = Reason.BACKEND_REJECTED if job.exit_code in _PLATFORM_CODES else None
    return Observation(liveness=Liveness.GONE, detail=text[:600], reason=reason)
