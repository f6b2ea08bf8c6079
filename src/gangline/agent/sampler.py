"""What an agent samples while ranks run: what they and the machine use.

The cost is bounded: some small files of /proc, and four a rank. Standard library only.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from gangline.agent.accelerators import Accelerators
from gangline.agent.machine import Counters, decide_rates, read_counters, read_gauges
from gangline.agent.memory import read_memory
from gangline.agent.rankload import RankLoad
from gangline.rundir.journal import JournalWriter
from gangline.rundir.layout import AttemptDir

__all__ = ["SystemJournal"]


class SystemJournal:
    """Samples this machine and its ranks, and writes `system.jsonl` of the attempt that runs."""

    def __init__(self, node: int, accelerators: Accelerators) -> None:
        self._node = node
        self._accelerators = accelerators
        self._load = RankLoad()
        self._before: Counters | None = None
        self._writer: JournalWriter | None = None
        self.newest: dict[str, Any] = {}
        """The last sample."""

    def sample(self, attempt: AttemptDir | None, ranks: Mapping[int, int]) -> None:
        """Take one sample; None: no attempt runs. A full disk costs a sample, never the run."""
        with suppress(OSError):
            if self._writer is not None and (attempt is None or attempt.system(self._node) != self._writer.path):
                self._writer.close()
                self._writer = self._before = None
            if attempt is None:
                return
            if self._writer is None:
                self._writer = JournalWriter(attempt.system(self._node))
            self.newest = self._look(ranks)
            self._writer.write("sample", **self.newest)

    def _look(self, ranks: Mapping[int, int]) -> dict[str, Any]:
        counters = read_counters(time.monotonic())
        rates = {} if self._before is None else decide_rates(self._before, counters)
        self._before = counters
        memory = read_memory()
        return {
            **read_gauges(),
            **rates,
            "memory": None if memory is None else {"limit_bytes": memory.limit_bytes, "used_bytes": memory.used_bytes},
            "devices": self._accelerators.sample(),
            "ranks": {str(rank): load for rank, load in self._load.sample(ranks, counters.time).items()},
        }
