"""`@gang(strategy="ray")`: a Ray cluster for one step alone, whose driver is the step's body."""

from __future__ import annotations

import importlib.util
import os
import signal
from ast import literal_eval
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from tests.conftest import lack
from tests.metaflow.flowruns import children, kill, said

from gangline.agent.strategies.company import scratch_path
from gangline.rundir.layout import RunDir

if TYPE_CHECKING:
    import subprocess

    from tests.metaflow.flowruns import Flows

pytestmark = [pytest.mark.integration, pytest.mark.metaflow, pytest.mark.timeout(900)]


@pytest.fixture(autouse=True)
def _needs_ray() -> None:
    if importlib.util.find_spec("ray") is None:
        lack("needs Ray: pip install -e '.[ray]'")


def child_of(process: subprocess.Popen[str]) -> int | None:
    """What an actor of the cluster has started."""
    lines = [line.partition("child ")[2] for line in said(process).splitlines() if "[rank 0] child " in line]
    return int(lines[0]) if lines else None


def folder_of(flows: Flows, run: Any) -> RunDir:
    return RunDir(Path(flows.env["GANGLINE_HOME"], "runs", run["id"]))


def is_gone(run: RunDir, child: int | None) -> bool:
    assert child is not None
    return not psutil.pid_exists(child) and not scratch_path(run, 0).exists()


def test_a_step_has_a_cluster_of_three_nodes_and_its_artifacts_are_the_driver_s(flows: Flows) -> None:
    process = flows.start("tuned", "run", NODES="3")
    assert process.wait(400) == 0, said(process)
    task = flows.task("TunedFlow", "tune")
    data = {name: literal_eval(value) for name, value in task["data"].items()}
    assert len(data["cluster"]) == 3
    assert data["tried"] == [f"dogs on {node}" for node in data["cluster"]]
    assert data["numbers"] == (0, 1, 0, 3)  # one process runs the body, with a cluster of three nodes
    assert "used 3 nodes" in said(process)
    assert "http://127.0.0.1:" in task["metadata"]["gangline-dashboard"]
    assert "The Ray dashboard is at" in task["stdout"]
    (run,) = flows.runs(step="tune")
    flows.until(lambda: is_gone(folder_of(flows, run), child_of(process)), process)


def test_nothing_is_left_of_the_clusters_of_steps_that_fail_are_interrupted_or_killed(flows: Flows) -> None:
    """All at once, on one machine."""
    started = {how: flows.start("tuned", "run", group=True, END=how) for how in ("fail", "interrupt", "kill")}
    found = {how: flows.until(lambda process=process: child_of(process), process) for how, process in started.items()}
    os.killpg(started["interrupt"].pid, signal.SIGINT)
    kill(started["kill"].pid, *children(started["kill"].pid))
    codes = {how: process.wait(300) for how, process in started.items()}
    assert codes["fail"] == 1
    assert codes["interrupt"] != 0
    assert "Rank 0 on node 0" in said(started["fail"])
    assert "ValueError: no trial was good" in said(started["fail"])
    ended = [flows.ended(run["id"]) for run in flows.runs(step="tune")]
    assert sorted(run["phase"] for run in ended) == ["failed", "stopped", "stopped"]
    folders = [folder_of(flows, run) for run in ended]
    flows.until(lambda: not any(psutil.pid_exists(pid) for pid in found.values()))
    flows.until(lambda: not any(scratch_path(folder, 0).exists() for folder in folders))
