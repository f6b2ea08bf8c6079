"""Runs one script in three ways: as `python script.py` would, by exec start, by warm start."""

from __future__ import annotations

import ctypes
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gangline.agent.choose import ReasonedStarter, StarterPlan, open_starter
from gangline.agent.execstart import ExecStarter
from gangline.agent.starter import RankExit, RankStart

PATIENCE_S = 120.0
_PR_SET_CHILD_SUBREAPER = 36
"""A starter adopts orphans. Left on, later tests in this process would count servers and the like as their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How one process ended, and what it left."""

    exit_code: int | None
    signal: int | None
    log: bytes
    error: Mapping[str, Any] | None
    pid: int

    @property
    def text(self) -> str:
        return self.log.decode("utf-8", "backslashreplace")

    @property
    def json(self) -> Any:
        assert self.exit_code == 0, self.text
        return json.loads(self.text)


class Bench:
    """A folder with scripts, and starters that run them."""

    def __init__(self, folder: Path) -> None:
        self.code = folder / "code"
        self.launch = folder / "launch"
        self.logs = folder / "logs"
        for each in (self.code, self.launch, self.logs):
            each.mkdir()
        self._count = 0
        self._open: list[ReasonedStarter] = []

    def write(self, files: Mapping[str, str | bytes]) -> None:
        for name, content in files.items():
            path = self.code / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())

    def env(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        base = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        base |= {
            "LANG": "C.UTF-8",
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": "1",
            "RANK": "0",
            "GANGLINE_RUN_ID": "r-1",
        }
        return {**base, **(extra or {})}

    def rank(
        self, entry: str, *, args: Sequence[str] = (), env: Mapping[str, str] | None = None, number: int = 0
    ) -> RankStart:
        """A rank of `entry`: a path that ends with .py or holds a slash, else a module."""
        self._count += 1
        name = self.logs / f"{self._count}"
        kind = "script" if entry.endswith(".py") or "/" in entry else "module"
        return RankStart(
            rank=number,
            local_rank=number,
            env=self.env({"RANK": str(number), **(env or {})}),
            cwd=str(self.code),
            log_path=f"{name}.log",
            error_path=f"{name}.error.json",
            stacks_path=f"{name}.stacks",
            entry_kind=kind,
            entry=entry,
            args=tuple(args),
            python=sys.executable,
        )

    def open(self, rank: RankStart, *, start: str = "warm", preload: Sequence[str] = ()) -> ReasonedStarter:
        """A starter for ranks like this one, ready."""
        plan = StarterPlan(
            start=start,
            entry_kind=rank.entry_kind,
            entry=rank.entry,
            args=rank.args,
            python=rank.python,
            cwd=rank.cwd,
            preload=tuple(preload),
            env=rank.env,
            folder=self.launch,
        )
        starter = open_starter(plan, exec_starter=ExecStarter)
        self._open.append(starter)
        self.wait(starter, starter.ready)
        return starter

    def run(self, mode: str, rank: RankStart, **how: Any) -> Ended:
        """Run one rank to its end: `plain`, `exec` or `warm` (which must really be warm)."""
        if mode == "plain":
            return self.run_plain(rank)
        starter = self.open(rank, start=mode, **how)
        assert (starter.mode, starter.fallback_reason) == (mode, None)
        pid = starter.start(rank)
        ended = self.finish(starter, {pid: rank})[pid]
        assert (starter.mode, starter.fallback_reason) == (mode, None)
        return ended

    def run_plain(self, rank: RankStart) -> Ended:
        """What a shell does: `python entry args </dev/null >>log 2>&1`."""
        argv = [rank.python, *(["-m"] if rank.entry_kind == "module" else []), rank.entry, *rank.args]
        with Path(rank.log_path).open("ab") as log, Path(os.devnull).open("rb") as nothing:
            process = subprocess.Popen(
                argv, stdin=nothing, stdout=log, stderr=log, env=dict(rank.env), cwd=rank.cwd, start_new_session=True
            )
        try:
            code = process.wait(PATIENCE_S)
        finally:
            process.kill()
            process.wait()
        ended = RankExit(
            pid=process.pid, exit_code=code if code >= 0 else None, signal=-code if code < 0 else None, time=0.0
        )
        return _ended(rank, ended)

    def finish(self, starter: ReasonedStarter, ranks: Mapping[int, RankStart]) -> dict[int, Ended]:
        """Wait for the end of these ranks, by pid."""
        found: dict[int, Ended] = {}

        def all_ended() -> bool:
            for one in starter.exits():
                found[one.pid] = _ended(ranks[one.pid], one)
            return len(found) == len(ranks)

        self.wait(starter, all_ended)
        return found

    @staticmethod
    def wait(starter: ReasonedStarter, condition: Callable[[], bool]) -> None:
        """Let the starter's descriptor say when to look again, as the agent's loop does."""
        poll = select.poll()
        poll.register(starter.fileno(), select.POLLIN)
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, "nothing happened in time"
            poll.poll(1000)

    def close(self) -> None:
        for starter in reversed(self._open):  # each puts back the SIGCHLD handler that it found
            starter.close()


def _ended(rank: RankStart, gone: RankExit) -> Ended:
    error = Path(rank.error_path)
    return Ended(
        exit_code=gone.exit_code,
        signal=gone.signal,
        log=Path(rank.log_path).read_bytes(),
        error=json.loads(error.read_text()) if error.exists() else None,
        pid=gone.pid,
    )


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.close()
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
