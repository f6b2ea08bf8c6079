"""What the processes of each rank use and wait for, from /proc. Standard library only.

The list of a rank's processes is made anew only now and then: finding children means a look at every thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from gangline.agent.ranktree import find_children, read_tree

__all__ = ["RankLoad", "decide_load"]

_LOOK_AGAIN = 8
"""Samples between two looks for new children."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sums:
    """Counters of one rank."""

    time: float
    cpu_s: float = 0.0
    read_bytes: int = 0
    written_bytes: int = 0
    major_faults: int = 0
    delay_s: float | None = None
    """Time for which the main thread could have run and no processor was free."""


@dataclass(slots=True)
class _Known:
    children: list[int] = field(default_factory=list)
    samples: int = 0
    last: _Sums | None = None


class RankLoad:
    """Samples of the ranks of one node; each describes the time since the one before."""

    def __init__(self) -> None:
        self._known: dict[int, _Known] = {}

    def sample(self, ranks: Mapping[int, int], now: float) -> dict[int, dict[str, Any]]:
        """One sample of each rank.

        Args:
            ranks: pid of each live rank, by rank.
            now: monotonic clock.
        """
        self._known = {pid: self._known.get(pid, _Known()) for pid in ranks.values()}
        return {rank: self._sample(pid, self._known[pid], now) for rank, pid in ranks.items()}

    def _sample(self, pid: int, known: _Known, now: float) -> dict[str, Any]:
        if known.samples % _LOOK_AGAIN == 0:
            known.children = find_children(pid)
        known.samples += 1
        tree = read_tree(pid, known.children)
        uses = tree.values()
        sums = _Sums(
            time=now,
            cpu_s=sum(use.cpu_s for use in uses),
            read_bytes=sum(use.read_bytes for use in uses),
            written_bytes=sum(use.written_bytes for use in uses),
            major_faults=sum(use.major_faults for use in uses),
            delay_s=_read_delay_s(pid),
        )
        before, known.last = known.last, sums
        found = {
            "rss_bytes": sum(use.rss_bytes for use in uses) if tree[pid].letter else None,
            "cpu_s": round(sums.cpu_s, 2),
            "state": tree[pid].letter,
            "processes": len(tree),
        }
        return {**found, **(decide_load(before, sums) if before is not None else {})}


def decide_load(before: _Sums, after: _Sums) -> dict[str, float]:
    """What happened between two readings of one rank. Pure.

    Returns:
        `cpu`: processors used on average; `delay`: share of the time in which the main thread was ready to run and did
        not; rates of bytes and of page faults that had to read a disk.
    """
    took_s = after.time - before.time
    if took_s <= 0:
        return {}
    found = {
        "cpu": max(0.0, after.cpu_s - before.cpu_s) / took_s,
        "read_bytes_s": max(0, after.read_bytes - before.read_bytes) / took_s,
        "written_bytes_s": max(0, after.written_bytes - before.written_bytes) / took_s,
        "major_faults_s": max(0, after.major_faults - before.major_faults) / took_s,
    }
    if after.delay_s is not None and before.delay_s is not None:
        found["delay"] = min(1.0, max(0.0, after.delay_s - before.delay_s) / took_s)
    return {name: round(value, 4) for name, value in found.items()}


def _read_delay_s(pid: int) -> float | None:
    with suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/schedstat", "rb") as file:
        return int(file.read().split()[1]) / 1e9
    return None
