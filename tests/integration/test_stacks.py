"""`gangline stacks`: from the command line over server and leader to the ranks, and back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.conftest import gangline

from gangline.client import connect
from gangline.domain.errors import NoAnswer
from gangline.rundir.journal import read_journal
from gangline.rundir.layout import RunDir

pytestmark = pytest.mark.integration

_SCRIPT = """
import os, pathlib, time
def load():
    while not pathlib.Path("end").exists():
        time.sleep(1.0)
def train():
    while not pathlib.Path("end").exists():
        time.sleep(1.0)
print("ready", flush=True)
load() if os.environ["RANK"] == "2" else train()
"""


def submit(folder: Path, home: Path, *options: str) -> tuple[str, RunDir]:
    folder.mkdir()
    (folder / "train.py").write_text(_SCRIPT)
    done = gangline("submit", "--json", *options, "train.py", home=home, cwd=folder)
    assert done.returncode == 0, done.stderr
    run_id = json.loads(done.stdout)["id"]
    run = RunDir(home / "runs" / run_id)
    deadline = time.monotonic() + 60
    while not all("ready" in text(run.attempt(0).log(rank)) for rank in range(4)):
        assert time.monotonic() < deadline, gangline("show", run_id, home=home).stdout
        time.sleep(0.02)
    return run_id, run


def text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def test_stacks_of_a_healthy_gang_are_grouped_and_disturb_nothing(shared_home: Path, tmp_path: Path) -> None:
    run_id, run = submit(tmp_path / "project", shared_home, "--nodes", "2", "--procs-per-node", "2")
    done = gangline("stacks", run_id, home=shared_home)
    assert done.returncode == 0, done.stderr
    said = "Ranks 0-1, 3 are in time.sleep (train.py:8); rank 2 is in time.sleep (train.py:5)."
    assert said in " ".join(done.stdout.split())
    assert done.stdout.count("train.py:8 in train") == 1
    told = json.loads(gangline("stacks", run_id, "--rank", "2", "--json", home=shared_home).stdout)
    assert [rank["rank"] for rank in told["ranks"]] == [2]
    assert told["ranks"][0]["processes"][0]["threads"][-1]["frames"][0]["code"] == "time.sleep(1.0)"
    assert told["ranks"][0]["node"] == 1
    wrong = gangline("stacks", run_id, "--rank", "4", home=shared_home)
    assert wrong.returncode == 66
    assert "Ranks: 0 to 3" in wrong.stderr
    beside_rank_three(run_id, run, shared_home)
    (run.code / "end").touch()
    assert gangline("wait", run_id, home=shared_home).returncode == 0
    kinds = [event["kind"] for event in read_journal(run.attempt(0).events(0))]
    assert kinds.count("stacks") == 2
    after = gangline("stacks", run_id, home=shared_home)
    assert after.returncode == 0
    assert "Rank 2" in after.stdout
    assert after.stdout.count("\n\n") == 1


def beside_rank_three(run_id: str, run: RunDir, home: Path) -> None:
    """A program beside a rank is told what the rank is, and takes no part in the run."""
    code = "import gangline, os; c = gangline.current(); gangline.log({'x': 1}, step=0); print(c.rank, c.world_size)"
    there = ("--rank", "3", "--", sys.executable, "-c", f"{code}; print(os.getcwd(), 'MASTER_PORT' in os.environ)")
    done = gangline("shell", run_id, *there, home=home)
    assert (done.returncode, done.stdout) == (0, f"3 4\n{run.code} False\n"), done.stderr
    assert not text(run.metrics(3)), "nothing is written among the rank's own numbers"


def test_a_leader_that_is_frozen_is_named_in_bounded_time(home: Path, tmp_path: Path) -> None:
    run_id, run = submit(tmp_path / "project", home, "--procs-per-node", "4")
    never = gangline("stacks", run_id, "--last", home=home)
    assert never.returncode == 66
    assert "No stacks were taken" in never.stderr
    leader = int(text(run.launch(0).lock(0)))
    os.kill(leader, signal.SIGSTOP)
    try:
        with connect() as client, pytest.raises(NoAnswer) as raised:
            client.take_stacks(run_id, timeout_s=1.0)
    finally:
        os.kill(leader, signal.SIGCONT)
    assert "did not answer within 1 s" in str(raised.value)
    assert raised.value.exit_code == 75
    (run.code / "end").touch()
    gangline("wait", run_id, home=home)


def test_stacks_of_what_does_not_exist(shared_home: Path) -> None:
    done = gangline("stacks", "no-such-run", home=shared_home)
    assert done.returncode == 66
    assert "no-such-run" in done.stderr


_IN_C = """
import ctypes, pathlib
lib, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
def forward():
    lib.pthread_mutex_lock(mutex)
    print("ready", flush=True)
    lib.pthread_mutex_lock(mutex)  # waits for itself, and holds the interpreter's lock
forward()
"""
_HIDDEN = """
import ctypes, time
ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE: only who has CAP_SYS_PTRACE may look into it
print("ready", flush=True)
time.sleep(600)
"""


def submit_one(folder: Path, home: Path, script: str, *through: str) -> str:
    """One rank that is stuck, submitted by a command line that another program may start."""
    folder.mkdir()
    (folder / "train.py").write_text(script)
    command = [*through, str(Path(sys.executable).with_name("gangline")), "submit", "--json", "train.py"]
    env = {**os.environ, "GANGLINE_HOME": str(home)}
    done = subprocess.run(command, cwd=folder, env=env, text=True, capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    run_id = str(json.loads(done.stdout)["id"])
    log = RunDir(home / "runs" / run_id).attempt(0).log(0)
    deadline = time.monotonic() + 60
    while "ready" not in text(log):
        assert time.monotonic() < deadline, gangline("show", run_id, home=home).stdout
        time.sleep(0.02)
    return run_id


@pytest.mark.pyspy
def test_native_frames_show_where_in_c_a_rank_is_stuck(shared_home: Path, tmp_path: Path) -> None:
    run_id = submit_one(tmp_path / "project", shared_home, _IN_C)
    done = gangline("stacks", run_id, "--native", "--json", home=shared_home)
    process = json.loads(done.stdout)["ranks"][0]["processes"][0]
    assert (process["how"], process["note"]) == ("py-spy", "")
    functions = [frame["function"] for frame in process["threads"][-1]["frames"]]
    assert any("lock" in function for function in functions[: functions.index("forward")]), functions
    assert "train.py:7" in gangline("stacks", run_id, home=shared_home).stdout  # by the handler, in C, too
    gangline("stop", run_id, "--grace", "0", home=shared_home)
    gangline("wait", run_id, home=shared_home)


@pytest.mark.pyspy
@pytest.mark.root
def test_where_py_spy_may_not_look_the_answer_says_so_and_has_python_frames(home: Path, tmp_path: Path) -> None:
    run_id = submit_one(tmp_path / "project", home, _HIDDEN, "setpriv", "--bounding-set=-sys_ptrace")
    done = gangline("stacks", run_id, "--native", home=home)
    assert "train.py:5 in <module>" in done.stdout
    assert "no native frames: the kernel does not let this user look into the process (ptrace)" in done.stdout
    gangline("stop", run_id, "--grace", "0", home=home)
    gangline("wait", run_id, home=home)
