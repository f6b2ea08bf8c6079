"""What a node reads of its ranks: /proc, the length of logs, what training code reported. Standard library only.

The cost is bounded: for each process of a rank three small files of /proc, and of the metrics what is new.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gangline.agent.processes import find_descendants
from gangline.rundir.layout import AttemptDir, RunDir

__all__ = ["Reports", "Tree", "parse_reports", "parse_stat", "read_state", "read_tree", "sample_ranks"]

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_MOST_BYTES = 8 << 20
_LINE = re.compile(rb'\{"k":"([mphc])","a":(\d+),"t":([\d.e+]+),(?:"s":(null|-?\d+),)?')
_STATES = {"T": "stopped", "t": "traced", "D": "blocked"}


@dataclass(slots=True)
class Reports:
    """What one rank has reported in this attempt, as far as its file was read."""

    path: Path
    attempt: int
    offset: int = 0
    step: int | None = None
    steps: int = 0
    marks: int = 0
    open: list[tuple[str, float, float | None]] = field(default_factory=list)
    """Phases that it is in: name, when it began (wall clock), what it allows."""
    longest_s: dict[str, float] = field(default_factory=dict)

    def read(self) -> None:
        """Take what is new."""
        with suppress(OSError):
            if self.path.stat().st_size <= self.offset:
                return
            with self.path.open("rb") as file:
                file.seek(self.offset)
                data = file.read(_MOST_BYTES)
            end = data.rfind(b"\n") + 1
            self.offset += end
            parse_reports(self, data[:end])


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """The processes of one rank, together."""

    cpu_s: float = 0.0
    io_bytes: int = 0
    written_bytes: int = 0
    state: str = "runs"
    pid: int | None = None
    """The process that the state is about."""


def sample_ranks(
    folder: AttemptDir, ranks: Mapping[int, int], reports: dict[int, Reports], run: RunDir
) -> list[dict[str, Any]]:
    """One report of a node: an `Activity` as a mapping for each live rank.

    Args:
        ranks: pid of each live rank.
        reports: kept between samples; see `Reports`. Of a rank that is new in it, only the end of a long file is read.
    """
    found = []
    for rank, pid in ranks.items():
        if rank not in reports:
            path = run.metrics(rank)
            reports[rank] = Reports(path, folder.number, max(0, _size(path) - _MOST_BYTES))
        told = reports[rank]
        told.read()
        tree = read_tree(pid)
        name, _, limit_s = told.open[-1] if told.open else (None, 0.0, None)
        found.append(
            {
                "rank": rank,
                "cpu_s": tree.cpu_s,
                "io_bytes": tree.io_bytes,
                "written_bytes": tree.written_bytes,
                "log_bytes": _size(folder.log(rank)),
                "steps": told.steps,
                "marks": told.marks,
                "phase": name,
                "phase_limit_s": limit_s,
                "longest_s": told.longest_s.get(name or "", 0.0),
                "state": tree.state,
                "pid": tree.pid,
            }
        )
    return found


def parse_reports(told: Reports, data: bytes) -> None:
    """Add complete lines of a metrics file to what is known. Only a step that changes counts as one.

    Lines of other attempts, and what is no such line, are passed over.
    """
    for line in data.splitlines():
        head = _LINE.match(line)
        if head is None or int(head[2]) != told.attempt:
            continue
        kind, step = head[1], head[4]
        if kind in b"mp":
            if step is not None and step != b"null" and int(step) != told.step:
                told.step = int(step)
                told.steps += 1
        else:
            told.marks += 1
            if kind == b"h":
                _note_phase(told, line)


def read_tree(pid: int) -> Tree:
    """Everything of a rank: its own process and what is below it."""
    cpu_s, moved, written = 0.0, 0, 0
    state, held = "runs", pid
    for one in (pid, *(process.pid for process in find_descendants(pid) if not process.dead)):
        letter, used_s = _read_stat(one)
        cpu_s += used_s
        read, wrote = _read_io(one)
        moved += read + wrote
        written += wrote
        found = _STATES.get(letter, "runs")
        if found in {"stopped", "traced"} or (found == "blocked" and one == pid and state == "runs"):
            state, held = found, one
    return Tree(cpu_s=cpu_s, io_bytes=moved, written_bytes=written, state=state, pid=held)


def read_state(pid: int) -> str:
    """`runs`, `stopped`, `traced`, `blocked`, or `gone`."""
    letter, _ = _read_stat(pid)
    return "gone" if letter in {"", "Z", "X"} else _STATES.get(letter, "runs")


def parse_stat(text: bytes) -> tuple[str, float]:
    """State letter and CPU seconds, with those of children that were waited for, in `/proc/PID/stat`.

    Raises:
        ValueError, IndexError: it is something else.
    """
    fields = text.rpartition(b")")[2].split()
    return fields[0].decode("ascii"), sum(map(int, fields[11:15])) / _TICKS_PER_S


def _note_phase(told: Reports, line: bytes) -> None:
    try:
        raw = json.loads(line)
    except (ValueError, RecursionError):
        return
    name, when, limit_s = str(raw.get("name")), float(raw["t"]), raw.get("l")
    if raw.get("on"):
        told.open.append((name, when, float(limit_s) if isinstance(limit_s, int | float) else None))
        return
    for index in range(len(told.open) - 1, -1, -1):
        if told.open[index][0] == name:
            _, began, _ = told.open.pop(index)
            told.longest_s[name] = max(told.longest_s.get(name, 0.0), when - began)
            return


def _read_stat(pid: int) -> tuple[str, float]:
    with suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/stat", "rb") as file:
        return parse_stat(file.read())
    return "", 0.0


def _read_io(pid: int) -> tuple[int, int]:
    """Bytes read and written, through files and pipes; what another user's process moved is not told."""
    with suppress(OSError, ValueError, KeyError), open(f"/proc/{pid}/io", "rb") as file:
        rows = dict(line.split(b":", 1) for line in file.read().splitlines())
        return int(rows[b"rchar"]), max(int(rows[b"wchar"]), int(rows[b"write_bytes"]))
    return 0, 0


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
