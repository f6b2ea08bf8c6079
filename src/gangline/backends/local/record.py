"""What the backend noted about one launch while it started the agents: `launches/NNN/agents.jsonl`.

It grows line by line, so that a server that is killed between two agents finds out which ones it had started.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from gangline.backends.local.processes import AgentProcess
from gangline.rundir.journal import read_journal
from gangline.rundir.layout import LaunchDir

__all__ = ["LaunchRecord", "read_record", "record_path"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRecord:
    """What is known of an earlier call of `submit`."""

    key: str | None = None
    """None: there was none."""
    boot: str = ""
    agents: dict[int, AgentProcess] = field(default_factory=dict)


def record_path(folder: LaunchDir) -> Path:
    """Where the record of a launch lies."""
    return folder.path / "agents.jsonl"


def read_record(folder: LaunchDir) -> LaunchRecord:
    """Read what was noted; kinds are `launch`, `agent`, and `abandoned` (all agents so far were killed)."""
    record = LaunchRecord()
    for line in read_journal(record_path(folder)):
        if line["kind"] == "launch":
            record = LaunchRecord(key=line["key"], boot=line["boot"])
        elif line["kind"] == "agent":
            record.agents[line["node"]] = AgentProcess(node=line["node"], pid=line["pid"], started=line["started"])
        elif line["kind"] == "abandoned":
            record.agents.clear()
    return record
