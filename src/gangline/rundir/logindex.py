"""From time to offset in a rank's log: `rank-00003.index`, kept by the agent while the rank writes.

Each record is one line of fixed width, `1700000000.123456 000000000001234`: at that time (wall clock, seconds) the log
had that many bytes. A record that was torn by a kill is filled up with `?`, so that all others keep their places.

Standard library only.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

__all__ = ["RECORD_BYTES", "IndexReader", "IndexWriter"]

_TIME_CHARS = 17
_OFFSET_CHARS = 15
RECORD_BYTES = _TIME_CHARS + 1 + _OFFSET_CHARS + 1
_BLOCK_BYTES = 128 * RECORD_BYTES


class IndexWriter:
    """Notes how long a log was and when.

    Args:
        path: the index; made with its folder when the first note is written.
        interval_s: least time between two records.
    """

    def __init__(self, path: str | os.PathLike[str], *, interval_s: float = 1.0) -> None:
        self.path = Path(path)
        self._name = os.fspath(path)
        self.interval_s = interval_s
        last = IndexReader(self.path).last()
        self._time, self._size = last if last is not None else (float("-inf"), 0)

    def note(self, size: int, now: float) -> bool:
        """Remember that the log has `size` bytes now; True where a record was written.

        Nothing is written while the log has not grown, or within `interval_s` of the last record. A clock that was set
        back counts as standing still, so that records stay in order.

        Raises:
            OSError: the record could not be written; a later one replaces it.
        """
        if size <= self._size or 0 <= now - self._time < self.interval_s:
            return False
        time = max(now, self._time)
        self._append(f"{time:0{_TIME_CHARS}.6f} {size:0{_OFFSET_CHARS}d}\n".encode())
        self._time, self._size = time, size
        return True

    def _append(self, record: bytes) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        try:
            descriptor = os.open(self._name, flags, 0o644)
        except FileNotFoundError:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._name, flags, 0o644)
        try:
            torn = os.fstat(descriptor).st_size % RECORD_BYTES
            filler = b"?" * (RECORD_BYTES - torn - 1) + b"\n" if torn else b""
            os.write(descriptor, filler + record)
        finally:
            os.close(descriptor)


class IndexReader:
    """Answers from an index by bisection; a missing, short or damaged index only makes answers coarser."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def offset_at(self, time: float) -> int:
        """Where to begin reading to see all that was written at `time` or later: the log's length before it, or 0."""
        return self._bisect(lambda record: record[0] <= time)[0][1]

    def offset_after(self, time: float) -> int | None:
        """Where to end reading to see all that was written up to `time`; None: at the end of the log."""
        following = self._bisect(lambda record: record[0] < time)[1]
        return following[1] if following is not None else None

    def time_at(self, offset: int) -> float | None:
        """When the byte at `offset` had been written, at the latest; None where the index does not reach that far."""
        return self.times_at([offset])[0]

    def times_at(self, offsets: Sequence[int]) -> list[float | None]:
        """The same of many bytes; the index is opened once, and not read again for those that lie together."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return [None] * len(offsets)
        found: list[float | None] = []
        low, high, time = 0.0, 0.0, None
        try:
            num_records = os.fstat(descriptor).st_size // RECORD_BYTES
            for offset in offsets:
                if not low <= offset < high:
                    before, following = _search(descriptor, num_records, partial(_is_up_to, offset))[:2]
                    low, high = before[1], math.inf if following is None else following[1]
                    time = None if following is None else following[0]
                found.append(time)
        finally:
            os.close(descriptor)
        return found

    def records_after(self, offset: int) -> Iterator[tuple[float, int]]:
        """Records of a log longer than `offset`, in order; damaged ones are left out."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return
        try:
            size = os.fstat(descriptor).st_size // RECORD_BYTES * RECORD_BYTES
            place = _search(descriptor, size // RECORD_BYTES, lambda record: record[1] <= offset)[2] * RECORD_BYTES
            while place < size:
                block = os.pread(descriptor, min(_BLOCK_BYTES, size - place), place)
                place += len(block)
                for start in range(0, len(block), RECORD_BYTES):
                    record = _parse_record(block[start : start + RECORD_BYTES])
                    if record is not None and record[1] > offset:
                        yield record
        finally:
            os.close(descriptor)

    def last(self) -> tuple[float, int] | None:
        """The newest record (time, size), or None."""
        found = self._bisect(lambda _: True)[0]
        return None if found == _NOTHING else found

    def _bisect(
        self, before: Callable[[tuple[float, int]], bool]
    ) -> tuple[tuple[float, int], tuple[float, int] | None]:
        """The last record for which `before` holds (else `_NOTHING`), and the one after it (None: there is none)."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return _NOTHING, None
        try:
            return _search(descriptor, os.fstat(descriptor).st_size // RECORD_BYTES, before)[:2]
        finally:
            os.close(descriptor)


_NOTHING = (float("-inf"), 0)


def _is_up_to(offset: int, record: tuple[float, int]) -> bool:
    return record[1] <= offset


def _search(
    descriptor: int, num_records: int, before: Callable[[tuple[float, int]], bool]
) -> tuple[tuple[float, int], tuple[float, int] | None, int]:
    """The last record for which `before` holds (else `_NOTHING`), the one after it, and the place of that one."""
    low, high = 0, num_records
    found: tuple[float, int] = _NOTHING
    following: tuple[float, int] | None = None
    while low < high:
        middle = (low + high) // 2
        place, record = _readable(descriptor, middle, high)
        if record is None:  # only damaged records up to `high`
            high = middle
        elif before(record):
            found, low = record, place + 1
        else:
            following, high = record, middle
    return found, following, low


def _readable(descriptor: int, place: int, end: int) -> tuple[int, tuple[float, int] | None]:
    """The first readable record at `place` or after it, before `end`."""
    while place < end:
        record = _parse_record(os.pread(descriptor, RECORD_BYTES, place * RECORD_BYTES))
        if record is not None:
            return place, record
        place += 1
    return place, None


def _parse_record(raw: bytes) -> tuple[float, int] | None:
    if len(raw) != RECORD_BYTES or raw[-1:] != b"\n" or raw[_TIME_CHARS : _TIME_CHARS + 1] != b" ":
        return None
    try:
        return float(raw[:_TIME_CHARS]), int(raw[_TIME_CHARS + 1 : -1])
    except ValueError:
        return None
