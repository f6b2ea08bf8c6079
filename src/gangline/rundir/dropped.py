"""What was dropped from a rank's log to keep it within its limit: `rank-00003.dropped.jsonl`, beside the log.

The agent frees the middle of a log while the rank goes on writing (`agent/loglimit.py`); offsets never change, the
bytes in between are zeros that take no room. Each line of the journal is the whole truth from then on; the last one
counts: `{"t": wall clock, "start": offset, "end": offset, "limit_bytes": n}`. A line is written before the bytes go, so
a reader that looks here *after* it has read from the log never takes zeros for output.

Standard library only.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

__all__ = ["NOTHING", "Dropped", "dropped_path", "parse_dropped", "read_dropped", "render_note", "render_size"]

_LAST_BYTES = 4096
_UNIT = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """The stretch of a log that is gone."""

    start: int = 0
    end: int = 0
    """Offset of the first byte after it."""
    limit_bytes: int = 0

    @property
    def num_bytes(self) -> int:
        return self.end - self.start

    def holds(self, offset: int) -> bool:
        """Whether the byte at `offset` is gone."""
        return self.start <= offset < self.end

    def render(self) -> bytes:
        """The line of the journal that says it."""
        record = {"t": time.time(), "start": self.start, "end": self.end, "limit_bytes": self.limit_bytes}
        return json.dumps(record).encode() + b"\n"


NOTHING = Dropped()


def dropped_path(log: str | os.PathLike[str]) -> Path:
    """The journal that belongs to a log."""
    return Path(log).with_suffix(".dropped.jsonl")


def read_dropped(log: str | os.PathLike[str]) -> Dropped:
    """What is gone from a log now; has to be asked after bytes of it were read."""
    try:
        descriptor = os.open(os.fspath(log).removesuffix(".log") + ".dropped.jsonl", os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return NOTHING
    try:
        size = os.fstat(descriptor).st_size
        return parse_dropped(os.pread(descriptor, _LAST_BYTES, max(0, size - _LAST_BYTES)))
    finally:
        os.close(descriptor)


def parse_dropped(data: bytes) -> Dropped:
    """What the last whole line of a journal says; lines that are torn or damaged are passed over."""
    lines = reversed(data[: data.rfind(b"\n") + 1].splitlines())
    return next((found for line in lines if (found := _parse_line(line)) is not None), NOTHING)


def _parse_line(line: bytes) -> Dropped | None:
    try:
        record = json.loads(line)
        found = Dropped(start=record["start"], end=record["end"], limit_bytes=record["limit_bytes"])
    except (ValueError, KeyError, TypeError):
        return None
    return found if 0 <= found.start <= found.end else None


def render_note(num_bytes: int, limit_bytes: int) -> str:
    """The line that stands in every view of a log where output was dropped."""
    size, limit = render_size(num_bytes), render_size(limit_bytes)
    return f"… {size} of output were dropped here (limit {limit} per rank: --log-limit) …\n"


def render_size(num_bytes: float) -> str:
    """`950.0 MB`: decimal, as the limit is given."""
    amount = float(num_bytes)
    for unit in ("bytes", "KB", "MB", "GB"):
        if amount < _UNIT - 0.05:
            return f"{amount:.0f} {unit}" if unit == "bytes" else f"{amount:.1f} {unit}"
        amount /= _UNIT
    return f"{amount:.1f} TB"
