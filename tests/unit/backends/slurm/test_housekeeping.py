from __future__ import annotations

import json
import os

import pytest

from gangline.backends.slurm.housekeeping import Sight, Survey, decide_jobs
from gangline.backends.slurm.records import JobRecord
from gangline.backends.slurm.sights import read_sight
from gangline.backends.slurm.states import parse_state
from gangline.domain.pool import JobStanding
from gangline.rundir.home import Home

HOME = "0123456789ab"
NOW = 100_000.0
ONE = ("one-7k3q", 0)
WELL = Sight(has_leader=True, silent_s=3.0, quiet_s=0.0, is_fresh=True)


def job(number="7", launch=ONE, state="RUNNING", *, home=HOME, **fields):
    given = {"submitted": NOW - 9000.0, "start": NOW - 8000.0, "num_nodes": 2, **fields}
    comment = f"gangline:{home}:{launch[0]}/{launch[1]}"
    return JobRecord(job=number, state=parse_state(state), **{"comment": comment, **given})


def judge(*records, expected=None, sights=None, quiet_s=1800.0):
    survey = Survey(home=HOME, expected=expected or {}, sights=sights or {}, now=NOW, quiet_s=quiet_s)
    return decide_jobs(records, survey)


def test_jobs_that_belong_to_live_runs_are_left_alone():
    (found,) = judge(job(), expected={ONE: "7"}, sights={ONE: WELL})
    assert (found.standing, found.is_zombie, found.nodes, found.since) == (JobStanding.FOLLOWED, False, 2, NOW - 8000.0)


@pytest.mark.parametrize(
    ("expected", "words"),
    [
        ({}, "no run that is not over"),
        ({("one-7k3q", 1): "8"}, "goes on with launch 1"),
        ({ONE: "9"}, "has another job, 9"),
    ],
)
def test_a_job_without_a_run_is_an_orphan(expected, words):
    (found, *_) = judge(job(), expected=expected)
    assert (found.standing, found.is_zombie) == (JobStanding.ORPHAN, True)
    assert words in found.text


def test_a_submit_that_is_under_way_makes_no_orphan():
    assert judge(job(submitted=NOW - 100.0, start=NOW - 90.0))[0].standing is JobStanding.FOLLOWED
    assert judge(job(), expected={ONE: None})[0].standing is JobStanding.FOLLOWED


def test_what_is_over_and_what_is_not_ours_is_not_told_of():
    assert judge(job(state="COMPLETED"), job(comment="my own"), job(comment=None)) == []
    (found,) = judge(job(home="ffffffffffff"))
    assert (found.standing, found.is_zombie) == (JobStanding.OTHERS, False)


@pytest.mark.parametrize(
    ("sight", "start", "words"),
    [
        (Sight(has_leader=True, silent_s=600.0, is_fresh=True), NOW - 8000.0, "no sign of life for 10 min"),
        (Sight(is_fresh=True), NOW - 900.0, "has run for 15 min, and no agent"),
        (Sight(has_leader=True, silent_s=9.0, marked_s=180.0, is_fresh=True), NOW - 900.0, "script ended 3 min ago"),
    ],
)
def test_an_allocation_without_agents_is_idle(sight, start, words):
    (found,) = judge(job(start=start), expected={ONE: "7"}, sights={ONE: sight})
    assert (found.standing, found.is_zombie) == (JobStanding.IDLE, True)
    assert words in found.text
    stale = Sight(has_leader=sight.has_leader, silent_s=sight.silent_s, marked_s=sight.marked_s)
    assert judge(job(start=start), expected={ONE: "7"}, sights={ONE: stale})[0].standing is JobStanding.FOLLOWED


def test_a_job_that_has_just_begun_again_is_not_idle():
    sight = Sight(has_leader=True, silent_s=4000.0, quiet_s=4000.0, is_fresh=True)
    assert judge(job(start=NOW - 60.0), expected={ONE: "7"}, sights={ONE: sight})[0].standing is JobStanding.FOLLOWED


def test_a_run_without_progress_is_told_of_and_not_ended():
    sight = Sight(has_leader=True, silent_s=3.0, quiet_s=7200.0, is_fresh=True)
    (found,) = judge(job(), expected={ONE: "7"}, sights={ONE: sight})
    assert (found.standing, found.is_zombie) == (JobStanding.STUCK, False)
    assert "2 h" in found.text
    assert "gangline stacks one-7k3q" in found.fix
    assert judge(job(), expected={ONE: "7"}, sights={ONE: sight}, quiet_s=7300.0)[0].standing is JobStanding.FOLLOWED


def test_a_job_that_can_never_start_is_told_of():
    (found,) = judge(job(state="PENDING", reason="PartitionTimeLimit", start=None), expected={ONE: "7"})
    assert found.standing is JobStanding.NEVER
    assert "Lower --time-limit" in found.fix
    assert found.since == NOW - 9000.0
    assert judge(job(state="PENDING", reason="Priority"), expected={ONE: "7"})[0].standing is JobStanding.FOLLOWED


def test_a_run_without_a_job_is_told_of():
    found = judge(job("9", ("two-9x9x", 0)), expected={ONE: "7", ("two-9x9x", 0): "9", ("three-1a1a", 0): None})
    assert [(one.job, one.standing) for one in found] == [("9", JobStanding.FOLLOWED), ("7", JobStanding.MISSING)]


def test_a_job_that_has_just_ended_is_not_missing():
    assert judge(job(state="COMPLETED"), expected={ONE: "7"}) == []


def sample(cpu, use_percent=None):
    devices = [] if use_percent is None else [{"id": "0", "use_percent": use_percent}]
    return json.dumps({"kind": "sample", "ranks": {"0": {"cpu": cpu}}, "devices": devices}) + "\n"


@pytest.mark.parametrize(
    ("samples", "quiet"),
    [
        ("", 5000.0),
        (sample(0.001), 5000.0),
        (sample(0.9), 0.0),
        (sample(0.9) + sample(0.0), 5000.0),
        (sample(0.0, 40), 0.0),
    ],
)
def test_what_the_files_of_a_launch_show(tmp_path, samples, quiet):
    run = Home(tmp_path).run("one-7k3q")
    assert read_sight(run, 0, now=NOW, clock_offset_s=0.0, mirrored=None) == Sight()
    attempt = run.attempt(0)
    attempt.node(0).mkdir(parents=True)
    attempt.system(0).write_text(samples)
    run.launch(0).path.mkdir(parents=True)
    for path, age_s in ((attempt.log(0), 5000.0), (attempt.gang, 9000.0), (run.launch(0).alive, -20.0)):
        path.write_text("x")
        os.utime(path, (NOW - age_s, NOW - age_s))
    (run.launch(0).path / "job.exit").write_text(f"0 0 {NOW - 30.0:.0f}\n")
    sight = read_sight(run, 0, now=NOW, clock_offset_s=50.0, mirrored=NOW - 10.0)
    assert sight == Sight(has_leader=True, silent_s=30.0, quiet_s=quiet, marked_s=80.0, is_fresh=True)
    assert not read_sight(run, 0, now=NOW, clock_offset_s=50.0, mirrored=NOW - 70.0).is_fresh
