"""What an agent samples while ranks run: how long their logs are, and what they and the machine use.

The cost is bounded: one `stat` a log and one small read of /proc a rank. Standard library only.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from gangline.agent.processes import rss_bytes
from gangline.rundir.journal import JournalWriter
from gangline.rundir.layout import AttemptDir
from gangline.rundir.logindex import IndexWriter

__all__ = ["LogIndex", "SystemJournal", "count_oom_kills", "sample_system"]

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_INDEX_INTERVAL_S = 0.2


class LogIndex:
    """Keeps the time-to-offset index of the logs of one node's ranks."""

    def __init__(self, attempt: AttemptDir, ranks: Sequence[int]) -> None:
        self._logs = {
            attempt.log(rank): IndexWriter(attempt.index(rank), interval_s=_INDEX_INTERVAL_S) for rank in ranks
        }

    def note(self) -> None:
        """Look at every log once. A full disk costs an entry, never the run."""
        now = time.time()
        for log, index in self._logs.items():
            with suppress(OSError):
                index.note(log.stat().st_size, now)


class SystemJournal:
    """Writes `system.jsonl` of the attempt that runs."""

    def __init__(self, node: int) -> None:
        self._node = node
        self._writer: JournalWriter | None = None

    def sample(self, attempt: AttemptDir | None, ranks: Mapping[int, int]) -> None:
        """Take one sample; None: no attempt runs. A full disk costs a sample, never the run."""
        with suppress(OSError):
            if self._writer is not None and (attempt is None or attempt.system(self._node) != self._writer.path):
                self._writer.close()
                self._writer = None
            if attempt is None:
                return
            if self._writer is None:
                self._writer = JournalWriter(attempt.system(self._node))
            self._writer.write("sample", **sample_system(ranks))


def sample_system(ranks: Mapping[int, int]) -> dict[str, Any]:
    """One line of `system.jsonl`.

    Args:
        ranks: pid of each live rank, by rank.
    """
    return {
        "load": list(os.getloadavg()),
        **_memory(),
        "ranks": {str(rank): {"rss_bytes": rss_bytes(pid), "cpu_s": _cpu_s(pid)} for rank, pid in ranks.items()},
    }


def count_oom_kills(proc_cgroup: Path = Path("/proc/self/cgroup"), mounts: Path = Path("/sys/fs/cgroup")) -> int | None:
    """How often the kernel has killed for memory in this process's control group; None where that is not told."""
    with suppress(OSError):
        for line in proc_cgroup.read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                folder, file = mounts, "memory.events"
            elif "memory" in controllers.split(","):
                folder, file = mounts / "memory", "memory.oom_control"
            else:
                continue
            count = _read_oom_kill(folder, path, file)
            if count is not None:
                return count
    return None


def _read_oom_kill(folder: Path, path: str, file: str) -> int | None:
    for place in (folder / path.lstrip("/") / file, folder / file):
        with suppress(OSError, ValueError):
            rows = dict(row.split(maxsplit=1) for row in place.read_text(encoding="ascii").splitlines())
            if "oom_kill" in rows:
                return int(rows["oom_kill"])
    return None


def _memory() -> dict[str, int]:
    with suppress(OSError, ValueError):
        with open("/proc/meminfo", "rb") as file:
            rows = dict(line.split(b":", 1) for line in file.read().splitlines())
        total, free = (int(rows[name].split()[0]) * 1024 for name in (b"MemTotal", b"MemAvailable"))
        return {"memory_total_bytes": total, "memory_available_bytes": free}
    return {}


def _cpu_s(pid: int) -> float | None:
    with suppress(OSError, ValueError, IndexError):
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
    return None
