"""Journals: JSON lines that only grow, with a sequence number, a wall clock and a monotonic clock on each.

A writer may be killed at any byte. The next writer ends a torn line with a newline and goes on; readers skip (and
count) lines that do not parse, and leave a last line without its newline for later.

Standard library only.
"""

from __future__ import annotations

import errno
import json
import os
import time
from pathlib import Path
from typing import Any

__all__ = ["JournalReader", "JournalWriter", "parse_records", "read_journal"]

_BLOCK_BYTES = 1 << 16
_CHUNK_BYTES = 1 << 20
_encode = json.JSONEncoder(ensure_ascii=False, separators=(", ", ": "), default=str).encode


class JournalWriter:
    """Appends records to a journal; each is one `write` to the kernel, so that a kill -9 of the writer loses nothing.

    One writer at a time per file. Not safe for threads that write at once: give each its own journal, or a lock.

    Args:
        path: made, with its folder, if it is missing. Numbers go on after what the file holds.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._torn = _ends_torn(self._descriptor)
        self._seq = _last_seq(self._descriptor) + 1

    def write(self, kind: str, **keys: object) -> dict[str, Any]:
        """Append one record and return it, with `seq`, `t` (wall clock) and `m` (monotonic clock) filled in.

        Values that JSON has no form for are written as their `str`.

        Raises:
            OSError: it was not written, or only in part; the next call ends the torn line and goes on with the same
                number.
        """
        record = {"seq": self._seq, "t": time.time(), "m": time.monotonic(), "kind": kind, **keys}
        line = _encode(record).encode("utf-8", "backslashreplace") + b"\n"
        data = b"\n" + line if self._torn else line
        self._torn = True  # until all of it is known to be written
        if os.write(self._descriptor, data) != len(data):
            raise OSError(errno.ENOSPC, "only a part of a record was taken; the disk may be full", str(self.path))
        self._torn = False
        self._seq += 1
        return record

    def fileno(self) -> int:
        """The descriptor, for `fsync`."""
        return self._descriptor

    def close(self) -> None:
        """Let go of the file; safe to repeat."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> JournalWriter:  # noqa: PYI034 - Self needs Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class JournalReader:
    """Follows a journal from an offset.

    Args:
        path: need not exist yet.
        offset: where an earlier reader stopped; 0 is the beginning.
    """

    def __init__(self, path: str | os.PathLike[str], offset: int = 0) -> None:
        self.path = Path(path)
        self.offset = offset
        """Bytes that were read for good: the end of the last complete line."""
        self.skipped = 0
        """Complete lines that were no JSON object."""

    def read(self, limit_bytes: int = _CHUNK_BYTES) -> list[dict[str, Any]]:
        """Complete records that `offset` has not passed yet; [] where there is nothing new, or no file.

        Args:
            limit_bytes: about how much to read at once; a longer line is still read whole. Call again until [] comes
                back.
        """
        while data := self._complete_lines(limit_bytes):
            records, skipped = parse_records(data)
            self.offset += len(data)
            self.skipped += skipped
            if records:  # a stretch without any is not the end
                return records
        return []

    def read_all(self) -> list[dict[str, Any]]:
        """Every complete record up to now."""
        found: list[dict[str, Any]] = []
        while piece := self.read():
            found += piece
        return found

    def _complete_lines(self, limit_bytes: int) -> bytes:
        try:
            with self.path.open("rb") as file:
                file.seek(self.offset)
                data = file.read(limit_bytes)
                while data and b"\n" not in data:
                    more = file.read(len(data))
                    if not more:
                        return b""
                    data += more
        except (FileNotFoundError, NotADirectoryError):
            return b""
        return data[: data.rfind(b"\n") + 1]


def read_journal(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Every complete record of a journal, in order; [] where there is no file."""
    return JournalReader(path).read_all()


def parse_records(data: bytes) -> tuple[list[dict[str, Any]], int]:
    """JSON objects, one a line, and how many non-empty lines were something else."""
    records: list[dict[str, Any]] = []
    skipped = 0
    for line in data.split(b"\n"):
        if not line.strip():
            continue
        record = _parse_record(line)
        if record is None:
            skipped += 1
        else:
            records.append(record)
    return records, skipped


def _parse_record(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _ends_torn(descriptor: int) -> bool:
    size = os.fstat(descriptor).st_size
    return size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"


def _last_seq(descriptor: int) -> int:
    """The number of the last record that has one, or -1; read from the end, in windows that double."""
    size = os.fstat(descriptor).st_size
    window = _BLOCK_BYTES
    while True:
        start = max(0, size - window)
        lines = os.pread(descriptor, size - start, start).split(b"\n")
        for line in reversed(lines if start == 0 else lines[1:]):
            record = _parse_record(line)
            if record is not None and type(record.get("seq")) is int:
                return int(record["seq"])
        if start == 0:
            return -1
        window *= 2
