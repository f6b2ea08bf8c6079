"""A machine that breaks a run is remembered: real agents, the real server and its command line."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conftest import gangline

from gangline.rundir.home import Home

pytestmark = pytest.mark.integration
DEADLINE_S = 60.0
SCRIPT = """
import time
from pathlib import Path
Path("started").touch()
while not Path("go").exists():
    time.sleep(0.05)
"""


def test_the_node_of_a_killed_agent_is_remembered_named_and_cleared(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("GANGLINE_SERVER_NODE_MARKS", "1")
    (tmp_path / "train.py").write_text(SCRIPT)

    def call(*args: str, code: int = 0) -> str:
        done = gangline(*args, home=home, cwd=tmp_path)
        assert done.returncode == code, f"{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    host = os.uname().nodename
    assert json.loads(call("pools", "nodes", "--json")) == [
        {"pool": "local", "host": host, "state": "ok", "why": "", "forgotten_at": None, "marks": []}
    ]
    run = json.loads(call("submit", "--nodes", "2", "--start", "exec", "--json", "train.py"))["id"]
    run_dir = Home(home).run(run)
    lock = run_dir.launch(0).lock(1)  # holds the pid of its agent
    until(lambda: (run_dir.code / "started").exists() and lock.exists() and lock.read_text().strip())
    os.kill(int(lock.read_text()), signal.SIGKILL)
    until(run_dir.launch(1).spec.exists)
    (run_dir.code / "go").touch()
    assert "succeeded" in call("wait", run)

    (node,) = json.loads(call("pools", "nodes", "local", "--json"))
    assert (node["host"], node["state"], node["why"]) == (host, "suspect", f"1 loss of run {run} within 24 h")
    assert [(mark["run"], mark["attempt"], mark["kind"]) for mark in node["marks"]] == [(run, 0, "node_lost")]
    (pool,) = json.loads(call("pools", "--json"))
    assert pool["avoided_nodes"] == 0
    assert "avoid" not in call("pools").partition("\n")[2]
    assert "ought to be avoided" not in call("show", run, "--events")
    assert "attempt 0  node_lost: Node 1" in call("pools", "nodes")

    assert f"Known: {host}." in call("pools", "clear", f"{host}x", code=66)
    assert "There is no pool `lokal`" in call("pools", "nodes", "lokal", code=66)
    assert f"Node {host} is cleared in pool `local`" in call("pools", "clear", host)
    assert json.loads(call("pools", "nodes", "--json"))[0]["state"] == "ok"


def until(is_true: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.05)
