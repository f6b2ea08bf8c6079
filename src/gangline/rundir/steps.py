"""How far a rank came, from the end of what it reported. Standard library only."""

from __future__ import annotations

import os
from pathlib import Path

from gangline.rundir.journal import parse_records

__all__ = ["read_last_step"]

_TAIL_BYTES = 1 << 16


def read_last_step(path: str | os.PathLike[str], attempt: int) -> int | None:
    """The largest step that the last lines of a rank's `metrics/rank-NNNNN.jsonl` name in an attempt.

    Returns:
        None: it reported none, or the file cannot be read.
    """
    try:
        with Path(path).open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            tail = file.read()
    except OSError:
        return None
    if size > _TAIL_BYTES:
        tail = tail.partition(b"\n")[2]
    records, _ = parse_records(tail)
    steps = [record["s"] for record in records if record.get("a") == attempt and isinstance(record.get("s"), int)]
    return max(steps, default=None)
