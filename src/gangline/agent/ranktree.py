"""The processes of one rank as /proc shows them: what both the system journal and the watchdog count.

The cost is bounded: two small files for each process. Standard library only.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from gangline.agent.processes import find_descendants

__all__ = ["ProcessUse", "find_children", "parse_io", "parse_stat", "read_state", "read_tree"]

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_STATES = {"T": "stopped", "t": "traced", "D": "blocked"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessUse:
    """What one process has used since it began; nothing where it is gone, or another user's."""

    letter: str = ""
    """Of its state; "": it is gone."""
    cpu_s: float = 0.0
    reaped_s: float = 0.0
    """CPU time of children that it has waited for."""
    major_faults: int = 0
    rss_bytes: int = 0
    read_bytes: int = 0
    """From disks."""
    written_bytes: int = 0
    """To disks."""
    chars_in: int = 0
    """Read from anything, pipes and caches too."""
    chars_out: int = 0

    @property
    def state(self) -> str:
        """`runs`, `stopped`, `traced`, `blocked`, or `gone`."""
        return "gone" if self.letter in {"", "Z", "X"} else _STATES.get(self.letter, "runs")


def find_children(pid: int) -> list[int]:
    """Everything that lives below a rank; a look at every thread, and the dearest part of a sample."""
    return [process.pid for process in find_descendants(pid) if not process.dead]


def read_tree(pid: int, children: Sequence[int]) -> dict[int, ProcessUse]:
    """A rank's own process first, then those below it."""
    return {one: _read(one) for one in (pid, *children)}


def read_state(pid: int) -> str:
    """As `ProcessUse.state`."""
    return ProcessUse(**_read_stat(pid)).state


def parse_stat(text: bytes) -> dict[str, Any]:
    """What `/proc/PID/stat` tells of `ProcessUse`.

    Raises:
        ValueError, IndexError: it is something else.
    """
    fields = text.rpartition(b")")[2].split()  # the name in parentheses may hold anything
    user, system, reaped_user, reaped_system = map(int, fields[11:15])
    return {
        "letter": fields[0].decode("ascii"),
        "cpu_s": (user + system) / _TICKS_PER_S,
        "reaped_s": (reaped_user + reaped_system) / _TICKS_PER_S,
        "major_faults": int(fields[9]),
        "rss_bytes": int(fields[21]) * _PAGE_BYTES,
    }


def parse_io(text: bytes) -> dict[str, int]:
    """What `/proc/PID/io` tells of it.

    Raises:
        ValueError, KeyError: it is something else.
    """
    rows = dict(line.split(b":", 1) for line in text.splitlines())
    names = {"read_bytes": b"read_bytes", "written_bytes": b"write_bytes", "chars_in": b"rchar", "chars_out": b"wchar"}
    return {name: int(rows[row]) for name, row in names.items()}


def _read(pid: int) -> ProcessUse:
    moved: dict[str, Any] = {}
    with suppress(OSError, ValueError, KeyError), open(f"/proc/{pid}/io", "rb") as file:
        moved = parse_io(file.read())
    return ProcessUse(**_read_stat(pid), **moved)


def _read_stat(pid: int) -> dict[str, Any]:
    with suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/stat", "rb") as file:
        return parse_stat(file.read())
    return {}
