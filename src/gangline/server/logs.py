"""The logs of a run's ranks, followed from one attempt on into the following ones.

Everything is read from the run directory when it is asked for; nothing is kept but offsets.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gangline.rundir.layout import AttemptDir, RunDir
from gangline.server.ranklogs import Begin, RankLogs

if TYPE_CHECKING:
    from gangline.wire.views import LogChunk

__all__ = ["GangLogFollower", "find_attempt", "is_attempt_over", "parse_offsets"]


def find_attempt(run_dir: RunDir, attempt: int | None) -> AttemptDir:
    """That attempt, or the newest; attempt 0 of a run that has not started."""
    if attempt is not None:
        return run_dir.attempt(attempt)
    begun = run_dir.attempts()
    return begun[-1] if begun else run_dir.attempt(0)


def is_attempt_over(attempt: AttemptDir) -> bool:
    """Whether the leader has written how it ended."""
    return attempt.result.exists()


@dataclass(slots=True, kw_only=True)
class GangLogFollower:
    """New output of some ranks of a run, from one attempt on into the following ones."""

    run_dir: RunDir
    ranks: Sequence[int]
    attempt: int | None
    """The one that is read now; None: the newest, once there is any."""
    offsets: dict[int, int] = field(default_factory=dict)
    begin: Begin = Begin()  # noqa: RUF009 - frozen
    """For ranks without an offset; in the first attempt only."""
    _logs: RankLogs | None = None

    def poll(self, *, run_over: bool, up_to: float = math.inf) -> tuple[list[LogChunk], bool]:
        """What was written since the last call, at most about 1 MiB, in order of time.

        Args:
            run_over: the run has ended; has to be known before the logs are read.
            up_to: the newest attempt whose beginning has been told; later ones wait for their turn.
        Returns:
            The pieces, and whether all that there is has been read.
        """
        begun = [attempt.number for attempt in self.run_dir.attempts() if attempt.number <= up_to]
        if self.attempt is None and begun:
            self.attempt = begun[-1]
        if self.attempt is None or self.attempt > up_to:
            return [], True
        following = [number for number in begun if number > self.attempt]
        logs = self._logs_of(self.attempt)
        pieces = logs.read(over=run_over or bool(following) or is_attempt_over(logs.attempt))
        if logs.is_behind or not following:
            return pieces, not logs.is_behind
        self.attempt, self.offsets, self.begin, self._logs = following[0], {}, Begin(), None
        return pieces, False

    def _logs_of(self, attempt: int) -> RankLogs:
        if self._logs is None:
            folder = self.run_dir.attempt(attempt)
            self._logs = RankLogs(attempt=folder, ranks=self.ranks, offsets=self.offsets, begin=self.begin)
        return self._logs


def parse_offsets(text: str) -> Mapping[int, int]:
    """`0:17,3:0`: the next byte of rank 0 is 17, of rank 3 it is 0.

    Raises:
        ValueError
    """
    pairs = [pair.partition(":") for pair in text.split(",") if pair]
    return {int(rank): max(0, int(offset)) for rank, _, offset in pairs}
