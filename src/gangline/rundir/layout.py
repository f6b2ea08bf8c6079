"""Where everything of a run lies. The run directory is the protocol: agents write it, everyone else reads it.

    <run>/spec.json                          the spec, frozen at submit
    <run>/run.json                           what the server has decided of the run, should its database be lost
    <run>/spec.001.json                      the spec as `gangline resume` has changed it, for the first time
    <run>/code/                              the restored snapshot
    <run>/code.json                          manifest of the snapshot
    <run>/code.restored                      its time: when `code/` was last seen to be what the manifest says
    <run>/changed/1/                         what earlier attempts had made of files of the snapshot
    <run>/control.jsonl                      requests to the gang (server appends, leader follows)
    <run>/checkpoints/                       default checkpoint folder
    <run>/metrics/rank-00000.jsonl           what training code logged (gangline.log, progress, phase, checkpoint)
    <run>/launches/000/launch.json           what the agents of this launch were told (owner-readable only: token, env)
    <run>/launches/000/handle.json           what the backend knows this launch by (server)
    <run>/launches/000/node-000.lock         held by that agent while it lives; its content is the agent's pid
    <run>/launches/000/node-000.log          the agent's own stdout and stderr
    <run>/launches/000/leader.json           address of the leader, written by rename once it listens
    <run>/launches/000/leader.alive          touched by the leader while it lives; what it holds is room for a result
    <run>/launches/000/job.exit              left by a batch script at its end: EXIT_CODE RESTART TIME, by rename
    <run>/attempts/0/gang.json               members of the attempt
    <run>/attempts/0/hostfile                address and slots of each node, for strategies whose tools read one
    <run>/attempts/0/mpi/                    where stand-ins of `mpirun` meet the agents
    <run>/attempts/0/notice.json             a stop or preemption notice, for `gangline.should_stop()`
    <run>/attempts/0/stop_calls/rank-00003.json  where a rank was when it saw the notice
    <run>/attempts/0/stop_at.json            rank 0's word on when all ranks obey the notice
    <run>/attempts/0/result.json             how the attempt ended; once, by rename, by the leader
    <run>/attempts/0/node-000/events.jsonl   journal of that agent
    <run>/attempts/0/node-000/system.jsonl   samples of CPU, memory, disk, network, accelerators
    <run>/attempts/0/node-000/environment.json  interpreter, packages, drivers, devices, host
    <run>/attempts/0/rank-00003.log          stdout and stderr, as bytes, written by the rank itself
    <run>/attempts/0/rank-00003.dropped.jsonl  what was dropped from the log to keep its limit
    <run>/attempts/0/rank-00003.index        time to offset of the log, kept by the agent
    <run>/attempts/0/rank-00003.error.json   the exception that ended the rank
    <run>/attempts/0/rank-00003.left.json    when its interpreter began to end without one
    <run>/attempts/0/rank-00003.stacks       stack dumps
    <run>/attempts/0/rank-00003.pdb          socket at which a person debugs the rank
    <run>/attempts/0/stacks/ID.json          stacks of all ranks of one moment, grouped
    <run>/attempts/0/rank-00003.cooperative  exists once the rank handles the stop signal by `gangline.should_stop()`

Standard library only.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["EXIT_MARK", "SIGNALLED", "AttemptDir", "LaunchDir", "RunDir"]

EXIT_MARK = "job.exit"
SIGNALLED = "signal"
"""Kind of a notice that a rank has written: SIGTERM came to that rank alone, from outside."""
_ATTEMPT = re.compile(r"(\d+)")
_NODE = re.compile(r"node-(\d+)")


@dataclass(frozen=True, slots=True)
class AttemptDir:
    """Paths of one attempt."""

    path: Path

    @property
    def number(self) -> int:
        return int(self.path.name)

    @property
    def gang(self) -> Path:
        return self.path / "gang.json"

    @property
    def notice(self) -> Path:
        return self.path / "notice.json"

    @property
    def stop_at(self) -> Path:
        return self.path / "stop_at.json"

    def stop_call(self, rank: int) -> Path:
        return self.path / "stop_calls" / f"rank-{rank:05d}.json"

    @property
    def result(self) -> Path:
        return self.path / "result.json"

    def node(self, node: int) -> Path:
        return self.path / f"node-{node:03d}"

    def events(self, node: int) -> Path:
        return self.node(node) / "events.jsonl"

    def system(self, node: int) -> Path:
        return self.node(node) / "system.jsonl"

    def environment(self, node: int) -> Path:
        return self.node(node) / "environment.json"

    def log(self, rank: int) -> Path:
        return self.path / f"rank-{rank:05d}.log"

    def index(self, rank: int) -> Path:
        return self.path / f"rank-{rank:05d}.index"

    def error(self, rank: int) -> Path:
        return self.path / f"rank-{rank:05d}.error.json"

    def recorded_error(self, rank: int) -> Path:
        """Where PyTorch's `record` describes the exception of its function."""
        return self.path / f"rank-{rank:05d}.record.json"

    def left(self, rank: int) -> Path:
        """When its interpreter began to end without an exception; next to `error`, which tells of one."""
        return self.path / f"rank-{rank:05d}.left.json"

    def stacks(self, rank: int) -> Path:
        return self.path / f"rank-{rank:05d}.stacks"

    def pdb(self, rank: int) -> Path:
        return self.path / f"rank-{rank:05d}.pdb"

    def nccl_record(self, rank: int | None = None) -> Path:
        """NCCL's flight recorder of a rank; None: the beginning of the name, behind which PyTorch puts the rank."""
        return self.path / f"nccl-record-{'' if rank is None else rank}"

    def nccl_pipe(self, rank: int | None = None) -> Path:
        """What is written to it has the rank write its record; None: as above."""
        return self.path / ("nccl-ask-" if rank is None else f"nccl-ask-{rank}.pipe")

    def gang_stacks(self, number: str) -> Path:
        return self.path / "stacks" / f"{number}.json"

    def gang_stacks_taken(self) -> list[Path]:
        """Answers to requests for stacks, by their ids: several of one second may stand in any order."""
        return sorted((self.path / "stacks").glob("*.json"))

    def cooperative(self, rank: int) -> Path:
        return self.path / f"rank-{rank:05d}.cooperative"

    def ranks(self) -> list[int]:
        """Ranks that have a log, ascending."""
        return sorted(int(path.stem.removeprefix("rank-")) for path in self.path.glob("rank-*.log"))

    def nodes(self) -> list[int]:
        """Nodes that have a folder, ascending."""
        return [number for number, _ in _numbered(self.path, _NODE)]


