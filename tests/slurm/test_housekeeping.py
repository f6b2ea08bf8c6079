"""Jobs on the real cluster that nobody needs or that do nothing, and work folders that cannot be used."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.slurm.cluster import Cluster
from tests.slurm.laptop import HOLD, Laptop, eventually

from gangline.backends.slurm.session import Session
from gangline.backends.slurm.sweep import Look, end_job, survey_jobs
from gangline.backends.slurm.tokens import Token, job_name
from gangline.domain.gang import Handle
from gangline.domain.pool import JobStanding, PoolJob, SlurmPool
from gangline.rundir.home import Home

pytestmark = [pytest.mark.slurm, pytest.mark.faults]

OURS, THEIRS = "0123456789ab", "ba9876543210"
LATER_S = 900.0
"""How far ahead the clock of whoever looks is, as nobody is judged when he is young."""


@pytest.fixture
def session(cluster: Cluster, tmp_path: Path) -> Iterator[Session]:
    options = ("-F", str(cluster.ssh_config))
    session = Session(
        SlurmPool(name="lab", work=cluster.work, ssh="bastion", ssh_options=options),
        Home(tmp_path / "home").create().path,
    )
    yield session
    session.close()


def make_job(cluster: Cluster, name: str, *options: str, home: str = OURS, script: str = "sleep 300") -> str:
    token = Token(home=home, run_id=f"{name}-7k3q", launch=0)
    words = [f"--job-name={job_name(token.run_id, 0)}", f"--comment={token}", "--output=/dev/null", *options]
    return cluster.as_user(["sbatch", "--parsable", *words, "--wrap", script]).stdout.strip()


def test_every_kind_of_job_that_somebody_should_look_at_is_named(
    cluster: Cluster, session: Session, tmp_path: Path
) -> None:
    """A job without a run, a run without a job, an allocation without agents; what never starts, what is another's."""
    bad = make_job(cluster, "bad", script="exit 1")
    jobs = {name: make_job(cluster, name) for name in ("orphan", "idle")}
    jobs["others"] = make_job(cluster, "others", home=THEIRS)
    eventually("the first to have failed", lambda: cluster.job_state(bad) == "FAILED")
    jobs["never"] = make_job(cluster, "never", f"--dependency=afterok:{bad}")
    eventually("all to run", lambda: all(cluster.job_state(jobs[name]) == "RUNNING" for name in ("orphan", "idle")))
    expected = {
        (f"{name}-7k3q", 0): Handle(backend="slurm", version=1, data={"job": job})
        for name, job in {**jobs, "missing": "99999"}.items()
        if name in {"idle", "never", "missing"}
    }

    def look() -> dict[str, PoolJob]:
        def later() -> float:
            return time.time() + LATER_S

        where = Look(home=Home(tmp_path / "home"), identity=OURS, wall=later, mirrored=lambda _: later())
        return {job.run_id.partition("-")[0]: job for job in survey_jobs(session, where, expected, quiet_s=1800.0)}

    eventually("that which cannot start to be known", lambda: look()["never"].standing is JobStanding.NEVER)
    found = look()
    assert {name: job.standing.value for name, job in found.items()} == {name: name for name in (*jobs, "missing")}
    assert {name: found[name].job for name in jobs} == jobs
    assert [name for name, job in found.items() if job.is_zombie] == ["orphan", "idle"]
    assert "no agent has shown up" in found["idle"].text
    end_job(session, replace(found["idle"], job=jobs["orphan"]))  # a number that is another job's by now
    assert cluster.job_state(jobs["orphan"]) == "RUNNING"
    end_job(session, found["orphan"])
    eventually("it to end", lambda: cluster.job_state(jobs["orphan"]) == "CANCELLED")
    assert cluster.job_state(jobs["idle"]) == "RUNNING"


def standings(laptop: Laptop, *options: str) -> dict[str, Any]:
    listed = json.loads(laptop.gangline("pools", "jobs", "lab", "--json", *options))
    return {job["run"]: job for job in listed}


def test_a_run_whose_ranks_do_nothing_is_named_and_left_alone(laptop: Laptop) -> None:
    run = laptop.submit("import time\nprint('up', flush=True)\ntime.sleep(600)", "--nodes", "1")
    laptop.logged(run, "up")
    assert standings(laptop)[run]["standing"] == "followed"
    eventually("it to be called stuck", lambda: standings(laptop, "--quiet", "2s")[run]["standing"] == "stuck")
    assert f"gangline stacks {run}" in standings(laptop, "--quiet", "2s")[run]["fix"]
    assert "0 jobs ended" in laptop.gangline("pools", "jobs", "lab", "--end-zombies")
    assert laptop.show(run)["phase"] == "running"
    laptop.gangline("stop", run)


def test_a_work_folder_that_cannot_be_used_is_named(laptop: Laptop) -> None:
    """S6: nothing is submitted, runs say the path and why, and start once it is put right. Nodes may see less."""
    cluster, file = laptop.cluster, laptop.home / "pools.yaml"
    closed = f"{cluster.work}/closed"
    cluster.as_user(["mkdir", "-p", "-m", "500", closed])
    works = {"none": "/none/of/it", "closed": closed, "unseen": "/tmp/gangline-work"}
    pools = json.loads(file.read_text())
    lab = pools["pools"]["lab"]
    pools["pools"] |= {name: {**lab, "work": work} for name, work in works.items()}
    file.write_text(json.dumps(pools))
    runs = {name: laptop.submit("print('hello')", "--pool", name, "--nodes", "1") for name in works}
    told = laptop.until(runs["unseen"], "failed")["message"]
    assert re.search(rf"signal 53: .*{works['unseen']}/.*/job.log cannot be written there", told), told
    for name in ("none", "closed"):
        eventually("the path to be named", lambda name=name: f"`{works[name]}`" in laptop.show(runs[name])["message"])
        assert "Permission denied" in laptop.show(runs[name])["message"]
        assert laptop.show(runs[name])["phase"] == "queued"
        assert f"`{works[name]}`" in laptop.gangline("pools", "doctor", name, rc=1)
        assert not laptop.jobs(runs[name])
    laptop.gangline("stop", runs["none"])
    cluster.as_user(["chmod", "700", closed])
    laptop.gangline("pools", "doctor", "closed")
    laptop.until(runs["closed"], "succeeded")


def test_a_job_that_dies_as_its_folder_is_gone_is_explained(laptop: Laptop) -> None:
    """S6: Slurm can open no log, so that the job ends within a second, with signal 53 and without a word."""
    keeps = laptop.submit(HOLD, "--nodes", "4", "--gpus-per-node", "8", "--procs-per-node", "1")
    laptop.logged(keeps, "up", 3)
    run = laptop.submit("print('hello')", "--nodes", "4", "--gpus-per-node", "8", "--max-infra-restarts", "0")
    eventually("it to wait in Slurm", lambda: laptop.jobs(run))
    laptop.cluster.as_user(["rm", "-rf", f"{laptop.cluster.work}/{laptop.home.name}/runs/{run}"])
    laptop.go(keeps)
    told = laptop.until(run, "failed")["message"]
    assert f"runs/{run}/launches/000/job.log" in told, laptop.describe(run)
