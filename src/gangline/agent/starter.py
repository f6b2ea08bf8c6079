"""How an agent starts ranks and learns of their ends: the seam between the gang's logic and exec or warm start.

Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

__all__ = ["RankExit", "RankStart", "Starter"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStart:
    """One rank to start, complete."""

    rank: int
    local_rank: int
    env: Mapping[str, str]
    """The whole environment; nothing else is inherited."""
    cwd: str
    log_path: str
    """Appended to by the rank itself: its stdout and stderr are this file."""
    error_path: str
    """Where the exception that ends a Python rank is described."""
    stacks_path: str
    pdb_path: str = ""
    """Socket at which a person debugs this rank; `-`: another rank of the gang is debugged; "": none is."""
    entry_kind: str
    """`script`, `module`, `notebook` or `command`."""
    entry: str
    args: tuple[str, ...]
    python: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RankExit:
    """One rank that has ended and was waited for."""

    pid: int
    exit_code: int | None
    signal: int | None
    """Exactly one of the two is not None."""
    time: float
    """Wall clock, when the end was seen."""
    peak_rss_bytes: int | None = None


class Starter(Protocol):
    """Starts ranks; each becomes the leader of a session of its own. All methods are called from one thread."""

    @property
    def mode(self) -> str:
        """`exec` or `warm`."""
        ...

    def fileno(self) -> int:
        """A descriptor that turns readable when `exits` may have something to say."""
        ...

    def ready(self) -> bool:
        """Whether `start` would work at once; false while a helper imports. `fileno` turns readable when it changes."""
        ...

    def own_pids(self) -> frozenset[int]:
        """Processes of the starter itself (the warm helper), which the end of an attempt spares."""
        ...

    def start(self, rank: RankStart) -> int:
        """Start a rank and return its pid.

        Raises:
            OSError: it could not be started; nothing is left of it.
        """
        ...

    def exits(self) -> list[RankExit]:
        """Ranks that ended since the last call; never blocks."""
        ...

    def close(self) -> None:
        """Let go of what the starter holds (the warm helper); ranks must have ended."""
        ...
