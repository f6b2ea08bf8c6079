"""What goes wrong on a real cluster while a run lives there, and must not touch the run."""

from __future__ import annotations

import re

import pytest
from tests.slurm.laptop import HOLD, Laptop, eventually
from tests.slurm.test_interventions import SAVING

pytestmark = [pytest.mark.slurm, pytest.mark.faults]


def counts_without_a_gap(log: str) -> bool:
    counts = [int(found) for found in re.findall(r"^count (\d+)$", log, re.MULTILINE)]
    return counts == list(range(1, len(counts) + 1)) and len(counts) > 5


def test_a_run_lives_through_the_outage_of_everything_else(laptop: Laptop):
    cluster = laptop.cluster
    run = laptop.submit(HOLD, "--nodes", "2")
    laptop.logged(run, "up", 1)

    cluster.stop_ctld()
    laptop.grows(run)
    assert laptop.show(run)["phase"] == "running", laptop.describe(run)
    cluster.start_ctld()

    cluster.kill_slurmd("node02")
    laptop.grows(run, 1)
    cluster.start_slurmd("node02")

    cluster.stop_bastion()
    eventually("the connection to be missed", lambda: pool_state(laptop) == "unreachable")
    assert laptop.show(run)["phase"] == "running", laptop.describe(run)
    waits = laptop.submit("print('hello')")
    whole = "Connection refused"
    eventually("a sentence", lambda: "cannot be reached now" in laptop.show(waits)["message"])
    assert whole not in laptop.gangline("ps", "--json"), "what ssh says is said once, of the pool"
    assert laptop.gangline("pools").count(whole) == 1
    laptop.gangline("stop", waits)
    cluster.start_bastion()
    laptop.grows(run)

    cluster.drain("node01")
    cluster.restart_bastion()
    laptop.kill_server()
    laptop.gangline("ps")  # starts another
    laptop.grows(run)

    laptop.go(run)
    shown = laptop.until(run, "succeeded")
    assert len(shown["attempts"]) == 1, laptop.describe(run)
    assert "rank 1 done" in laptop.log(run, 1)
    for rank in (0, 1):
        counts = [int(found) for found in re.findall(r"^count (\d+)$", laptop.log(run, rank), re.MULTILINE)]
        assert counts == list(range(1, len(counts) + 1))


def test_a_run_ends_while_nobody_sees_it(laptop: Laptop):
    """Neither the server, nor the controller: what the agents have left says how."""
    run = laptop.submit(HOLD, "--nodes", "2")
    laptop.logged(run, "up", 1)
    laptop.cluster.stop_ctld()
    laptop.kill_server()
    laptop.go(run)
    result = laptop.run_dir(run) / "attempts" / "0" / "result.json"
    eventually("the leader's word", result.exists)
    laptop.cluster.start_ctld()
    shown = laptop.until(run, "succeeded")
    assert len(shown["attempts"]) == 1, laptop.describe(run)
    assert "rank 1 done" in laptop.log(run, 1)


def test_a_run_is_submitted_while_the_controller_is_dead(laptop: Laptop):
    """It waits, says why, and is started once."""
    laptop.cluster.stop_ctld()
    run = laptop.submit("print('hello', flush=True)", "--nodes", "1")
    eventually("the reason", lambda: "contact slurm controller" in str(laptop.show(run)["message"]))
    laptop.cluster.start_ctld()
    laptop.until(run, "succeeded")
    assert len(laptop.jobs(run)) == 1


def test_slurm_gives_a_node_up_whose_ranks_still_run(laptop: Laptop):
    """They end before the run starts elsewhere. The other agent was only told to end; Slurm knows why.

    Also where somebody had allowed Slurm to put the job back, which is then no preemption.
    """
    runs = [laptop.submit(HOLD, "--nodes", "2", "--restart-backoff", "0.1s") for _ in range(2)]
    for run in runs:
        laptop.logged(run, "up", 1)
        assert "node02" in {node["host"] for node in laptop.until(run, "running")["attempts"][0]["nodes"]}
    laptop.cluster.on("head", ["scontrol", "update", f"JobId={laptop.job(runs[1])}", "Requeue=1"])
    laptop.cluster.kill_slurmd("node02")
    for run in runs:
        laptop.logged(run, "of attempt 1 up", 1, attempt=1)
        laptop.go(run)
        shown = laptop.until(run, "succeeded")
        assert len(shown["attempts"]) == 2
        lost = shown["attempts"][0]
        assert (lost["outcome"], lost["reason"]) == ("failed", "node_lost"), laptop.describe(run)
        assert "(infrastructure)" in lost["restart_message"]
        assert "node02" not in {node["host"] for node in shown["attempts"][1]["nodes"]}
    assert laptop.cluster.on("node02", ["pgrep", "-u", laptop.cluster.user], check=False).stdout == ""


def test_runs_end_unseen_and_are_forgotten_where_nobody_keeps_accounts(laptop: Laptop):
    """What they have left says how."""
    script = HOLD + "\nsys.exit(int(os.environ['CODE']))\n"
    codes = {laptop.submit(script, "--nodes", "1", "--env", f"CODE={code}"): code for code in (0, 7)}
    jobs = [laptop.job(run) for run in codes]
    for run in codes:
        laptop.logged(run, "up")
    laptop.kill_server()
    for run in codes:
        laptop.go(run)
    eventually("the controller to forget both", lambda: not any(map(laptop.cluster.job_state, jobs)))
    laptop.gangline("ps")  # starts another server
    for run, code in codes.items():
        shown = laptop.until(run, "failed" if code else "succeeded")
        assert shown["exit_code"] == code, laptop.describe(run)
        assert len(shown["attempts"]) == 1
        assert not laptop.jobs(run), "no other job was made"


def test_a_controller_that_loses_its_state_costs_one_restart(laptop: Laptop):
    """Its nodes end what it does not know; one new job is made, never two, under a number that was given before."""
    run = laptop.submit(SAVING, "--nodes", "2", "--procs-per-node", "1", "--restart-backoff", "0.1s")
    laptop.logged(run, "saved 3")
    laptop.cluster.forget_all()
    eventually("its job to be called missing", lambda: '"missing"' in laptop.gangline("pools", "jobs", "lab", "--json"))
    most = 0

    def has_begun_again() -> bool:
        nonlocal most
        most = max(most, len([state for state in laptop.jobs(run).values() if state in {"PENDING", "RUNNING"}]))
        return "from " in laptop.log(run, attempt=1)

    eventually("the run to go on", has_begun_again, within_s=180)
    assert "from 0" not in laptop.log(run, attempt=1)
    laptop.logged(run, "saved ", attempt=1)  # a rank that saw `go` earlier would be missed at that checkpoint
    laptop.go(run)
    shown = laptop.until(run, "succeeded")
    assert [attempt["launch"] for attempt in shown["attempts"]] == [0, 1], laptop.describe(run)
    assert most == 1


def pool_state(laptop: Laptop) -> str:
    with laptop.client() as client:
        (pool,) = [pool for pool in client.pools() if pool["name"] == "lab"]
    return pool["state"]
