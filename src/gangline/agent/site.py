"""Who and where this agent is, and the journal it writes. Standard library only."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gangline.agent.launchspec import LaunchSpec
from gangline.rundir.journal import JournalWriter
from gangline.rundir.layout import AttemptDir, RunDir

__all__ = ["Journal", "Site", "complain", "machine_id"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """One agent's place in its gang."""

    launch: LaunchSpec
    run: RunDir
    index: int
    """Number of the node."""
    host: str
    address: str
    """At which ranks of other nodes reach this one."""

    @property
    def workdir(self) -> Path:
        """Folder in which the ranks start."""
        return Path(os.path.normpath(self.run.code / self.launch.workdir))


class Journal:
    """The events of one node, over all attempts; what cannot be written is said in the agent's own log, and nothing stops."""

    def __init__(self, run: RunDir, node: int) -> None:
        self._run = run
        self._node = node
        self._writer: JournalWriter | None = None
        self._path: Path | None = None

    def open(self, attempt: AttemptDir) -> None:
        """Write to the journal of this attempt from now on."""
        path = attempt.events(self._node)
        if path == self._path:
            return
        self.close()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = JournalWriter(path)
            self._path = path
        except OSError as error:
            complain(f"cannot open {path}: {error}")

    def write(self, kind: str, **keys: Any) -> None:
        """Append an event."""
        try:
            if self._writer is not None:
                self._writer.write(kind, **keys)
                return
            complain(f"event without a journal: {kind} {keys}")
        except OSError as error:
            complain(f"cannot write event {kind} {keys}: {error}")

    def close(self) -> None:
        """Let go of the file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = self._path = None


def complain(text: str) -> None:
    """Say something in the agent's own log, which is its standard error."""
    sys.stderr.write(f"gangline agent: {text}\n")
    sys.stderr.flush()


def machine_id() -> str:
    """Equal for agents that run on one machine since one boot, and can meet on its loopback address."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/net')}"
    except OSError:
        return os.uname().nodename
