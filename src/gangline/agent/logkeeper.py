"""What an agent does about the logs of its ranks while they write: the index from time to offset, and the limit.

The cost is bounded: one `stat` a log and look. Standard library only.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gangline.agent.loglimit import LogLimit
from gangline.rundir.dropped import render_size
from gangline.rundir.layout import AttemptDir
from gangline.rundir.logindex import IndexWriter

__all__ = ["LOOK_S", "LogKeeper"]

LOOK_S = 0.2
"""Time between two looks, which is how fine the index is."""
_SHORTEST_LOOK_S = 0.01
_OVERSHOOT_SHARE = 10
"""A log may grow by one part in so many of its limit between two looks."""


@dataclass(slots=True)
class _Kept:
    log: str
    index: IndexWriter
    limit: LogLimit
    size: int = 0
    grew_bytes: int = 0


class LogKeeper:
    """Keeps the logs of one node's ranks of one attempt.

    Args:
        limit_bytes: for each log; 0: no limit.
        warn: told once that a log was cut, and once that it can't be.
    """

    def __init__(
        self, attempt: AttemptDir, ranks: Sequence[int], *, limit_bytes: int, warn: Callable[[str], None]
    ) -> None:
        self._limit_bytes = limit_bytes
        self._warn = warn
        self._told: set[str] = set()
        self._can_limit = limit_bytes > 0
        self._looked = time.monotonic()
        self._kept = {
            rank: _Kept(
                str(attempt.log(rank)),
                IndexWriter(attempt.index(rank), interval_s=LOOK_S * 0.9),
                LogLimit(attempt.log(rank), limit_bytes),
            )
            for rank in ranks
        }

    def look(self) -> float:
        """Look at every log once. A full disk costs an entry, never the run.

        Returns:
            Seconds until the next look: fewer while a log that has a limit grows fast.
        """
        now, wall = time.monotonic(), time.time()
        took_s, self._looked = max(now - self._looked, _SHORTEST_LOOK_S / 2), now
        for rank, kept in self._kept.items():
            try:
                size = os.stat(kept.log).st_size  # noqa: PTH116 - five times a second for each rank
                kept.grew_bytes, kept.size = size - kept.size, size
                kept.index.note(size, wall)
            except OSError:
                continue
            if self._can_limit:
                self._apply(rank, kept)
        return self._pause_s(took_s)

    def _apply(self, rank: int, kept: _Kept) -> None:
        try:
            if kept.limit.apply(kept.size):
                limit = render_size(self._limit_bytes)
                self._tell("cut", f"The log of rank {rank} is over {limit}: its middle is dropped (--log-limit).")
        except OSError as error:
            if error.errno in {errno.EOPNOTSUPP, errno.ENOSYS}:
                self._can_limit = False
                text = f"Logs of ranks have no limit here (--log-limit): {kept.limit.log.parent} is on a file system"
                self._tell("cannot", f"{text} that gives no room back from the middle of a file ({error.strerror}).")
            else:
                self._tell("failed", f"The log of rank {rank} could not be kept within its limit: {error}.")

    def _pause_s(self, took_s: float) -> float:
        """So that the fastest log does not grow by more than a part of its limit until then."""
        if not self._can_limit:
            return LOOK_S
        fastest = max((kept.grew_bytes for kept in self._kept.values()), default=0) / took_s
        room = self._limit_bytes / _OVERSHOOT_SHARE
        return LOOK_S if fastest * LOOK_S <= room else max(_SHORTEST_LOOK_S, room / fastest)

    def _tell(self, what: str, text: str) -> None:
        if what not in self._told:
            self._told.add(what)
            self._warn(text)
