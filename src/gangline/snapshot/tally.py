"""Counting what was left out, by rule, without walking folders that nobody wants walked."""

from __future__ import annotations

import os
import posixpath
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gangline.snapshot.manifest import Excluded, printable

__all__ = ["LeftOut", "count_folder", "summarise"]

_EXAMPLES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """One file or folder (ending in `/`) that a rule left out."""

    path: str
    rule: str
    num_files: int | None = 1
    """None: not counted."""
    size_bytes: int | None = None


def count_folder(folder: Path, budget: int) -> tuple[int, int] | None:
    """Files in a folder and their bytes; None if there are more than `budget` things in it, or it cannot be read."""
    num_files = size_bytes = 0
    todo = [os.fspath(folder)]
    try:
        while todo:
            with os.scandir(todo.pop()) as entries:
                for entry in entries:
                    budget -= 1
                    if budget < 0:
                        return None
                    if entry.is_dir(follow_symlinks=False):
                        todo.append(entry.path)
                    else:
                        num_files += 1
                        size_bytes += entry.stat(follow_symlinks=False).st_size
    except OSError:
        return None
    return num_files, size_bytes


def summarise(items: Iterable[LeftOut]) -> tuple[Excluded, ...]:
    """One `Excluded` for each rule, in the order in which rules first struck."""
    by_rule: dict[str, list[LeftOut]] = defaultdict(list)
    for item in items:
        by_rule[item.rule].append(item)
    return tuple(_summary(rule, found) for rule, found in by_rule.items())


def _summary(rule: str, found: list[LeftOut]) -> Excluded:
    paths = [item.path for item in found]
    if len(paths) == 1:
        where = paths[0]
    else:
        common = posixpath.commonpath([posixpath.dirname(path.rstrip("/")) for path in paths])
        where = f"{common}/" if common else "./"
    return Excluded(
        path=printable(where),
        rule=printable(rule),
        num_files=_sum(item.num_files for item in found),
        size_bytes=_sum(item.size_bytes for item in found),
        examples=tuple(printable(path) for path in paths[:_EXAMPLES]),
    )


def _sum(counts: Iterable[int | None]) -> int | None:
    total = 0
    for count in counts:
        if count is None:
            return None
        total += count
    return total
