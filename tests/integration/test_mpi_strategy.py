"""Gangs over Open MPI: who is blamed, what a stop still lets them do, and what is left."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import time
from pathlib import Path

import psutil
import pytest
from tests.conftest import gangline, lack

from gangline.agent.strategies.company import scratch_path
from gangline.rundir.checkpoints import newest_complete
from gangline.rundir.layout import RunDir

PATIENCE_S = 60.0
SCRIPT = """
import os, sys, time
from mpi4py import MPI
import gangline

world = MPI.COMM_WORLD
assert world.rank == int(os.environ["RANK"]) and world.size == int(os.environ["WORLD_SIZE"])
assert os.environ.get("HOROVOD_RANK", os.environ["RANK"]) == os.environ["RANK"]
print("sum", world.allreduce(world.rank + 1), flush=True)
if world.rank == 1 and sys.argv[1] == "abort":
    world.Abort(7)
if world.rank == 1 and sys.argv[1] == "raise":
    raise ValueError("of rank 1")
step = 0
while not gangline.should_stop():
    step = world.allreduce(1) + step
    time.sleep(0.05)
world.barrier()
with gangline.checkpoint(step, rank0_only=True) as path:
    (path / "state").write_text(str(world.allreduce(step)))
print("saved", flush=True)
"""

pytestmark = [pytest.mark.integration]


@pytest.fixture(autouse=True)
def _needs_mpi() -> None:
    if shutil.which("mpirun") is None or importlib.util.find_spec("mpi4py") is None:
        lack("needs Open MPI and mpi4py: apt install openmpi-bin; pip install -e '.[frameworks]'")


def submit(home: Path, folder: Path, how: str, strategy: str = "mpi") -> RunDir:
    (folder / "train.py").write_text(SCRIPT)
    options = ["--strategy", strategy, "--nodes", "2", "--procs-per-node", "2", "--json"]
    done = gangline("submit", *options, "--max-infra-restarts", "1", "train.py", how, home=home, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return RunDir(home / "runs" / json.loads(done.stdout)["id"])


def wait_for(call, what: str):
    deadline = time.monotonic() + PATIENCE_S
    while not (found := call()):
        assert time.monotonic() < deadline, what
        time.sleep(0.05)
    return found


def result_of(run: RunDir, attempt: int = 0) -> dict:
    path = run.attempt(attempt).result
    return json.loads(wait_for(lambda: path.exists() and path.read_text(), f"the result of attempt {attempt}"))


def summed(run: RunDir, attempt: int = 0) -> bool:
    logs = [run.attempt(attempt).log(rank) for rank in range(4)]
    return all(log.exists() and "sum 10" in log.read_text() for log in logs)


@pytest.mark.parametrize(
    ("how", "code", "words"), [("abort", 7, "exit code 7"), ("raise", 1, "ValueError: of rank 1")], ids=lambda one: one
)
def test_the_rank_that_ends_the_job_is_blamed(
    shared_server: Path, tmp_path: Path, how: str, code: int, words: str
) -> None:
    run = submit(shared_server, tmp_path, how)
    result = result_of(run)
    assert result["first_failure"]["rank"] == 1, result
    assert result["first_failure"]["exit_code"] == code
    assert words in result["message"]
    wait_for(lambda: not scratch_path(run, 0).exists(), "the end of Open MPI's folder")


def test_a_stop_leaves_mpi_alive_until_ranks_have_saved(shared_server: Path, tmp_path: Path) -> None:
    run = submit(shared_server, tmp_path, "stop", strategy="horovod")
    wait_for(lambda: summed(run), "the first sum of all ranks")
    started = time.monotonic()
    gangline("stop", run.path.name, "--grace", "40s", home=shared_server)
    assert result_of(run)["outcome"] == "stopped"
    assert time.monotonic() - started < 35.0  # it did not wait until grace was over
    found, _ = newest_complete(run.checkpoints)
    assert found is not None
    assert all("saved" in run.attempt(0).log(rank).read_text() for rank in range(4))


def test_without_mpirun_the_gang_starts_again(shared_server: Path, tmp_path: Path) -> None:
    run = submit(shared_server, tmp_path, "go on")
    wait_for(lambda: summed(run), "the first sum of all ranks")
    mpirun = [one for one in psutil.process_iter(["cmdline"]) if str(run.path) in " ".join(one.info["cmdline"] or ())]
    os.kill(next(one.pid for one in mpirun if one.info["cmdline"][0] == "mpirun"), signal.SIGKILL)
    result = result_of(run)
    assert (result["outcome"], result["budget"]) == ("failed", "infrastructure"), result
    wait_for(lambda: summed(run, 1), "the first sum of all ranks of the second attempt")
    gangline("stop", run.path.name, "--grace", "5s", home=shared_server)
    assert result_of(run, 1)["outcome"] == "stopped"
    wait_for(lambda: not scratch_path(run, 0).exists(), "the end of Open MPI's folder")
