"""A leader without ranks: writes a run directory as an agent and its training code would, a fact at a time."""

from __future__ import annotations

import json
from typing import Any

from gangline.ports import Clock
from gangline.rundir.files import write_json
from gangline.rundir.journal import JournalWriter
from gangline.rundir.layout import RunDir
from gangline.testing.clock import FakeClock

__all__ = ["FakeLeader"]


class FakeLeader:
    """The leader of one launch.

    Args:
        run_dir: of the run; `launch.json` of the launch must be there.
        launch: number of the launch.
        clock: tells when attempts end and lines are logged.
    """

    def __init__(self, run_dir: RunDir, launch: int = 0, *, clock: Clock | None = None) -> None:
        self._clock = clock or FakeClock()
        self.run_dir = run_dir
        self.launch = launch
        self.told: dict[str, Any] = json.loads(run_dir.launch(launch).spec.read_text(encoding="utf-8"))
        """What `launch.json` says."""
        self.attempt = int(self.told["first_attempt"]) - 1
        """The newest attempt that was begun."""

    @property
    def world_size(self) -> int:
        return int(self.told["nodes"]) * int(self.told["procs_per_node"])

    def begin(self, *, running: bool = True) -> int:
        """Begin the next attempt; returns its number."""
        self.attempt += 1
        if self.attempt == self.told["first_attempt"]:
            self.journal("agent_started", pid=1000, host="host-0", address="127.0.0.1", version="0", python="3")
        facts = {"attempt": self.attempt, "launch": self.launch, "start_mode": "exec"}
        self.journal("attempt_started", **facts, resume=None, resume_step=None)
        for rank in range(self.world_size):
            self.journal("rank_started", rank=rank, local_rank=rank, pid=2000 + rank)
        if running:
            self.run()
        return self.attempt

    def begin_anew(self) -> int:
        """As `begin`, by agents that the backend has started again: the launch was put back into its queue."""
        number = self.attempt + 1
        with JournalWriter(self.run_dir.attempt(number).events(0)) as journal:
            journal.write("agent_started", pid=1001, host="host-1", address="127.0.0.1", version="0", python="3")
        return self.begin()

    def beat(self) -> None:
        """Touch the sign of life."""
        self.run_dir.launch(self.launch).alive.touch()

    def run(self) -> None:
        """All ranks of the attempt have started."""
        self.journal("attempt_running")

    def journal(self, kind: str, **keys: Any) -> None:  # noqa: ANN401 - journals hold anything
        """Write a record to the leader's journal of the attempt."""
        with JournalWriter(self.run_dir.attempt(self.attempt).events(0)) as journal:
            journal.write(kind, **keys)

    def log(self, values: dict[str, float], *, step: int | None, rank: int = 0) -> None:
        """What `gangline.log` would write."""
        self.line(rank, k="m", s=step, v=values)

    def progress(self, step: int, total: int | None = None) -> None:
        """What `gangline.progress` would write in rank 0."""
        self.line(0, k="p", s=step, n=total)

    def checkpoint(self, step: int) -> str:
        """What a commit would write; returns the path."""
        path = f"/nowhere/step-{step:010d}.attempt-{self.attempt:03d}"
        self.line(0, k="c", s=step, path=path, bytes=10, files=2, seconds=0.5)
        return path

    def line(self, rank: int, **keys: Any) -> None:  # noqa: ANN401 - as `journal`
        """Write a line to a rank's metrics."""
        path = self.run_dir.metrics(rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"a": self.attempt, "t": self._clock.now(), **keys}) + "\n")

    def end(self, outcome: str = "succeeded", *, next_step: str = "end", **keys: Any) -> None:  # noqa: ANN401 - as `journal`
        """Write the attempt's result.

        Args:
            next_step: `end`, `restart` or `relaunch`; further keys replace those of the result.
        """
        result = {
            "version": 1,
            "attempt": self.attempt,
            "launch": self.launch,
            "outcome": outcome,
            "reason": None if outcome == "succeeded" else "user_error",
            "message": f"The attempt {outcome}.",
            "exit_code": 0 if outcome == "succeeded" else 1,
            "ended": self._clock.now(),
            "first_failure": None,
            "ranks": [],
            "next": next_step,
            "next_delay_s": 0.0,
            "budget": None,
            "restart_message": "",
            **keys,
        }
        write_json(self.run_dir.attempt(self.attempt).result, result)
