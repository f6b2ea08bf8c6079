"""Runs that need more time than a job has: the next job waits in Slurm for the end of the one at work."""

from __future__ import annotations

import json

import pytest
from tests.slurm.laptop import Laptop, eventually

pytestmark = [pytest.mark.slurm, pytest.mark.faults]

CONTINUE = ("--nodes", "2", "--procs-per-node", "1", "--time-limit", "1m", "--on-time-limit", "continue")
STEPS = """
import gangline, os, pathlib, time
found = gangline.latest_checkpoint()
first = step = found.step if found else 0
print("from", first, flush=True)
run = pathlib.Path(os.environ["GANGLINE_RUN_DIR"])
while step <= first + 3 or not (run / "go").exists():  # no rank leaves while another saves
    step += 1
    time.sleep(0.1)
    stop = gangline.should_stop()
    if stop or step == first + 3:
        with gangline.checkpoint(step) as folder:
            (folder / f"state-{os.environ['RANK']}").write_text(str(step))
    if stop:
        raise SystemExit(0)
"""
NOW = (*CONTINUE, "--time-limit-notice", "45s")
"""Ranks are told within seconds, save and end."""
LATER = (*CONTINUE, "--time-limit-notice", "1s")


def states(laptop: Laptop, run: str, launch: int) -> dict[str, str]:
    """States and reasons of the jobs of one launch, by their numbers."""
    asked = ["squeue", "-h", "-t", "all", "-n", f"{run}.{launch}", "-o", "%i|%T|%r"]
    rows = [line.split("|") for line in laptop.cluster.as_user(asked).stdout.splitlines()]
    return {job: f"{state} {reason}" for job, state, reason in rows}


def waiting_job(laptop: Laptop, run: str, launch: int) -> str:
    """The one that waits for the end of the launch before."""

    def found() -> str | None:
        jobs = states(laptop, run, launch).items()
        return next((job for job, state in jobs if state == "PENDING Dependency"), None)

    return eventually("the next job to wait for the end of this one", found)


def history(laptop: Laptop, run: str) -> str:
    return " ".join(event["message"] for event in json.loads(laptop.gangline("show", run, "--events", "--json")))


def left_queue(laptop: Laptop, run: str, launch: int) -> bool:
    return not any(state.startswith(("PENDING", "RUNNING")) for state in states(laptop, run, launch).values())


def test_a_run_goes_on_in_the_job_that_waited_for_the_end_of_the_first(laptop: Laptop) -> None:
    run = laptop.submit(STEPS, *NOW)
    job = waiting_job(laptop, run, 1)
    laptop.logged(run, "from ", attempt=1)
    assert "from 0" not in laptop.log(run, attempt=1)
    (state,) = [states(laptop, run, 1)]
    assert state == {job: "RUNNING None"}, laptop.describe(run)
    assert f"Job {job} waits for the end of this one" in history(laptop, run)
    laptop.go(run)
    shown = laptop.until(run, "succeeded")
    first, *others = shown["attempts"]
    assert (first["outcome"], first["reason"], first["launch"]) == ("stopped", "time_limit", 0)
    assert [one["launch"] for one in others] == list(range(1, len(others) + 1))
    last = shown["attempts"][-1]["launch"]
    eventually("what nobody needs to leave the queue", lambda: left_queue(laptop, run, last + 1))
    assert not (laptop.run_dir(run) / f"launches/{last + 1:03d}/launch.json").exists()


def test_a_run_that_is_stopped_leaves_no_job_behind(laptop: Laptop) -> None:
    run = laptop.submit(STEPS, *LATER)
    job = waiting_job(laptop, run, 1)
    laptop.gangline("stop", run)
    laptop.until(run, "stopped")
    eventually("what nobody needs to leave the queue", lambda: left_queue(laptop, run, 1))
    eventually("that to be told", lambda: f"Job {job}, which waited" in history(laptop, run))
    assert not (laptop.run_dir(run) / "launches/001/leader.json").exists()


def test_a_job_that_begins_although_the_run_is_over_ends_well_and_starts_nothing(laptop: Laptop) -> None:
    """The server is not there to cancel it."""
    run = laptop.submit(STEPS, *LATER)
    job = waiting_job(laptop, run, 1)
    laptop.kill_server()
    laptop.go(run)
    log = laptop.run_dir(run) / "launches/001/node-000.log"
    eventually("its agents to see that", lambda: log.exists() and "is not needed" in log.read_text())
    eventually("it to be over", lambda: not states(laptop, run, 1).get(job, "").startswith(("PENDING", "RUNNING")))
    assert states(laptop, run, 1).get(job, "COMPLETED").startswith("COMPL")
    laptop.gangline("ps")  # starts another server
    shown = laptop.until(run, "succeeded")
    assert len(shown["attempts"]) == 1
    assert not (laptop.run_dir(run) / "launches/001/job.exit").exists()


def test_a_job_that_begins_while_the_server_is_away_waits_for_it(laptop: Laptop) -> None:
    run = laptop.submit(STEPS, *NOW)
    job = waiting_job(laptop, run, 1)
    laptop.kill_server()
    eventually("the next job to begin", lambda: states(laptop, run, 1).get(job) == "RUNNING None")
    assert not (laptop.run_dir(run) / "attempts/001").exists()
    laptop.gangline("ps")  # starts another server
    laptop.logged(run, "from ", attempt=1)
    assert "from 0" not in laptop.log(run, attempt=1)
    assert states(laptop, run, 1) == {job: "RUNNING None"}, laptop.describe(run)
    laptop.go(run)
    laptop.until(run, "succeeded")


def test_a_run_whose_server_is_away_for_longer_than_its_next_job_waits_goes_on_when_it_is_back(laptop: Laptop) -> None:
    """The job that waited holds no machines for ever: it ends well, having started nothing, and another one is made."""
    file = laptop.home / "pools.yaml"
    pools = json.loads(file.read_text())
    pools["pools"]["lab"]["ahead_wait"] = "2s"
    file.write_text(json.dumps(pools))
    with laptop.client() as client:
        eventually("the pool to be as it is now", lambda: "ahead_wait" in client.pool("lab")["settings"])
    run = laptop.submit(STEPS, *NOW)
    job = waiting_job(laptop, run, 1)
    laptop.kill_server()
    log = laptop.run_dir(run) / "launches/001/node-000.log"
    eventually("it to give up", lambda: log.exists() and "was not needed within 2 s" in log.read_text())
    eventually("it to be over", lambda: not states(laptop, run, 1).get(job, "").startswith(("PENDING", "RUNNING")))
    assert not (laptop.run_dir(run) / "attempts/001").exists()
    laptop.gangline("ps")  # starts another server
    laptop.logged(run, "from ", attempt=1)
    assert "from 0" not in laptop.log(run, attempt=1)
    assert job not in {one for one, state in states(laptop, run, 1).items() if state.startswith("RUNNING")}
    laptop.go(run)
    shown = laptop.until(run, "succeeded")
    assert [one["reason"] for one in shown["attempts"][:1]] == ["time_limit"]


def test_a_run_whose_next_job_somebody_has_cancelled_goes_on_in_another(laptop: Laptop) -> None:
    run = laptop.submit(STEPS, *NOW)
    job = waiting_job(laptop, run, 1)
    laptop.cluster.as_user(["scancel", job])
    laptop.logged(run, "from ", attempt=1)
    assert "from 0" not in laptop.log(run, attempt=1)
    assert [one for one, state in states(laptop, run, 1).items() if state.startswith("RUNNING")] != [job]
    laptop.go(run)
    laptop.until(run, "succeeded")
