"""Failures as people meet them, through the real server and command line: what ends, with what, and who is told."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from tests.conftest import gangline

from gangline.client.connection import connect
from gangline.rundir.home import Home
from gangline.rundir.layout import RunDir

pytestmark = pytest.mark.integration

DEADLINE_S = 90.0
SLEEPER = "import time\nprint('up', flush=True)\ntime.sleep(600)\n"


class Case:
    """One project and the shared server."""

    def __init__(self, home: Path, folder: Path) -> None:
        self.home, self.folder = home, folder

    def submit(self, script: str, *options: str) -> tuple[str, RunDir]:
        (self.folder / "train.py").write_text(script)
        options = ("--start", "exec", *options)
        done = gangline("submit", "--json", *options, "train.py", home=self.home, cwd=self.folder)
        assert done.returncode == 0, done.stderr
        run_id = str(json.loads(done.stdout)["id"])
        return run_id, RunDir(self.home / "runs" / run_id)

    def call(self, *words: str) -> subprocess.CompletedProcess[str]:
        return gangline(*words, home=self.home, cwd=self.folder)

    def until(self, condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline, f"{what} was not seen; {self.call('ps').stdout}"
            time.sleep(0.02)

    def until_up(self, run: RunDir, attempt: int = 0, rank: int = 0) -> None:
        log = run.attempt(attempt).log(rank)
        self.until(lambda: log.exists() and log.read_bytes().startswith(b"up"), f"rank {rank} of attempt {attempt}")


@pytest.fixture
def case(shared_home: Path, tmp_path: Path) -> Case:
    return Case(shared_home, tmp_path)


def test_preemptions_do_not_eat_the_budget_of_errors(case: Case) -> None:  # F6
    script = "import os, time\nprint('up', flush=True)\ntime.sleep(600 * (int(os.environ['GANGLINE_ATTEMPT']) < 3))\n"
    run_id, run = case.submit(script + "raise SystemExit(9)\n", "--max-restarts", "1")
    for attempt in range(3):
        case.until_up(run, attempt)
        os.kill(int(run.launch(attempt).lock(0).read_text()), signal.SIGTERM)
    assert case.call("wait", run_id).returncode == 9
    told = json.loads(case.call("show", run_id, "--json").stdout)
    outcomes = [attempt["outcome"] for attempt in told["attempts"]]
    assert outcomes == ["preempted"] * 3 + ["failed"] * 2
    budgets = [attempt["restart_message"] for attempt in told["attempts"]]
    assert all("preempt" in message for message in budgets[:3]), budgets
    assert budgets[3:] == ["restart 1 of 1 (user)", "no restart is left of --max-restarts 1"]


def test_a_node_that_goes_with_its_ranks_is_named_at_once(case: Case) -> None:  # H3
    run_id, run = case.submit(SLEEPER, "--nodes", "2", "--max-infra-restarts", "0")
    case.until_up(run, rank=0)
    case.until_up(run, rank=1)
    agent = psutil.Process(int(run.launch(0).lock(1).read_text()))
    for process in [*agent.children(recursive=True), agent]:
        process.kill()
    done = case.call("wait", run_id)
    assert done.returncode == 71
    assert "failed (node_lost)" in done.stdout + done.stderr
    assert "Node 1 (" in case.call("show", run_id).stdout


def test_who_waits_for_a_run_that_is_ended_from_outside_returns(case: Case) -> None:  # H4
    run_id, run = case.submit(SLEEPER, "--max-infra-restarts", "0")
    case.until_up(run)
    command = [str(Path(sys.executable).with_name("gangline")), "wait", run_id]
    with subprocess.Popen(
        command, env={**os.environ, "GANGLINE_HOME": str(case.home)}, stdout=subprocess.PIPE
    ) as waiter:
        os.kill(int(run.launch(0).lock(0).read_text()), signal.SIGKILL)
        assert waiter.wait(DEADLINE_S) == 71
    told = json.loads(case.call("show", run_id, "--json").stdout)
    assert (told["phase"], told["reason"]) == ("failed", "node_lost")
    assert "left no result" in told["message"]


def test_the_end_of_a_run_is_told_once(case: Case) -> None:  # N1
    run_id, _ = case.submit("raise SystemExit(3)\n", "--max-restarts", "2")
    assert case.call("wait", run_id).returncode == 3
    events = json.loads(case.call("show", run_id, "--events", "--json").stdout)
    ends = [event for event in events if event["kind"] == "attempt_ended"]
    assert [event["data"]["next"] for event in ends] == ["restart", "restart", "end"]
    assert [event["data"]["new"] for event in events if event["kind"] == "phase"][-1:] == ["failed"]
    assert sum(event["kind"] == "phase" and event["data"]["new"] == "failed" for event in events) == 1


def test_a_log_of_50_mb_and_a_line_of_10_mb_come_in_pieces_of_bounded_size(case: Case) -> None:  # U1
    script = "print('z' * 10_000_000)\nfor i in range(400_000):\n    print(i, 'w' * 95)\n"
    run_id, run = case.submit(script)
    assert case.call("wait", run_id).returncode == 0
    size = run.attempt(0).log(0).stat().st_size
    assert size > 50_000_000
    with connect(Home(case.home)) as client:
        began = time.monotonic()
        first = client.log_chunk(run_id, 0)
        last = client.log_chunk(run_id, 0, tail=100)
        assert time.monotonic() - began < 30.0  # two calls take 0.1 s; a busy machine has more to do
        assert 0 < len(first["text"]) <= 2 << 20
        assert (first["size"], first["next_offset"]) == (size, len(first["text"]))
        assert last["text"].count("\n") == 100
        assert last["text"].startswith("399900 ")
        assert (
            sum(len(piece) for piece in client.raw_log(run_id, 0)) == size
        )  # all of it, as it is, is there for who asks


def test_a_process_of_a_rank_that_crashes_is_no_other_rank(case: Case) -> None:
    script = (
        "import multiprocessing, os, signal\n"
        "fork = multiprocessing.get_context('fork')\n"
        "here, there = fork.Pipe()\n"
        "child = fork.Process(target=lambda: os.kill(os.getpid(), signal.SIGSEGV))\n"
        "child.start()\n"
        "there.close()\n"
        "here.recv()\n"
    )
    run_id, _ = case.submit(script)
    assert case.call("wait", run_id).returncode == 1
    told = json.loads(case.call("show", run_id, "--json").stdout)
    assert "lost a process that it had started, which crashed (SIGSEGV): EOFError" in told["message"]
    assert (told["reason"], len(told["attempts"])) == ("user_error", 1)


def test_a_handler_for_ended_processes_does_not_spoil_what_is_told_of_an_exception(case: Case) -> None:
    script = (
        "import os, signal, subprocess\n"
        "def raise_too(*_):\n    raise RuntimeError('worker is gone')\n"
        "signal.signal(signal.SIGCHLD, raise_too)\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        "class Failure(Exception):\n"
        "    def __str__(self):\n"
        "        child.poll() is None and child.kill()\n"
        "        return 'step 7' if child.wait() else ''\n"
        "raise Failure()\n"
    )
    run_id, _ = case.submit(script)
    assert case.call("wait", run_id).returncode == 1
    told = json.loads(case.call("show", run_id, "--json").stdout)
    assert "failed: Failure: step 7." in told["message"]
    assert "Failure: step 7" in case.call("logs", run_id).stdout
