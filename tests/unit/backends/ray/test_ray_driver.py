"""The parts of the driver that need no Ray."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

from gangline.backends.ray.driver import check_node, end_agent, explain_wait, render_env


def node(host: str, *, free: float, total: float = 4.0):
    return {"host": host, "free": {"CPU": free}, "total": {"CPU": total}}


def plan(*, nodes: int = 2, strategy: str = "STRICT_SPREAD", cpus: float = 2.0):
    return {"bundles": [{"CPU": cpus}] * nodes, "strategy": strategy}


def test_a_cluster_that_is_busy_says_where():
    why = explain_wait(plan(), [node("a", free=1), node("b", free=4), node("c", free=0)])
    assert why == (
        "Waits for 2 Ray nodes with 2 CPU free on each: 1 of 3 have that free now "
        "(a: 1 of 4 CPU; b: 4 of 4 CPU; c: 0 of 4 CPU)."
    )


def test_a_cluster_that_is_too_small_says_so():
    why = explain_wait(plan(nodes=3), [node("a", free=4), node("b", free=1, total=1)])
    assert "only 1 of the cluster's 2 have as much at all" in why


def test_packed_bundles_wait_for_room_anywhere():
    why = explain_wait(plan(strategy="PACK"), [node("a", free=1)])
    assert why == "Waits for room for 2 nodes with 2 CPU each; a: 1 of 4 CPU."


def test_of_many_nodes_a_few_are_shown():
    why = explain_wait(plan(nodes=90), [node(f"n{number}", free=0) for number in range(80)])
    assert why.endswith("n7: 0 of 4 CPU; …).")


def test_an_agent_gets_nothing_that_ray_or_a_shell_has_set():
    env = {
        "PATH": "/bin",
        "LC_ALL": "C",
        "RAY_ADDRESS": "x",
        "PYTHONPATH": "/ray",
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "3",
    }
    with_devices = {"env": {"NCCL_SOCKET_IFNAME": "ib0"}, "has_devices": True}
    assert render_env(env, with_devices, "10.0.0.7") == {
        "PATH": "/bin",
        "LC_ALL": "C",
        "CUDA_VISIBLE_DEVICES": "3",
        "NCCL_SOCKET_IFNAME": "ib0",
        "GANGLINE_ADDRESS": "10.0.0.7",
    }
    assert "CUDA_VISIBLE_DEVICES" not in render_env(env, {"env": {}, "has_devices": False}, "")


def test_a_node_that_does_not_see_the_launch_is_named(tmp_path: Path):
    here = {"launch_dir": str(tmp_path)}
    assert check_node(here, "10.0.0.7").startswith(f"Ray node 10.0.0.7 cannot use the run's folder {tmp_path} as ")
    (tmp_path / "launch.json").write_text("{}")
    assert check_node(here, "10.0.0.7") == ""
    assert [path.name for path in tmp_path.iterdir()] == ["launch.json"]


def test_an_agent_is_killed_below_its_guardian_which_then_ends_by_itself(tmp_path: Path):
    agent = tmp_path / "agent"
    code = (
        "import os, subprocess, sys; child = subprocess.Popen(['sleep', '300']); "
        f"open({str(agent)!r}, 'w').write(str(child.pid)); sys.exit(5 if child.wait() == -9 else 1)"
    )
    guardian = subprocess.Popen([sys.executable, "-c", code])
    while not agent.exists() or not agent.read_text():
        time.sleep(0)
    end_agent(guardian)
    assert guardian.returncode == 5


def test_a_guardian_without_an_agent_is_killed_itself():
    guardian = subprocess.Popen(["sleep", "300"])
    end_agent(guardian)
    assert guardian.returncode == -signal.SIGKILL
