"""What a node tells the watchdog of its ranks: their processes, the length of logs, what training code reported.

The cost is bounded: two small files of /proc for each process, and of the metrics what is new. Standard library only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gangline.agent.ranktree import ProcessUse, find_children, read_tree
from gangline.rundir.layout import AttemptDir, RunDir

__all__ = ["Reports", "decide_standing", "parse_reports", "sample_ranks"]

_MOST_BYTES = 8 << 20
_LINE = re.compile(rb'\{"k":"([mphc])","a":(\d+),"t":([\d.e+]+),(?:"s":(null|-?\d+),)?')

_TOTAL = re.compile(rb'"n":(\d+)\}$')


@dataclass(slots=True)
class Reports:
    """What one rank has reported in this attempt, as far as its file was read."""

    path: Path
    attempt: int
    offset: int = 0
    step: int | None = None
    steps: int = 0
    finished: bool = False
    """The newest step is the last."""
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
        tree = read_tree(pid, find_children(pid))
        uses = tree.values()
        state, held = decide_standing(pid, tree)
        written = sum(max(use.chars_out, use.written_bytes) for use in uses)
        name, _, limit_s = told.open[-1] if told.open else (None, 0.0, None)
        found.append(
            {
                "rank": rank,
                "cpu_s": sum(use.cpu_s + use.reaped_s for use in uses),
                "io_bytes": written + sum(use.chars_in for use in uses),
                "written_bytes": written,
                "log_bytes": _size(folder.log(rank)),
                "steps": told.steps,
                "finished": told.finished,
                "marks": told.marks,
                "phase": name,
                "phase_limit_s": limit_s,
                "longest_s": told.longest_s.get(name or "", 0.0),
                "state": state,
                "pid": held,
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
            if kind == b"p":
                total = _TOTAL.search(line, head.end())
                told.finished = total is not None and told.step is not None and told.step >= int(total[1])
        else:
            told.marks += 1
            if kind == b"h":
                _note_phase(told, line)


def decide_standing(pid: int, tree: Mapping[int, ProcessUse]) -> tuple[str, int]:
    """How a rank stands, and the process that this is about: anything of it that is stopped holds it up."""
    held = [(one, use.state) for one, use in tree.items() if use.state in {"stopped", "traced"}]
    if held:
        return held[-1][1], held[-1][0]
    return ("blocked" if tree[pid].state == "blocked" else "runs"), pid


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


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
