"""Gangs on a real Ray cluster of several raylets: what becomes of them, and of the cluster, when something dies."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from tests.conftest import gangline, lack
from tests.integration.raycluster import PATIENCE_S, RayCluster, wait_for

from gangline.rundir.layout import RunDir

RANK = """
import os, subprocess, sys, time
from pathlib import Path
import torch, torch.distributed as dist
import gangline

dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
rank = dist.get_rank()
child = subprocess.Popen(["sleep", "999"], start_new_session=True, env={})
attempt = os.environ["GANGLINE_ATTEMPT"]
print("rank", rank, "of", int(total.item()), "attempt", attempt, "pid", os.getpid(), "child", child.pid, flush=True)
while not Path(sys.argv[1]).exists():
    time.sleep(0.1)
child.kill()
"""
OLD = {"click": "6.7", "pydantic": "1.8", "ray": "0.8"}
VERSIONS = """
import importlib, os, sys
for name in sys.argv[1:]:
    module = importlib.import_module(name)
    print(name, module.__version__, os.path.dirname(module.__file__))
print("prefix", sys.prefix)
"""

LIE = """
import runpy, sys, ray
ray.__version__ = "2.9.3"
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""

pytestmark = [pytest.mark.integration, pytest.mark.torch, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    yield from _cluster(nodes=2)


def _cluster(*, nodes: int) -> Iterator[RayCluster]:
    if importlib.util.find_spec("ray") is None:
        lack("needs Ray: pip install -e '.[ray]'")
    made = RayCluster()
    try:
        yield made.start(nodes=nodes)
    finally:
        made.close()


def add_pool(home: Path, cluster: RayCluster, *more: str) -> None:
    done = gangline(
        "pools", "add", "warm", "--backend", "ray", "--address", cluster.address, "--no-check", *more, home=home
    )
    assert done.returncode == 0, done.stdout + done.stderr


def submit(home: Path, folder: Path, *args: str, nodes: int = 2, procs: int = 2) -> RunDir:
    size = ["--nodes", str(nodes), "--procs-per-node", str(procs)]
    done = gangline("submit", "--pool", "warm", *size, "--json", *args, home=home, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return RunDir(home / "runs" / json.loads(done.stdout)["id"])


def outcome(home: Path, run: RunDir) -> dict:
    return json.loads(gangline("wait", run.path.name, "--json", home=home, timeout_s=PATIENCE_S).stdout)[0]


def show(home: Path, run: RunDir) -> dict:
    return json.loads(gangline("show", run.path.name, "--json", home=home).stdout)


def said(run: RunDir, attempt: int, *, ranks: int) -> list[list[str]]:
    """The words of all ranks' first lines; waits for them."""

    def read() -> list[list[str]]:
        logs = [run.attempt(attempt).log(rank) for rank in range(ranks)]
        lines = [log.read_text(errors="replace") for log in logs if log.exists()]
        return [line.split() for line in lines if "child" in line and line.endswith("\n")]

    return wait_for(lambda: found if len(found := read()) == ranks else None, f"all ranks of attempt {attempt}")


def number(words: list[str], name: str) -> int:
    return int(words[words.index(name) + 1])


def all_gone(words: list[list[str]]) -> bool:
    pids = [number(one, name) for one in words for name in ("pid", "child")]
    return not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in pids)


def test_a_killed_rank_is_restarted_in_place_and_any_rank_s_log_is_read(
    cluster: RayCluster, home: Path, tmp_path: Path
):
    add_pool(home, cluster)
    (tmp_path / "train.py").write_text(RANK)
    run = submit(home, tmp_path, "--max-infra-restarts", "1", "train.py", str(tmp_path / "end"))
    first = said(run, 0, ranks=4)
    os.kill(next(number(one, "pid") for one in first if number(one, "rank") == 3), signal.SIGKILL)
    second = said(run, 1, ranks=4)
    assert all_gone(first), "of the first attempt"
    assert not run.launch(1).path.exists(), "the agents and their bundles stay"
    (tmp_path / "end").touch()
    assert outcome(home, run)["phase"] == "succeeded"
    assert all(number(one, "of") == 4 for one in second)
    for rank in range(4):
        log = gangline("logs", run.path.name, "--rank", str(rank), home=home).stdout
        assert f"rank {rank} of 4 attempt 1" in log
    wait_for(lambda: "CREATED" not in cluster.groups().values(), "the end of the placement group")


def test_stop_leaves_no_actor_placement_group_or_process(cluster: RayCluster, home: Path, tmp_path: Path):
    add_pool(home, cluster)
    (tmp_path / "train.py").write_text(RANK)
    run = submit(home, tmp_path, "train.py", str(tmp_path / "never"))
    words = said(run, 0, ranks=4)
    waiting = submit(home, tmp_path, "train.py", str(tmp_path / "never"))
    wait_for(lambda: "0 of 3 have that free now" in show(home, waiting)["message"], "why the second one waits")
    assert show(home, waiting)["phase"] == "queued"
    for one in (waiting, run):
        assert gangline("stop", one.path.name, "--grace", "1s", home=home).returncode == 0
    assert [outcome(home, one)["phase"] for one in (run, waiting)] == ["stopped", "stopped"]
    wait_for(lambda: all_gone(words), "the end of ranks and their children")
    wait_for(lambda: set(cluster.groups().values()) <= {"REMOVED"}, "the end of placement groups")
    wait_for(lambda: cluster.actors() == [], "the end of actors")


def test_ray_job_stop_from_outside_ends_all(cluster: RayCluster, home: Path, tmp_path: Path):
    """The way of `Backend.cancel`: nobody has told the leader."""
    add_pool(home, cluster)
    (tmp_path / "train.py").write_text(RANK)
    run = submit(home, tmp_path, "--max-infra-restarts", "0", "train.py", str(tmp_path / "never"))
    words = said(run, 0, ranks=4)
    job = json.loads(run.launch(0).handle.read_text())["data"]["submission_id"]
    assert httpx.post(f"{cluster.address}/api/jobs/{job}/stop", timeout=60).is_success
    assert outcome(home, run)["phase"] in {"stopped", "failed"}
    wait_for(lambda: all_gone(words), "the end of ranks and their children")
    wait_for(lambda: set(cluster.groups().values()) <= {"REMOVED"}, "the end of placement groups")
    wait_for(lambda: cluster.actors() == [], "the end of actors")


@pytest.mark.parametrize("pool", ["warm", "local"])
def test_the_training_code_has_its_own_versions(cluster: RayCluster, home: Path, tmp_path: Path, pool: str):
    """R2: an environment of its own with old packages, and more of them in PYTHONPATH."""
    add_pool(home, cluster)
    venv.create(tmp_path / "venv", with_pip=False)
    site = next((tmp_path / "venv").glob("lib/python*/site-packages"))
    beside = tmp_path / "beside"
    for name, version in OLD.items():
        for folder in [site, *([beside] if name == "ray" else [])]:
            (folder / name).mkdir(parents=True)
            (folder / name / "__init__.py").write_text(f"__version__ = {version!r}\n")
    (tmp_path / "versions.py").write_text(VERSIONS)
    mine = ["--python", str(tmp_path / "venv" / "bin" / "python"), "--env", f"PYTHONPATH={beside}", "--pool", pool]
    run = submit(home, tmp_path, *mine, "versions.py", *OLD)
    assert outcome(home, run)["phase"] == "succeeded"
    for rank in range(4):
        log = run.attempt(0).log(rank).read_text()
        assert f"click 6.7 {site}/click\npydantic 1.8 {site}/pydantic\nray 0.8 {beside}/ray\n" in log
        assert f"prefix {tmp_path}/venv" in log


def test_another_ray_than_the_cluster_s_is_named(cluster: RayCluster, home: Path, tmp_path: Path):
    """R2: the driver has to run on the cluster's own Ray; one that does not is told of, and not tried again."""
    python = tmp_path / "other" / "python"
    python.parent.mkdir()
    lie = tmp_path / "lie.py"
    lie.write_text(LIE)
    python.write_text(f'#!/bin/sh\nshift\nexec {sys.executable} {lie} "$@"\n')
    python.chmod(0o755)
    add_pool(home, cluster, "--python", str(python))
    (tmp_path / "train.py").write_text("print('never')\n")
    run = submit(home, tmp_path, "train.py")
    ended = outcome(home, run)
    assert (ended["phase"], ended["reason"]) == ("failed", "backend_rejected"), ended
    assert "ersion mismatch" in ended["message"]
    assert "2.9.3" in ended["message"]
    assert not run.launch(1).path.exists()
