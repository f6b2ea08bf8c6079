"""Housekeeping on a cluster: the jobs of this server are listed and judged, and ended when somebody asks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gangline.backends.slurm.housekeeping import Launch, Sight, Survey, decide_jobs
from gangline.backends.slurm.link import Link
from gangline.backends.slurm.parse import parse_queue, render_own_jobs
from gangline.backends.slurm.records import JobRecord
from gangline.backends.slurm.sights import read_sight
from gangline.backends.slurm.states import Standing
from gangline.backends.slurm.tokens import job_name, parse_token
from gangline.domain.errors import Transient
from gangline.domain.gang import Handle
from gangline.domain.pool import PoolJob
from gangline.rundir.home import Home

__all__ = ["Look", "end_job", "survey_jobs"]

_ASK_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Where the server looks."""

    home: Home
    identity: str
    """Of the state folder."""
    mirrored: Callable[[str], float | None]
    """How fresh the mirror of a run is."""
    wall: Callable[[], float]


def survey_jobs(link: Link, look: Look, expected: Mapping[Launch, Handle | None], *, quiet_s: float) -> list[PoolJob]:
    """Every job of Gangline's that Slurm lists, and launches whose job it does not list.

    Args:
        expected: launches that the server counts on.
    Raises:
        Transient, AuthFailed: Slurm gives no answer.
    """
    hello, now = link.hello(), look.wall()
    records = list(parse_queue(link.run(render_own_jobs(hello.user), timeout_s=_ASK_S)).values())
    sights: dict[Launch, Sight] = {}
    for launch in _running(records) & expected.keys():
        run_id, number = launch
        sights[launch] = read_sight(
            look.home.run(run_id),
            number,
            now=now,
            clock_offset_s=hello.clock_offset_s,
            mirrored=look.mirrored(run_id),
        )
    survey = Survey(
        home=look.identity,
        expected={launch: None if handle is None else str(handle.data["job"]) for launch, handle in expected.items()},
        sights=sights,
        now=now + hello.clock_offset_s,
        quiet_s=quiet_s,
    )
    return decide_jobs(records, survey)


def end_job(link: Link, job: PoolJob) -> None:
    """Have Slurm end a job; its name keeps that from one which bears its number by now.

    Raises:
        Transient, AuthFailed: nothing is known of it.
    """
    name = f"--name={job_name(job.run_id, job.launch)}"
    ran = link.run(("scancel", name, job.job), timeout_s=_ASK_S)
    if ran.rc != 0:
        raise Transient(f"Slurm did not end job {job.job}", why=ran.err.strip() or f"scancel ended with {ran.rc}")


def _running(records: list[JobRecord]) -> set[Launch]:
    tokens = [parse_token(one.comment or "") for one in records if one.state.standing is Standing.RUNNING]
    return {(token.run_id, token.launch) for token in tokens if token is not None}
