"""What people and Slurm itself do to the jobs of runs."""

from __future__ import annotations

import pytest
from tests.slurm.laptop import HOLD, Laptop, eventually

pytestmark = [pytest.mark.slurm, pytest.mark.faults]

SAVING = """
import gangline, os, pathlib, time
found = gangline.latest_checkpoint()
first = found.step if found else 0
print("from", first, flush=True)
run = pathlib.Path(os.environ["GANGLINE_RUN_DIR"])
step = first
while not (run / "go").exists():
    step += 1
    time.sleep(0.1)
    if gangline.should_stop() or step == first + 3:
        with gangline.checkpoint(step) as folder:
            (folder / "state").write_text(str(step))
        print("saved", step, flush=True)
    if gangline.should_stop():
        raise SystemExit(0)
"""


def test_jobs_that_somebody_cancels_end_their_runs(laptop: Laptop):
    """H4: whoever waits is told; one of them has begun, the other one waits for its nodes."""
    run = laptop.submit(HOLD, "--nodes", "2")
    laptop.logged(run, "up", 1)
    waiting = laptop.submit(HOLD, "--nodes", "4", "--gpus-per-node", "8")
    eventually("the second job", lambda: laptop.jobs(waiting))
    laptop.cluster.as_user(["scancel", laptop.job(run), laptop.job(waiting)])
    for each in (run, waiting):
        shown = laptop.until(each, "failed", "stopped")
        assert "was cancelled by" in shown["message"], laptop.describe(each)
        for attempt in shown["attempts"]:
            assert (attempt["outcome"], attempt["reason"]) == ("stopped", "stopped_by_user")
            assert "was cancelled by" in attempt["message"]
        assert shown["exit_code"] != 0
        laptop.gangline("wait", each, rc=shown["exit_code"])


def test_a_job_that_is_requeued_by_hand_goes_on_from_its_checkpoint(laptop: Laptop):
    run = laptop.submit(SAVING, "--nodes", "1")
    laptop.logged(run, "saved 3")
    job = laptop.job(run)
    laptop.cluster.on("head", ["scontrol", "update", f"JobId={job}", "Requeue=1"])
    laptop.cluster.on("head", ["scontrol", "requeue", job])
    laptop.logged(run, "from ", attempt=1)
    assert "from 0" not in laptop.log(run, attempt=1)
    laptop.go(run)
    shown = laptop.until(run, "succeeded")
    assert shown["attempts"][0]["outcome"] == "preempted"


def test_a_requeue_of_agents_that_can_say_nothing_is_no_loss_of_a_machine(laptop: Laptop):
    """Slurm kills them before their ranks have ended. The budget for lost machines, which is empty, does not pay."""
    script = f"import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n{HOLD}"
    run = laptop.submit(script, "--nodes", "1", "--max-infra-restarts", "0")
    laptop.logged(run, "up")
    job = laptop.job(run)
    laptop.cluster.on("head", ["scontrol", "update", f"JobId={job}", "Requeue=1"])
    laptop.cluster.on("head", ["scontrol", "requeue", job])
    laptop.logged(run, "of attempt 1 up", attempt=1)
    laptop.go(run)
    shown = laptop.until(run, "succeeded")
    first = shown["attempts"][0]
    assert (first["outcome"], first["reason"]) == ("preempted", "preempted"), laptop.describe(run)
    assert "scontrol requeue" in first["message"] or "(preemption)" in first["restart_message"]
    assert laptop.jobs(run).keys() == {job}


def test_time_that_is_given_or_taken_is_noticed_by_the_ranks(laptop: Laptop):
    run = laptop.submit(SAVING, "--nodes", "1", "--time-limit", "1h", "--time-limit-notice", "55s")
    laptop.logged(run, "saved 3")
    change = ["scontrol", "update", f"JobId={laptop.job(run)}"]
    laptop.cluster.on("head", [*change, "TimeLimit=120"])
    eventually(
        "the agents to know of more time",
        lambda: "it ends in 7" in " ".join(laptop.gangline("show", run).split()),
    )
    laptop.cluster.on("head", [*change, "TimeLimit=1"])
    shown = laptop.until(run, "failed")
    assert shown["reason"] == "time_limit", laptop.describe(run)
    assert laptop.log(run).count("saved") == 2, "the rank was told, and saved"


def test_a_drained_node_makes_a_run_wait_and_say_so(laptop: Laptop):
    laptop.cluster.drain("node04", "memory is broken")
    run = laptop.submit("print('hello', flush=True)", "--nodes", "4")
    eventually("the reason", lambda: "node" in laptop.show(run)["message"].lower())
    assert laptop.show(run)["phase"] == "queued"
    laptop.cluster.resume("node04")
    laptop.until(run, "succeeded")


def test_a_preempted_run_saves_and_goes_on_when_there_is_room(laptop: Laptop):
    alone = ["--nodes", "1", "--procs-per-node", "1", "--gpus-per-node", "8"]
    run = laptop.submit(SAVING, *alone, "--partition", "spot")
    laptop.logged(run, "saved 3")
    whole = ["sbatch", "--parsable", "-pmain", "-N4", "--gpus-per-node=8", "--wrap", "sleep 3"]
    job = laptop.cluster.as_user(whole).stdout.strip()
    eventually("the urgent job to run", lambda: laptop.cluster.job_state(job) in {"RUNNING", "COMPLETED"})
    laptop.logged(run, "from ", attempt=1)
    assert "from 0" not in laptop.log(run, attempt=1)
    laptop.go(run)
    shown = laptop.until(run, "succeeded")
    assert [attempt["outcome"] for attempt in shown["attempts"]] == ["preempted", "succeeded"]
