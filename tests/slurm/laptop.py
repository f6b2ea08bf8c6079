"""A laptop that sees the cluster through its bastion alone: a state folder, a server, and the pool `lab`."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.conftest import gangline
from tests.slurm.cluster import Cluster

from gangline.client import Client, connect
from gangline.domain.errors import NotFound
from gangline.rundir.home import Home

__all__ = ["HOLD", "Laptop", "eventually"]

PATIENCE_S = 90.0
OVER = {"succeeded", "failed", "stopped"}

HOLD = """
import os, pathlib, signal, sys, time
run, rank = pathlib.Path(os.environ["GANGLINE_RUN_DIR"]), os.environ["RANK"]
print("rank", rank, "of attempt", os.environ["GANGLINE_ATTEMPT"], "up", flush=True)
count = 0
while not (run / "go").exists():
    count += 1
    print("count", count, flush=True)
    time.sleep(0.1)
print("rank", rank, "done", flush=True)
"""
"""Counts until the test says `go`."""


def eventually(what: str, condition: Callable[[], Any], within_s: float = PATIENCE_S) -> Any:
    """The first true answer."""
    deadline = time.monotonic() + within_s
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"waited {within_s:g} s for {what}"
        time.sleep(0.2)
    return answer


class Laptop:
    def __init__(self, folder: Path, home: Path, cluster: Cluster) -> None:
        self.folder, self.home, self.cluster = folder, home, cluster
        self.work_here = cluster.work_here / home.name
        pool = {
            "backend": "slurm",
            "ssh": "bastion",
            "ssh_options": ["-F", str(cluster.ssh_config)],
            "work": f"{cluster.work}/{home.name}",
            "ranks_python": str(cluster.ranks_python),
            "poll_s": 0.5,
        }
        (home / "pools.yaml").write_text(json.dumps({"pools": {"lab": pool}}))

    def gangline(self, *args: str, rc: int | None = 0, cwd: Path | None = None) -> str:
        """Run the command line; its stdout."""
        done = gangline(*args, home=self.home, cwd=cwd or self.folder)
        assert rc is None or done.returncode == rc, f"{args} -> {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout

    def refused(self, *args: str) -> str:
        """Run a command that fails; what it says of it."""
        done = gangline(*args, home=self.home, cwd=self.folder)
        assert done.returncode != 0, done.stdout
        return done.stderr

    def submit(self, script: str, *options: str) -> str:
        """Submit a script to the pool; the run's id."""
        project = self.folder / f"project-{time.monotonic_ns()}"
        project.mkdir()
        (project / "train.py").write_text(script)
        return json.loads(self.gangline("submit", "--json", "--pool", "lab", *options, "train.py", cwd=project))["id"]

    @contextmanager
    def client(self) -> Iterator[Client]:
        with connect(Home(self.home)) as client:
            yield client

    def show(self, run: str) -> Any:
        with self.client() as client:
            return client.run(run)

    def until(self, run: str, *phases: str, within_s: float = PATIENCE_S) -> Any:
        """What is shown of a run that has come to one of these phases; another end fails the test at once."""
        deadline = time.monotonic() + within_s
        while (shown := self.show(run))["phase"] not in phases:
            assert shown["phase"] not in OVER, self.describe(run)
            assert time.monotonic() < deadline, self.describe(run)
            time.sleep(0.2)
        return shown

    def go(self, run: str) -> None:
        """Let the ranks of `HOLD` end."""
        (self.run_dir(run) / "go").touch()

    def run_dir(self, run: str) -> Path:
        """The run directory on the cluster, as this test can see it and the server cannot."""
        return self.work_here / "runs" / run

    def log(self, run: str, rank: int = 0, attempt: int | None = None) -> str:
        """What the server has of a rank's log so far."""
        with self.client() as client:
            try:
                return b"".join(client.raw_log(run, rank, attempt=attempt)).decode()
            except NotFound:
                return ""

    def logged(self, run: str, text: str, rank: int = 0, attempt: int | None = None) -> None:
        """Wait until a rank's log, as the server has it, holds a text."""
        deadline = time.monotonic() + PATIENCE_S
        while text not in (log := self.log(run, rank, attempt)):
            assert time.monotonic() < deadline, f"no `{text}` in `{log[-1000:]}`\n{self.describe(run)}"
            is_over = self.show(run)["phase"] in OVER
            assert not is_over or text in self.log(run, rank, attempt), self.describe(run)
            time.sleep(0.2)

    def grows(self, run: str, rank: int = 0) -> None:
        """Wait until the server has more of a rank's log."""
        before = len(self.log(run, rank))
        deadline = time.monotonic() + PATIENCE_S
        while len(self.log(run, rank)) <= before + 50:
            assert time.monotonic() < deadline, f"no more than {before} bytes of rank {rank}\n{self.describe(run)}"
            time.sleep(0.2)

    def jobs(self, run: str) -> dict[str, str]:
        """Slurm jobs of a run that the controller knows: their states by their numbers."""
        listed = self.cluster.as_user(["squeue", "-h", "-t", "all", "-o", "%i|%T|%k"]).stdout.splitlines()
        rows = [line.split("|") for line in listed]
        return {job: state for job, state, comment in rows if f":{run}/" in comment}

    def job(self, run: str) -> str:
        """The one that lives."""
        (job,) = [job for job, state in self.jobs(run).items() if state in {"PENDING", "RUNNING"}]
        return job

    def kill_server(self) -> None:
        with self.client() as client:
            os.kill(client.health()["pid"], signal.SIGKILL)

    def describe(self, run: str) -> str:
        """All that helps when a test fails."""
        shown = gangline("show", run, home=self.home).stdout
        logs = [path for path in self.run_dir(run).glob("launches/*/*.log") if path.is_file()]
        ends = "".join(f"--- {path}\n{path.read_text(errors='replace')[-1500:]}" for path in sorted(logs))
        server = (self.home / "server.log").read_text()[-3000:]
        return f"{shown}\n{self.jobs(run)}\n{ends}\n--- server\n{server}"
