"""Accounts as slurmdbd keeps them: what is true of jobs that the queue has forgotten, and whose account may be used."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.slurm.cluster import Cluster, wait_for
from tests.slurm.laptop import HOLD, Laptop, eventually
from tests.slurm.test_poll_stubs import Ferry

from gangline.backends.slurm.poll import Poller
from gangline.backends.slurm.session import Session
from gangline.backends.slurm.tokens import Token, job_name
from gangline.domain.gang import Handle, Liveness, Observation
from gangline.domain.phase import Reason
from gangline.domain.pool import SlurmPool
from gangline.rundir.home import Home
from gangline.server.clock import SystemClock

pytestmark = [pytest.mark.slurm, pytest.mark.slurmdbd]

SQL = "UPDATE slurm_acct.lab_job_table SET state = {state}, exit_code = {status} WHERE time_end > 0 AND id_job = {job}"
"""As slurmctld enters it where control groups limit memory: the kernel kills, and slurmstepd reports `0:125`. Machines
in namespaces have no control groups of their own to write to, so this row alone is written by the test; what Slurm does
without them is real: `test_a_run_that_slurm_kills_for_its_memory`."""


class Follower:
    """Follows jobs that nobody's agents are in: only Slurm can tell how they ended."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self.clock = cluster, SystemClock()
        options = ("-F", str(cluster.ssh_config))
        pool = SlurmPool(name="lab", work=f"{cluster.work}/{folder.name}", ssh="bastion", ssh_options=options)
        self.session = Session(pool, folder / "home")
        home = Home(folder / "home").create()
        self.poller = Poller(link=self.session, pool=pool, ferry=Ferry(), home=home, clock=self.clock)

    def submit(self, name: str, script: str) -> Handle:
        token = Token(home="0123456789ab", run_id=f"{name}-7k3q", launch=0)
        words = [f"--job-name={job_name(token.run_id, 0)}", f"--comment={token}", "--no-requeue", "--output=/dev/null"]
        job = self.cluster.as_user(["sbatch", "--parsable", *words, "--wrap", script]).stdout.strip()
        data = {"job": job, "token": str(token), "submitted": self.clock.now(), "cluster": "lab", "job_dir": "/w/l"}
        return Handle(backend="slurm", version=1, data=data)

    def ends(self, handles: dict[str, Handle]) -> dict[str, Observation]:
        def are_gone() -> bool:
            self.poller.observe(list(handles.values()))
            self.poller.poll()
            self.poller.turn()
            seen = self.poller.observe(list(handles.values()))
            return all(one.liveness is Liveness.GONE for one in seen.values())

        wait_for("the ends of all jobs", are_gone, lambda: str(self.poller.observe(list(handles.values()))))
        return dict(zip(handles, self.poller.observe(list(handles.values())).values(), strict=True))


@pytest.fixture
def follower(accounting: Cluster, tmp_path: Path) -> Iterator[Follower]:
    follower = Follower(accounting, tmp_path)
    yield follower
    follower.session.close()


def test_accounting_tells_how_jobs_ended_that_the_queue_has_forgotten(follower: Follower) -> None:
    cluster = follower.cluster
    jobs = {
        "well": follower.submit("well", "true"),
        "code": follower.submit("code", "exit 7"),
        "killed": follower.submit("killed", "kill -9 $$"),
        "time": follower.submit("time", "sleep 300"),
        "memory": follower.submit("memory", "exit 1"),
        "cancelled": follower.submit("cancelled", "sleep 300"),
        "mine": follower.submit("mine", "sleep 300"),
    }
    number = {name: str(handle.data["job"]) for name, handle in jobs.items()}
    for name in ("cancelled", "mine", "time"):
        eventually("the job to run", lambda name=name: cluster.job_state(number[name]) == "RUNNING")
    cluster.on("head", ["scancel", number["cancelled"]])
    cluster.as_user(["scancel", number["mine"]])
    follower.poller.cancelling(jobs["mine"])
    # Limits count in minutes, and are looked at twice in one: an end of now is as much as a limit that was reached.
    cluster.on("head", ["scontrol", "update", f"JobId={number['time']}", "EndTime=now"])
    eventually("all to be over and forgotten", lambda: not any(map(cluster.job_state, number.values())))
    enter = SQL.format(job=number["memory"], state=11, status=125)
    cluster.on("head", ["mariadb", "-S", "/run/mysqld/mysqld.sock", "-e", enter])

    seen = follower.ends(jobs)
    assert {name: (one.reason, one.cancelled) for name, one in seen.items()} == {
        "well": (None, False),
        "code": (None, False),
        "killed": (Reason.KILLED, False),
        "time": (Reason.TIME_LIMIT, False),
        "memory": (Reason.OUT_OF_MEMORY, False),
        "cancelled": (None, True),
        "mine": (None, False),
    }
    assert "exit code 7" in seen["code"].detail
    assert seen["cancelled"].detail.endswith("was cancelled by root")


def test_whoever_cancelled_a_run_is_known_long_after(accounting_laptop: Laptop) -> None:
    """Nobody followed it when it ended, and the queue knows it no longer."""
    laptop, cluster = accounting_laptop, accounting_laptop.cluster
    run = laptop.submit(HOLD, "--nodes", "2")
    laptop.logged(run, "up", 1)
    job = laptop.job(run)
    laptop.kill_server()
    cluster.on("head", ["scancel", job])
    eventually("it to be over and forgotten", lambda: not cluster.job_state(job))
    laptop.gangline("ps")  # starts another server
    shown = laptop.until(run, "failed", "stopped")
    assert "was cancelled by root" in shown["message"], laptop.describe(run)
    assert not laptop.jobs(run), "it was not started again"


def test_only_accounts_of_ones_own_are_taken(accounting_laptop: Laptop) -> None:
    laptop = accounting_laptop
    (laptop.folder / "train.py").write_text("print('hello', flush=True)")
    submit = ("submit", "--pool", "lab", "--json")
    for option, value in (("--account", "others"), ("--qos", "urgent")):
        said = laptop.refused(*submit, option, value, "train.py")
        assert f"Invalid {option.removeprefix('--')}" in said
        assert "sacctmgr show assoc" in said
    found = laptop.gangline("pools", "doctor", "lab")
    assert "sacct answers (accounting_storage/slurmdbd)" in found
    run = laptop.submit("print('hello', flush=True)", "--account", "lab", "--qos", "normal")
    laptop.until(run, "succeeded")


def test_a_run_that_slurm_kills_for_its_memory_says_so_with_figures(accounting_laptop: Laptop) -> None:
    laptop = accounting_laptop
    script = "import time\nprint('up', flush=True)\ntaken = bytearray(600 << 20)\ntime.sleep(300)"
    run = laptop.submit(script, "--nodes", "1", "--memory", "300MiB", "--max-infra-restarts", "0")
    shown = laptop.until(run, "failed")
    assert shown["reason"] == "out_of_memory", laptop.describe(run)
    assert "MiB of memory on node01, and had asked for 300 MiB" in shown["message"]
