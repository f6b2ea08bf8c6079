"""The example of each strategy trains for real, and goes on from its checkpoint after a rank was killed."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import time
from pathlib import Path

import pytest
from tests.conftest import gangline, lack

from gangline.domain.errors import GanglineError
from gangline.rundir.checkpoints import find_checkpoints
from gangline.rundir.journal import read_journal
from gangline.rundir.layout import RunDir

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PATIENCE_S = 300.0
STEPS = 4000
"""More than any of them does before it is stopped."""

pytestmark = [pytest.mark.integration, pytest.mark.torch, pytest.mark.timeout(900)]

CASES = {
    "fsdp": ("torch", ()),
    "accelerate": ("accelerate", ()),
    "lightning": ("lightning", ()),
    "deepspeed": ("deepspeed", ()),
    "jax": ("jax", ("--nodes", "2", "--procs-per-node", "1")),
    "mpi": ("mpi4py", ("--nodes", "2", "--procs-per-node", "1")),
    "tensorflow": ("tensorflow", ("--nodes", "2", "--procs-per-node", "1")),
    "ray": ("ray", ("--nodes", "2", "--procs-per-node", "1", "--env", "RAY_INCLUDE_DASHBOARD=0")),
}
NOT_IN_CI = {"tensorflow"}
"""Too large to install there."""


def wait_for(path_or_call, what: str):
    deadline = time.monotonic() + PATIENCE_S
    while not (found := path_or_call()):
        assert time.monotonic() < deadline, what
        time.sleep(0.1)
    return found


def events(run: RunDir, attempt: int, kind: str) -> list[dict]:
    folder = run.attempt(attempt)
    found = [record for node in folder.nodes() for record in read_journal(folder.events(node))]
    return [record for record in found if record["kind"] == kind]


def complete(run: RunDir) -> list[int]:
    try:
        return sorted(one.step for one in find_checkpoints(run.checkpoints) if one.complete)
    except (OSError, GanglineError):
        return []


@pytest.mark.parametrize("strategy", CASES)
def test_an_example_goes_on_after_a_kill(strategy: str, shared_server: Path, tmp_path: Path) -> None:
    module, shape = CASES[strategy]
    if importlib.util.find_spec(module) is None:
        need = f"needs {module}: pip install -e '.[ray,frameworks,tensorflow]'"
        pytest.skip(need) if strategy in NOT_IN_CI else lack(need)
    (tmp_path / "train.py").write_text((EXAMPLES / strategy / "train.py").read_text())
    options = ["--strategy", strategy, *(shape or ("--procs-per-node", "2")), "--max-infra-restarts", "1"]
    command = ["submit", *options, "--json", "train.py", "--steps", str(STEPS), "--save-every", "5"]
    done = gangline(*command, home=shared_server, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    run_id = json.loads(done.stdout)["id"]
    run = RunDir(shared_server / "runs" / run_id)
    try:
        wait_for(lambda: complete(run) or result(run, 0), "a first checkpoint")
        assert complete(run), (run.attempt(0).log(0).read_text(errors="replace")[-2000:], result(run, 0))
        victim = next(record for record in events(run, 0, "rank_started") if record["rank"] == 1)
        os.kill(victim["pid"], signal.SIGKILL)
        first = wait_for(lambda: result(run, 0), "the end of the first attempt")
        assert (first["outcome"], first["next"]) == ("failed", "restart"), first
        assert first["first_failure"]["rank"] == 1, first
        saved = max(complete(run))
        wait_for(lambda: max(complete(run), default=0) > saved or result(run, 1), "a checkpoint of the second attempt")
        assert max(complete(run)) > saved, (run.attempt(1).log(0).read_text(errors="replace")[-2000:], result(run, 1))
        assert events(run, 1, "attempt_started")[0]["resume_step"] == first_resume(run)
        assert f"starting at step {first_resume(run)}" in all_logs(run, 1)
    finally:
        gangline("stop", run_id, "--grace", "5s", home=shared_server)
        gangline("wait", run_id, home=shared_server)


def result(run: RunDir, attempt: int) -> dict | None:
    path = run.attempt(attempt).result
    return json.loads(path.read_text()) if path.exists() else None


def first_resume(run: RunDir) -> int:
    return events(run, 1, "attempt_started")[0]["resume_step"]


def all_logs(run: RunDir, attempt: int) -> str:
    folder = run.attempt(attempt)
    return "".join(folder.log(rank).read_text(errors="replace") for rank in folder.ranks())
