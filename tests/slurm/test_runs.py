"""Gangs of real ranks on the real cluster, over the bastion, by the command line."""

from __future__ import annotations

import json

import pytest
from tests.slurm.cluster import Cluster
from tests.slurm.laptop import HOLD, Laptop, eventually

pytestmark = [pytest.mark.slurm, pytest.mark.torch]

TORCH = """
import os, pathlib, socket, time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([float(dist.get_rank())])
dist.all_reduce(total)
print("sum", total.item(), "on", socket.gethostname(), "with", os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
while not (pathlib.Path(os.environ["GANGLINE_RUN_DIR"]) / "go").exists():
    time.sleep(0.05)
dist.barrier()
dist.destroy_process_group()
"""


def test_a_gang_trains_over_the_bastion(laptop: Laptop):
    run = laptop.submit(TORCH, "--nodes", "2", "--procs-per-node", "2", "--gpus-per-node", "2")
    for rank, node in enumerate(["node01", "node01", "node02", "node02"]):
        laptop.logged(run, f"sum 6.0 on {node} with 0,1", rank)
    assert "sum 6.0 on node02" in laptop.gangline("logs", run, "--rank", "3")
    assert laptop.show(run)["phase"] == "running"
    assert laptop.jobs(run) == {laptop.job(run): "RUNNING"}
    laptop.go(run)
    laptop.gangline("wait", run)
    assert laptop.show(run)["phase"] == "succeeded"
    eventually("the job to end", lambda: set(laptop.jobs(run).values()) <= {"COMPLETED"})


OLD = """#!/bin/bash
#SBATCH --job-name="nightly"
#SBATCH -N 2
#SBATCH --ntasks-per-node=2
srun bash -c 'echo "task $SLURM_PROCID of $SLURM_NTASKS on $(hostname)"
until [ -e "$GANGLINE_RUN_DIR/go" ]; do sleep 0.1; done'
"""


def test_an_existing_script_is_shown_with_what_slurm_has_given_it(laptop: Laptop):
    (laptop.folder / "old.sbatch").write_text(OLD)
    told = laptop.gangline("submit", "--pool", "lab", "--detach", "--sbatch", "old.sbatch")
    run = told.split()[0]
    assert "old.sbatch as it asks in pool lab" in told
    for task in range(4):
        laptop.logged(run, f"task {task} of 4 on node")
    laptop.until(run, "running")
    shown = laptop.gangline("show", run, "--full")
    assert "2 nodes, 4 tasks" in shown
    assert "node01, node02" in shown
    assert "2 nodes" in laptop.gangline("ps")
    laptop.go(run)
    laptop.until(run, "succeeded")
    assert "2 nodes, 4 tasks" in laptop.gangline("show", run)


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--setup", "echo looking for it; module load no/such", ["looking for it", "no/such", "failed with exit code"]),
        ("--python", "python-that-is-not", ["task 0: Exited with exit code"]),
    ],
)
def test_the_logs_of_a_run_that_never_had_a_rank_are_those_of_its_job(
    laptop: Laptop, option: str, value: str, said: list[str]
):
    run = laptop.submit("print('never')", option, value)
    laptop.until(run, "failed")
    shown = laptop.gangline("logs", run)
    assert all(text in shown for text in said), laptop.describe(run)
    assert value in laptop.show(run)["message"]


def test_the_rank_that_failed_is_named(laptop: Laptop):
    script = HOLD + "\nif rank == '1': sys.exit(7)\ntime.sleep(600)\n"
    run = laptop.submit(script, "--nodes", "2", "--procs-per-node", "1")
    laptop.logged(run, "up", 1)
    laptop.go(run)
    laptop.gangline("wait", run, rc=7)
    (attempt,) = laptop.show(run)["attempts"]
    failure = attempt["first_failure"]
    assert (failure["rank"], failure["host"], failure["exit_code"]) == (1, "node02", 7)


def test_what_can_never_start_is_refused_before_it_waits(laptop: Laptop):
    (laptop.folder / "train.py").write_text("print('hello')")
    for options, words in [
        (("--partition", "mian"), ["no partition `mian`", "invalid partition", "Did you mean `main`?"]),
        (("--partition", "spot", "--time-limit", "8d"), ["time limit of 7-00:00:00", "asks for 8-00:00:00"]),
        (("--nodes", "5"), ["5 nodes", "has 4"]),
        (("--gpus-per-node", "9"), ["no node with 9 gpu", "gpu:8"]),
        (("--gres", "gpu:h100:1", "--gpus-per-node", "0"), ["no node with 1 gpu of type h100", "--gres"]),
        (("--gres", "tpu:1", "--gpus-per-node", "0"), ["Invalid generic resource", "--gres"]),
    ]:
        said = laptop.refused("submit", "--pool", "lab", *options, "train.py")
        assert all(word in said for word in words), said
    assert json.loads(laptop.gangline("ps", "--json")) == [] or not laptop.cluster.ssh("squeue -h").stdout


def test_a_removed_run_leaves_nothing_on_the_cluster(laptop: Laptop):
    run = laptop.submit("print('hello', flush=True)", "--nodes", "1")
    laptop.until(run, "succeeded")
    assert laptop.run_dir(run).is_dir()
    laptop.gangline("rm", "--yes", run)
    assert not laptop.run_dir(run).exists()
    assert run not in {path.name for path in laptop.run_dir(run).parent.iterdir()}


def test_stop_ends_the_job_and_all_its_processes(laptop: Laptop):
    script = """
import signal, sys, time
def save(*_):
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("up", flush=True)
time.sleep(600)
"""
    run = laptop.submit(script, "--nodes", "2", "--procs-per-node", "2")
    laptop.logged(run, "up", 3)
    laptop.gangline("stop", run)
    laptop.until(run, "stopped")
    assert "saved" in laptop.log(run, 3)
    eventually("the job to end", lambda: not set(laptop.jobs(run).values()) & {"RUNNING", "COMPLETING"})
    for node in laptop.cluster.nodes[:2]:
        assert laptop.cluster.on(node, ["pgrep", "-u", laptop.cluster.user], check=False).stdout == ""


def test_a_user_of_the_login_node_needs_no_ssh(cluster: Cluster):
    """The same bridge runs there as a child of the user's own server."""
    command = str(cluster.ranks_python.with_name("gangline"))
    pool = {"backend": "slurm", "work": f"{cluster.work}/own", "ranks_python": str(cluster.ranks_python), "poll_s": 0.5}
    script = f"""
set -e
export GANGLINE_HOME=$HOME/state
mkdir -p $GANGLINE_HOME project
cat > $GANGLINE_HOME/pools.yaml
echo 'import socket; print("on", socket.gethostname(), flush=True)' > project/train.py
cd project
{command} submit --pool lab --nodes 2 --wait train.py || code=$?
{command} logs latest --rank 1
{command} server stop
exit ${{code:-0}}
"""
    done = cluster.as_user(["bash", "-c", script], stdin=json.dumps({"pools": {"lab": pool}}))
    assert "on node02" in done.stdout.splitlines()
