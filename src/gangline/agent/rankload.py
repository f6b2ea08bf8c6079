"""What the processes of each rank use and wait for, from /proc. Standard library only.

The list of a rank's processes is made anew only now and then: finding children means a look at every thread.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from gangline.agent.processes import find_descendants, rss_bytes

__all__ = ["RankLoad", "decide_load", "parse_stat"]

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
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
            known.children = [process.pid for process in find_descendants(pid) if not process.dead]
        known.samples += 1
        state, cpu_s, faults = _read_stat(pid)
        read, written = _read_io(pid)
        rss = rss_bytes(pid)
        for child in known.children:
            _, used_s, more = _read_stat(child)
            one, other = _read_io(child)
            cpu_s, faults, read, written = cpu_s + used_s, faults + more, read + one, written + other
            rss = None if rss is None else rss + (rss_bytes(child) or 0)
        sums = _Sums(
            time=now,
            cpu_s=cpu_s,
            read_bytes=read,
            written_bytes=written,
            major_faults=faults,
            delay_s=_read_delay_s(pid),
        )
        before, known.last = known.last, sums
        found = {"rss_bytes": rss, "cpu_s": round(cpu_s, 2), "state": state, "processes": 1 + len(known.children)}
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


def parse_stat(text: bytes) -> tuple[str, float, int]:
    """State letter, CPU seconds and major page faults in `/proc/PID/stat`.

    Raises:
        ValueError, IndexError: it is something else.
    """
    fields = text.rpartition(b")")[2].split()
    return fields[0].decode("ascii"), (int(fields[11]) + int(fields[12])) / _TICKS_PER_S, int(fields[9])


def _read_stat(pid: int) -> tuple[str, float, int]:
    with suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/stat", "rb") as file:
        return parse_stat(file.read())
    return "", 0.0, 0


def _read_io(pid: int) -> tuple[int, int]:
    """Bytes that came from and went to disks; what another user's process moved is not told."""
    with suppress(OSError, ValueError, KeyError), open(f"/proc/{pid}/io", "rb") as file:
        rows = dict(line.split(b":", 1) for line in file.read().splitlines())
        return int(rows[b"read_bytes"]), int(rows[b"write_bytes"])
    return 0, 0


def _read_delay_s(pid: int) -> float | None:
    with suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/schedstat", "rb") as file:
        return int(file.read().split()[1]) / 1e9
    return None
