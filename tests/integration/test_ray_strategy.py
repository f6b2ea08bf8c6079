"""Transient Ray clusters, several at once on one machine: a driver fails, a run is stopped, an agent is killed."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import time
from pathlib import Path

import psutil
import pytest
from tests.conftest import gangline, lack

from gangline.agent.strategies.company import scratch_path
from gangline.rundir.layout import RunDir

PATIENCE_S = 240.0
DRIVER = """
import subprocess, sys, time
import ray

ray.init()

@ray.remote
class Actor:
    def start(self):
        return subprocess.Popen(["sleep", "9999"], start_new_session=True).pid

pid = ray.get(Actor.remote().start.remote())
print("child", pid, flush=True)
time.sleep(0 if sys.argv[1] == "fail" else 3600)
raise ValueError("the driver is at its end")
"""

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]


def wait_for(call, what: str):
    deadline = time.monotonic() + PATIENCE_S
    while not (found := call()):
        assert time.monotonic() < deadline, what
        time.sleep(0.1)
    return found


def find_child(run: RunDir) -> int | None:
    log = run.attempt(0).log(0)
    words = log.read_text(errors="replace").split() if log.exists() else []
    return int(words[words.index("child") + 1]) if "child" in words[:-1] else None


def test_nothing_is_left_of_clusters_however_they_end(shared_server: Path, tmp_path: Path) -> None:
    if importlib.util.find_spec("ray") is None:
        lack("needs Ray: pip install -e '.[ray]'")
    (tmp_path / "driver.py").write_text(DRIVER)
    runs = {}
    for how in ("fail", "stop", "kill"):
        options = ["--strategy", "ray", "--env", "RAY_INCLUDE_DASHBOARD=0", "--max-infra-restarts", "0", "--json"]
        done = gangline("submit", *options, "driver.py", how, home=shared_server, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        runs[how] = RunDir(shared_server / "runs" / json.loads(done.stdout)["id"])
    children = {how: wait_for(lambda run=run: find_child(run), f"{how}: an actor's child") for how, run in runs.items()}
    gangline("stop", runs["stop"].path.name, home=shared_server)
    os.kill(int(runs["kill"].launch(0).lock(0).read_text()), signal.SIGKILL)
    outcomes = {}
    for how, run in runs.items():
        done = gangline("wait", run.path.name, "--json", home=shared_server, timeout_s=PATIENCE_S)
        outcomes[how] = json.loads(done.stdout)[0]
    assert {how: outcome["phase"] for how, outcome in outcomes.items()} == {
        "fail": "failed",
        "stop": "stopped",
        "kill": "failed",
    }
    result = json.loads(runs["fail"].attempt(0).result.read_text())
    assert result["message"].endswith("failed: ValueError: the driver is at its end."), result["message"]
    for how, run in runs.items():
        wait_for(lambda pid=children[how]: not psutil.pid_exists(pid), f"{how}: the end of what an actor had started")
        wait_for(lambda run=run: not scratch_path(run, 0).exists(), f"{how}: the end of the cluster's own folder")