@dataclass(frozen=True, slots=True)
class LaunchDir:
    """Paths of one launch: one set of agents."""

    path: Path

    @property
    def number(self) -> int:
        return int(self.path.name)

    @property
    def spec(self) -> Path:
        return self.path / "launch.json"

    @property
    def handle(self) -> Path:
        return self.path / "handle.json"

    @property
    def leader(self) -> Path:
        return self.path / "leader.json"

    @property
    def alive(self) -> Path:
        return self.path / "leader.alive"

    @property
    def exit_mark(self) -> Path:
        return self.path / EXIT_MARK

    def lock(self, node: int) -> Path:
        return self.path / f"node-{node:03d}.lock"

    def log(self, node: int) -> Path:
        return self.path / f"node-{node:03d}.log"


@dataclass(frozen=True, slots=True)
class RunDir:
    """Paths of one run."""

    path: Path

    @property
    def spec(self) -> Path:
        return self.path / "spec.json"

    def spec_revision(self, number: int) -> Path:
        return self.path / f"spec.{number:03d}.json"

    @property
    def record(self) -> Path:
        return self.path / "run.json"

    @property
    def code(self) -> Path:
        return self.path / "code"

    @property
    def code_manifest(self) -> Path:
        return self.path / "code.json"

    @property
    def code_restored(self) -> Path:
        return self.path / "code.restored"

    def changed(self, attempt: int) -> Path:
        return self.path / "changed" / str(attempt)

    @property
    def control(self) -> Path:
        return self.path / "control.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def metrics(self, rank: int) -> Path:
        return self.path / "metrics" / f"rank-{rank:05d}.jsonl"

    def metric_ranks(self) -> list[int]:
        """Ranks that have logged anything, ascending."""
        return sorted(int(path.stem.removeprefix("rank-")) for path in (self.path / "metrics").glob("rank-*.jsonl"))

    def attempt(self, number: int) -> AttemptDir:
        return AttemptDir(self.path / "attempts" / str(number))

    def launch(self, number: int) -> LaunchDir:
        return LaunchDir(self.path / "launches" / f"{number:03d}")

    def attempts(self) -> list[AttemptDir]:
        """Attempts that were begun, in numeric order."""
        return [AttemptDir(path) for _, path in _numbered(self.path / "attempts", _ATTEMPT)]

    def launches(self) -> list[LaunchDir]:
        """Launches that were begun, in numeric order."""
        return [LaunchDir(path) for _, path in _numbered(self.path / "launches", _ATTEMPT)]


def _numbered(folder: Path, name: re.Pattern[str]) -> list[tuple[int, Path]]:
    """Folders in it that are called so, by the number in their names; asked ten times a second for each run."""
    try:
        with os.scandir(folder) as entries:
            folders = ((match, entry) for entry in entries if (match := name.fullmatch(entry.name)) and entry.is_dir())
            found = [(int(match[1]), entry.name) for match, entry in folders]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [(number, folder / name) for number, name in sorted(found)]
