"""What one node holds of the attempt that runs. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gangline.agent.logkeeper import LogKeeper
from gangline.agent.loop import Timer
from gangline.agent.rendezvous import ReservedPort
from gangline.agent.teardown import Teardown
from gangline.rundir.layout import AttemptDir

if TYPE_CHECKING:
    from gangline.agent.lastlook import LastLook
    from gangline.agent.strategies.company import Company

__all__ = ["LocalAttempt", "LocalRank"]


@dataclass(slots=True)
class LocalRank:
    """One rank of the attempt on this node."""

    rank: int
    pid: int
    started: float
    ended: bool = False
    supports: bool = False
    """It is there for the others, and ends when they have ended."""


@dataclass(slots=True)
class LocalAttempt:
    """One attempt, from its preparation until no process of it is left."""

    folder: AttemptDir
    ranks: dict[int, LocalRank] = field(default_factory=dict)
    """By pid."""
    ports: list[ReservedPort] = field(default_factory=list)
    waiting: Mapping[str, Any] | None = None
    """The order to start, while the starter is not ready."""
    teardown: Teardown | None = None
    """How it is being ended."""
    tick: Timer | None = None
    stopping_since: float = 0.0
    log_ends: dict[int, tuple[int, float]] = field(default_factory=dict)
    """Of ranks that ran when the end was ordered: the size of the log just before, and when it was last written."""
    killed: bool = False
    cleared: bool = False
    oom_kills: int | None = None
    """How often the kernel had killed for memory before it began."""
    logs: LogKeeper | None = None
    company: Company | None = None
    """What stands beside the ranks; None before it was started."""
    last_look: LastLook | None = None
    """Where the ranks were when a failure ended the attempt."""

    @property
    def supporters(self) -> frozenset[int]:
        """Pids that the ranks may need to the last, and what is below those is needed, too."""
        ranks = frozenset(pid for pid, local in self.ranks.items() if local.supports)
        return ranks | (frozenset() if self.company is None else self.company.roots())

    @property
    def live_ranks(self) -> dict[int, int]:
        """Pid of each rank that runs, by rank."""
        return {local.rank: local.pid for local in self.ranks.values() if not local.ended}
