"""Who and where this agent is, and the journal it writes. Standard library only."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from gangline.agent.allocation import Allocation
from gangline.agent.environ import AttemptTerms, render_rank_environment
from gangline.agent.launchspec import LaunchSpec
from gangline.rundir.journal import JournalWriter
from gangline.rundir.layout import AttemptDir, RunDir
from gangline.rundir.space import describe_full, is_full

__all__ = ["EXIT_GOES_ON", "EXIT_STORAGE", "EXIT_UNNEEDED", "NEAR_THE_END", "Journal", "Site", "complain", "machine_id"]

NEAR_THE_END = signal.SIGURG
"""By which a scheduler says that the job's time is nearly over; who doesn't know that comes to no harm by it."""
EXIT_GOES_ON = 75
"""Exit code of a leader whose run goes on in another launch, where its exit code is to tell."""
EXIT_STORAGE = 5
"""Exit code of an agent whose run directory cannot be written."""
EXIT_UNNEEDED = 68
"""Exit code of an agent that was to await its launch, which nobody needs."""


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

    agents_here: int = 1
    """How many agents of the gang share this machine, as far as this one can know."""
    allocation: Allocation = field(default_factory=Allocation)
    """What a scheduler has given this node."""

    def environment_of(self, rank: int, terms: AttemptTerms) -> dict[str, str]:
        """The whole environment of one rank of this node."""
        if self.launch.batch is not None:
            from gangline.agent.batchscript import render_batch_environment  # noqa: PLC0415 - few runs are one

            return render_batch_environment(
                self.launch, terms, base=os.environ, run_dir=str(self.run.path), workdir=self.workdir
            )
        cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return render_rank_environment(
            self.launch,
            terms,
            rank,
            base=os.environ,
            run_dir=str(self.run.path),
            node_cpus=max(1, cpus // self.agents_here),
        )

    @property
    def workdir(self) -> Path:
        """Folder in which the ranks start."""
        return Path(os.path.normpath(self.run.code / self.launch.workdir))


class Journal:
    """The events of one node over all attempts; what cannot be written is said in the agent's own log instead."""

    def __init__(self, run: RunDir, node: int) -> None:
        self._run = run
        self._node = node
        self._writer: JournalWriter | None = None
        self._path: Path | None = None
        self.on_full: Callable[[str], None] = lambda _what: None
        """Called with words for people when the disk does not take an event."""

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
            self._tell(path, error)

    def write(self, kind: str, **keys: object) -> None:
        """Append an event."""
        try:
            if self._writer is not None:
                self._writer.write(kind, **keys)
                return
            complain(f"event without a journal: {kind} {keys}")
        except OSError as error:
            complain(f"cannot write event {kind} {keys}: {error}")
            if self._path is not None:
                self._tell(self._path, error)

    def _tell(self, path: Path, error: OSError) -> None:
        if is_full(error):
            self.on_full(f"The journal {describe_full(path, error)}.")

    def close(self) -> None:
        """Let go of the file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = self._path = None


def complain(text: str) -> None:
    """Say something in the agent's own log, which is its standard error. Never raises: the log's disk may be full."""
    with suppress(OSError):
        os.write(2, f"gangline agent: {text}\n".encode("utf-8", "replace"))


def machine_id() -> str:
    """Equal for agents that run on one machine since one boot, and can meet on its loopback address."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/net').readlink()}"
    except OSError:
        return os.uname().nodename
