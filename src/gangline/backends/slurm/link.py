"""What this backend asks of the bridge on the login node, as a protocol: `session.py` speaks it, tests fake it.

Imports `gangline.domain` alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gangline.domain.gang import Cleared
from gangline.domain.pool import PoolState

__all__ = ["Changes", "Hello", "Link", "Probed", "Ran"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """What the far side says of itself."""

    host: str
    user: str
    home: str
    python: str
    """Its interpreter's path."""
    python_version: str
    clock_offset_s: float
    """How far its clock is ahead of ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """How a command ended there."""

    rc: int | None
    """None: it took longer than it may, and was killed."""
    out: str
    err: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """What was found of a folder."""

    exists: bool
    writable: bool
    free_bytes: int
    why_not: str = ""
    """The system's words, where it is not writable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What has changed below the run directories."""

    since: object
    """To be given with the next question; None asks for everything."""
    files: Mapping[str, Sequence[tuple[str, int, int, int]]]
    """By run: path, size, mtime in ns, inode."""
    alive: Mapping[str, tuple[int, int]]
    """By run: number of its newest launch there, and when that one's leader last touched its sign of life, ns by the
    clock there."""
    gone: frozenset[str]
    """Runs that have no folder there."""
    took_s: float = 0.0
    """How long the look took there."""


class Link(Protocol):
    """One bridge. Safe for threads; calls of different threads go on side by side.

    Every method raises:
        Transient: there is no connection, or it was lost before the answer (whether the far side acted is not known);
            also what failed there and may do so no more later: a full disk, a file that cannot be written.
        AuthFailed: somebody has to log in; the exact command is in `fix`.
    """

    def hello(self) -> Hello:
        """Connect, if need be."""
        ...

    def state(self) -> PoolState:
        """How it stands, as far as is known; asks nobody and raises nothing."""
        ...

    def retry(self) -> None:
        """Somebody asks by hand: the next call connects at once, whatever came before."""
        ...

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 60.0) -> Ran:
        """Run a command there, without a shell."""
        ...

    def missing(self, digests: Sequence[str]) -> list[str]:
        """Those of which the far store has no content."""
        ...

    def store(self, objects: Iterable[tuple[str, bytes]]) -> None:
        """Send contents by their digests."""
        ...

    def write(self, path: str, data: bytes, *, mode: int = 0o600) -> None:
        """Write a file below the work folder, by rename; folders above it are made."""
        ...

    def append(self, path: str, offset: int, data: bytes) -> int:
        """Add to a file that only grows; bytes that it has already stay. Its size.

        Raises:
            Gap: bytes before `offset` are missing; it says how many there are.
        """
        ...

    def changes(self, runs: Sequence[str], since: object) -> Changes:
        """Files of these runs that changed since an earlier answer."""
        ...

    def read(self, reads: Sequence[tuple[str, str, int, int]]) -> list[bytes | None]:
        """Bytes of files of runs: (run, path, offset, most bytes) each; None: not there."""
        ...

    def probe(self, folder: str) -> Probed:
        """Make a folder, write into it, look at its space."""
        ...

    def checkpoints(self, folder: str) -> list[dict[str, Any]]:
        """Checkpoints in a folder there, as `rundir/checkpoints.py` finds them."""
        ...

    def clear(self, run: str, *, keep_checkpoints: bool) -> Cleared:
        """Remove the folder of a run; checkpoints inside of it may be put aside first."""
        ...

    def tidy(self, agent: str, *, age_s: float) -> tuple[int, int]:
        """Remove what is older and in nobody's use (`bridge/tidying.py`); how many files, and bytes freed."""
        ...

    def python(self, path: str | None) -> tuple[str, str]:
        """Path and version of an interpreter; None: the newest that is found, at least 3.10.

        Raises:
            SpecInvalid: there is none, or it does not run.
        """
        ...
