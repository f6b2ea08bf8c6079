"""One of four ranks killed with -9: how soon the others are gone, and how soon every rank steps again.

The peer needs TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1: without it none of its restarts over gloo succeeds.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import time
from pathlib import Path

import psutil

from measure import GANGLINE, TORCHRUN, WAIT_S, Place, Row, in_turns, new_place, row_of, wait_until

RANKS, VICTIM, MANY = 4, 2, 100
GONE_GOAL_S = 0.1


def measure() -> list[Row]:
    gone: list[float] = []
    with new_place() as place:
        project = place.project("steps.py")
        ours, peer = in_turns(
            lambda: gangline_restart_s(place, project, gone), lambda: torchrun_restart_s(place, project), times=5
        )
        restarted = count_restarts(place, project)
    row = row_of(
        ours,
        peer,
        limit=0.15,
        what="one of 4 ranks killed -9 to every rank's first step of the next attempt",
        unit="s",
        peer_is="torchrun --max-restarts 1 (with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1)",
        goal="<= 0.15",
    )
    return [row, _gone_row(gone), _many_row(restarted)]


def _gone_row(gone: list[float]) -> Row:
    median = statistics.median(gone)
    return Row(
        what="one of 4 ranks killed -9 to the others gone",
        unit="s",
        ours=median,
        goal="<= 0.1 s",
        met=median <= GONE_GOAL_S,
        samples=len(gone),
        spread=(min(gone), max(gone)),
    )


def _many_row(restarted: int) -> Row:
    return Row(
        what=f"restarts that succeed, of {MANY} in one run",
        unit="",
        ours=restarted,
        goal=f"{MANY}",
        met=restarted == MANY,
    )


def gangline_restart_s(place: Place, project: Path, gone: list[float]) -> float:
    out = place.out()
    command = [GANGLINE, "submit", "--procs-per-node", str(RANKS), "--follow", "steps.py", str(out)]
    with _running(command, place, project, out):
        return _kill_and_time(out, 0, gone)


def torchrun_restart_s(place: Place, project: Path) -> float:
    out = place.out()
    command = [TORCHRUN, "--standalone", f"--nproc-per-node={RANKS}", "--max-restarts", "1", "steps.py", str(out)]
    with _running(command, place, project, out):
        return _kill_and_time(out, 0, [])


def count_restarts(place: Place, project: Path) -> int:
    """Kill a rank again and again in one run; how many times the gang came back."""
    out = place.out()
    limits = ["--max-infra-restarts", str(MANY), "--restart-backoff", "0"]
    command = [GANGLINE, "submit", "--procs-per-node", str(RANKS), *limits, "--follow", "steps.py", str(out)]
    succeeded = 0
    with _running(command, place, project, out):
        for attempt in range(MANY):
            try:
                _kill_and_time(out, attempt, [])
            except TimeoutError:
                break
            succeeded += 1
    return succeeded


class _running:  # noqa: N801 - a context manager that reads as a verb
    """Run a launcher until the block is left; then ask its ranks to end, and wait for it."""

    def __init__(self, command: list[str], place: Place, project: Path, out: Path) -> None:
        env = {**place.env, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        self.out = out
        self.process = subprocess.Popen(
            command, cwd=project, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def __enter__(self) -> None:
        return None

    def __exit__(self, *error: object) -> None:
        (self.out / "stop").touch()
        self.process.wait(timeout=WAIT_S)


def _kill_and_time(out: Path, attempt: int, gone: list[float]) -> float:
    """Kill one rank. Adds to `gone` how long the others lived; returns how long until all step again."""
    pids = wait_until(lambda: _pids(out, attempt), what=f"attempt {attempt}")
    began = time.time()
    os.kill(pids[VICTIM], signal.SIGKILL)
    wait_until(lambda: not any(_lives(pid) for pid in pids), what="the others to be gone", pause_s=0.001)
    gone.append(time.time() - began)
    wait_until(lambda: _pids(out, attempt + 1), what=f"attempt {attempt + 1}", timeout_s=60)
    return max(float(path.read_text().split()[1]) for path in out.glob(f"first-{attempt + 1}-*")) - began


def _pids(out: Path, attempt: int) -> list[int]:
    """Pids by rank, once every rank has made a step; else an empty list."""
    found = sorted(out.glob(f"first-{attempt}-*"))
    return [int(path.read_text().split()[0]) for path in found] if len(found) == RANKS else []


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
