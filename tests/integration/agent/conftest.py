"""Real gangs from the zipapp, on run directories made by hand."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from gangline.agent.bundle import build
from gangline.agent.processes import processes_of
from gangline.rundir.journal import read_journal
from gangline.rundir.layout import AttemptDir, RunDir

_PATIENCE_S = 60.0


class Gang:
    """One run with its agents, started by hand."""

    def __init__(self, bundle: Path, path: Path) -> None:
        self.bundle = bundle
        self.run = RunDir(path)
        self.run.code.mkdir(parents=True)
        self.agents: dict[int, subprocess.Popen[bytes]] = {}
        self.launch = 0
        self.nodes = 1

    def script(self, text: str, name: str = "train.py") -> Path:
        path = self.run.code / name
        path.write_text(textwrap.dedent(text))
        return path

    def write_launch(self, **keys: Any) -> None:
        self.nodes = keys.get("nodes", 1)
        self.launch = keys.get("launch", 0)
        spec = {
            "version": 1,
            "run_id": "test-0000",
            "run_name": "test",
            "project": "default",
            "launch": 0,
            "first_attempt": 0,
            "nodes": 1,
            "procs_per_node": 2,
            "token": "secret-of-the-gang",
            "entry_kind": "script",
            "entry": "train.py",
            "args": [],
            "python": sys.executable,
            "env": {},
            "start": "exec",
            "strategy": "ddp",
            "checkpoint": {"path": str(self.run.checkpoints), "keep_last": 3, "resume": "auto"},
            "restarts": {"max_restarts": 0, "max_infrastructure_restarts": 0, "backoff_s": 0.05, "max_backoff_s": 1.0},
            "stop": {"grace_s": 5.0, "failure_grace_s": 2.0, "start_timeout_s": 30.0},
            **keys,
        }
        path = self.run.launch(self.launch).spec
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(spec))

    def start_agent(
        self, node: int, *, through: Sequence[str] = (), stdin: int = subprocess.DEVNULL, **env: str
    ) -> subprocess.Popen[bytes]:
        argv = [*through, sys.executable, str(self.bundle), "agent", str(self.run.path)]
        argv += ["--launch", str(self.launch), "--node", str(node)]
        with self.run.launch(self.launch).log(node).open("ab") as log:
            agent = subprocess.Popen(
                argv,
                stdin=stdin,
                stdout=log,
                stderr=log,
                env={**os.environ, "GANGLINE_ADDRESS": "127.0.0.1", **env},
                start_new_session=True,
            )
        self.agents[node] = agent
        return agent

    def pid(self, node: int) -> int:
        """Of an agent itself; `agents` has its guardian, which is what backends start."""
        return int(self.run.launch(self.launch).lock(node).read_text())

    def start(self, **keys: Any) -> Gang:
        self.write_launch(**keys)
        for node in range(self.nodes):
            self.start_agent(node)
        return self

    def run_to_end(self, **keys: Any) -> dict[str, Any]:
        """Start, wait for all agents, and return the last result."""
        self.start(**keys)
        self.wait()
        return self.result()

    def wait(self, timeout_s: float = _PATIENCE_S) -> dict[int, int]:
        return {node: agent.wait(timeout_s) for node, agent in self.agents.items()}

    def until(self, condition: Callable[[], Any], timeout_s: float = _PATIENCE_S) -> Any:
        deadline = time.monotonic() + timeout_s
        while not (found := condition()):
            if time.monotonic() > deadline:
                raise AssertionError(f"not seen in {timeout_s} s; agents said:\n{self.agent_logs()}")
            time.sleep(0.01)
        return found

    def until_said(self, text: str, *, rank: int = 0, attempt: int = 0) -> None:
        self.until(lambda: text in self.log(rank, attempt))

    def until_running(self, attempt: int = 0) -> dict[int, int]:
        """Wait until every rank of the attempt was started; their pids by rank."""
        self.until(lambda: self.events("attempt_running", attempt=attempt))
        started = [
            event for node in range(self.nodes) for event in self.events("rank_started", node=node, attempt=attempt)
        ]
        return {event["rank"]: event["pid"] for event in started}

    def stop(self, cause: str = "stop", grace_s: float | None = None) -> None:
        request = {"seq": 0, "t": time.time(), "kind": "stop", "cause": cause, "grace_s": grace_s, "by": "alice"}
        with self.run.control.open("a") as file:
            file.write(json.dumps(request) + "\n")

    def attempt(self, number: int = 0) -> AttemptDir:
        return self.run.attempt(number)

    def log(self, rank: int = 0, attempt: int = 0) -> str:
        path = self.attempt(attempt).log(rank)
        return path.read_bytes().decode("utf-8", "replace") if path.exists() else ""

    def events(self, kind: str, *, node: int = 0, attempt: int = 0) -> list[dict[str, Any]]:
        return [event for event in read_journal(self.attempt(attempt).events(node)) if event["kind"] == kind]

    def result(self, attempt: int | None = None) -> dict[str, Any]:
        folder = self.run.attempts()[-1] if attempt is None else self.attempt(attempt)
        assert folder.result.exists(), f"no result of attempt {folder.number}; agents said:\n{self.agent_logs()}"
        return dict(json.loads(folder.result.read_text()))

    def agent_logs(self) -> str:
        logs = sorted(self.run.launch(self.launch).path.glob("node-*.log"))
        return "\n".join(f"{log.name}: {log.read_text(errors='replace')}" for log in logs)

    def left_behind(self) -> list[int]:
        """Processes that this run started and that still live."""
        return processes_of({"GANGLINE_RUN_DIR": str(self.run.path)})

    def end(self) -> None:
        for agent in self.agents.values():
            if agent.poll() is None:
                agent.kill()
            agent.wait()
        self.until(lambda: not self.left_behind())


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("bundle"))


@pytest.fixture
def make_gang(bundle: Path, tmp_path: Path) -> Iterator[Callable[[], Gang]]:
    gangs: list[Gang] = []

    def make() -> Gang:
        gangs.append(Gang(bundle, tmp_path / "runs" / f"run-{len(gangs)}"))
        return gangs[-1]

    yield make
    for gang in gangs:
        gang.end()


@pytest.fixture
def gang(make_gang: Callable[[], Gang]) -> Gang:
    return make_gang()


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
