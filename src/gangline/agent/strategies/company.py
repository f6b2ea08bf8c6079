"""Processes that stand beside the ranks of one node for one attempt: those of a launcher, or of a cluster of its own.

They start before the ranks, outlive a notice (ranks may need them to save), and end with the attempt as all else below
the agent does. Standard library only.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from gangline.agent.starter import RankStart
from gangline.rundir.layout import RunDir

__all__ = ["Child", "Company", "CompanyFault", "hold_scratch", "scratch_path", "take_scratch"]

_TAIL_BYTES = 4096
_WORDS_CHARS = 400
_SHORT_ROOT = Path("/tmp")  # noqa: S108 - sockets live there, whose paths must be short; see `take_scratch`
_DIGEST_CHARS = 10


class CompanyFault(Exception):
    """The company cannot come, or has left; its words are for people.

    Args:
        missing: something is not installed.
    """

    def __init__(self, text: str, *, missing: bool = False) -> None:
        super().__init__(text)
        self.missing = missing


class Company:
    """The company of one node; this one is nobody."""

    ready = True
    """Whether the ranks may start."""

    def __init__(self) -> None:
        self.notes: list[tuple[str, str]] = []
        """What people should know, once: a kind of event and its sentence. Whoever writes them empties the list."""

    def begin(self) -> None:
        """Start.

        Raises:
            CompanyFault, OSError: it cannot come.
        """

    def look(self) -> None:
        """See how they fare; called a few times a second, and more often until `ready`.

        Raises:
            CompanyFault: one of them has ended.
        """

    def roots(self) -> frozenset[int]:
        """Pids of those that this agent has started."""
        return frozenset()

    def adapt(self, start: RankStart) -> RankStart:
        """A rank, with what it has to know of its company."""
        return start

    def rank_ended(self, rank: int, exit_code: int | None) -> None:
        """A rank of this node has ended."""

    def killed(self) -> str:
        """What of it was killed from outside, for which a rank that fails now is not to blame; "": nothing."""
        return ""

    def close(self) -> None:
        """All processes of the attempt have ended."""


class Child:
    """One process of a company: its output is a file, its stdin is empty, its session its own."""

    def __init__(self, argv: Sequence[str], *, env: Mapping[str, str], cwd: str, log: Path) -> None:
        import subprocess  # noqa: PLC0415 - few runs have company

        self.log = log
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=dict(env),
                cwd=cwd,
                start_new_session=True,
                restore_signals=True,
            )
        self.pid = self._process.pid

    def ended(self) -> str:
        """How it has ended: `exit code 3`, `SIGKILL`; "": it runs."""
        code = self._process.poll()
        if code is None:
            return ""
        if code < 0:
            with suppress(ValueError):
                return signal.Signals(-code).name
        return f"exit code {code}"

    def was_killed(self) -> bool:
        """It has ended by a signal."""
        return (self._process.poll() or 0) < 0

    def ended_well(self) -> bool:
        """It has ended with 0."""
        return self._process.poll() == 0

    def text(self) -> str:
        """The end of what it has said."""
        with suppress(OSError), self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - _TAIL_BYTES))
            return file.read().decode("utf-8", "replace")
        return ""

    def last_words(self) -> str:
        """Its last paragraph, as one line; "": it has said nothing."""
        found: list[str] = []
        for line in reversed(self.text().splitlines()):
            if any(char.isalnum() for char in line):
                found.append(line.strip())
            elif found:
                break
        return " ".join(reversed(found))[-_WORDS_CHARS:].rstrip(".")


def scratch_path(run: RunDir, launch: int) -> Path:
    """A folder with a short path that only this launch has on a machine: paths of sockets have at most 107 bytes."""
    digest = hashlib.sha256(f"{run.path}\0{os.getuid()}\0{launch}".encode("utf-8", "surrogateescape")).hexdigest()
    return _SHORT_ROOT / f"gl-{digest[:_DIGEST_CHARS]}"


def take_scratch(path: Path) -> None:
    """Make the folder anew, for this user alone; what an agent that was killed has left there is removed.

    Raises:
        OSError: somebody else has a folder of this name, or it cannot be made.
    """
    if path.is_symlink():
        path.unlink()
    shutil.rmtree(path, ignore_errors=True)
    hold_scratch(path)


def hold_scratch(path: Path) -> None:
    """Make the folder where it is not there; another agent of the run on this machine may use it already.

    Raises:
        OSError: as above.
    """
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise PermissionError(f"{path} is not this user's own folder")
