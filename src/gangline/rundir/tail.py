"""Reading a rank's log as bytes: a piece from an offset on, its last lines, all of it.

The log is whatever the rank wrote: any bytes, progress bars that only send carriage returns, ten megabytes without a
line end, and perhaps a middle that was dropped (`rundir/dropped.py`), in whose place every function here puts one line
that says so. Every function holds a bounded number of bytes in memory.

Standard library only.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gangline.rundir.dropped import Dropped, read_dropped, render_note

__all__ = ["Chunk", "find_line_start", "find_tail", "read_chunk", "read_kept"]

_BLOCK_BYTES = 1 << 16
_CHUNK_BYTES = 1 << 18
_TAIL_BYTES = 1 << 20
_LONGEST_CHARACTER = 4
"""Bytes, in UTF-8."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A piece of a log."""

    offset: int
    data: bytes
    size: int
    """Bytes of the whole log when it was read, with what was dropped."""
    dropped_bytes: int = 0
    """So many bytes of the log are gone here; `data` is the line that says so."""

    @property
    def next_offset(self) -> int:
        """Where to read on."""
        return self.offset + (self.dropped_bytes or len(self.data))

    @property
    def text(self) -> str:
        """The bytes as UTF-8, invalid ones replaced."""
        return self.data.decode("utf-8", "replace")


def read_chunk(
    path: str | os.PathLike[str], offset: int, *, limit_bytes: int = _CHUNK_BYTES, final: bool = False
) -> Chunk:
    """The bytes from an offset on, at most `limit_bytes`, ending between two characters where the bytes are UTF-8.

    Args:
        path: a missing log is an empty one.
        offset: in bytes; one past the end gives an empty piece at the end.
        limit_bytes: less than a character has still gives one.
        final: nothing more will be written: a half-written character at the end comes, too.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return Chunk(offset=0, data=b"", size=0)
    try:
        size = os.fstat(descriptor).st_size
        start = min(max(offset, 0), size)
        data = os.pread(descriptor, max(limit_bytes, _LONGEST_CHARACTER), start)
        dropped = read_dropped(path)  # after the bytes: see there
        size = max(size, start + len(data))
        if dropped.end <= start or start + len(data) <= dropped.start:
            rest = len(data) if final and start + len(data) >= size else 0
            length = _whole_characters(data[:limit_bytes]) or _whole_characters(data) or rest
            length = rest if 0 < rest <= limit_bytes else length
            return Chunk(offset=start, data=data[:length], size=size)
        if start < dropped.start:
            return Chunk(offset=start, data=data[: dropped.start - start], size=size)
        note = _note_at(descriptor, start, dropped)
        return Chunk(offset=start, data=note, size=max(size, dropped.end), dropped_bytes=dropped.end - start)
    finally:
        os.close(descriptor)


def find_tail(path: str | os.PathLike[str], lines: int, *, limit_bytes: int = _TAIL_BYTES) -> int:
    """Where the last lines of a log begin, found by seeking from its end.

    Where there are fewer since its middle was dropped, that is the place of the note which says so.

    Args:
        path: a missing log is an empty one.
        lines: how many; a last line without its line feed counts as one.
        limit_bytes: longer lines lose their beginning, at a whole character.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return 0
    try:
        size = os.fstat(descriptor).st_size
        dropped = read_dropped(path)
        floor = max(0, size - limit_bytes)
        gone = floor < dropped.end <= size
        start = _start_of_lines(descriptor, size, dropped.end if gone else floor, lines)
        if start is not None:
            return start
        return dropped.start if gone else floor + _partial_character(os.pread(descriptor, _LONGEST_CHARACTER, floor))
    finally:
        os.close(descriptor)


def read_kept(path: str | os.PathLike[str], start: int = 0, end: int | None = None) -> Iterator[bytes]:
    """All that a log holds now, in pieces.

    Args:
        start: offset of the first byte.
        end: where to end; None: at the end that the log has now.
    """
    try:
        size = Path(path).stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        return
    end = size if end is None else min(end, size)
    while start < end:
        chunk = read_chunk(path, start, limit_bytes=min(_CHUNK_BYTES, end - start), final=True)
        if chunk.offset != start or not chunk.data:  # shorter than it was
            return
        yield chunk.data if chunk.dropped_bytes else chunk.data[: end - start]
        start = chunk.next_offset


def find_line_start(path: str | os.PathLike[str], offset: int) -> int:
    """Where the line begins that holds the byte at `offset`; `offset` itself where that is far away or gone."""
    floor = max(0, offset - _BLOCK_BYTES)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return offset
    try:
        data = os.pread(descriptor, offset - floor, floor)
    finally:
        os.close(descriptor)
    dropped = read_dropped(path)
    if dropped.start < offset and floor < dropped.end:
        floor, data = dropped.end, data[dropped.end - floor :]
    place = data.rfind(b"\n")
    if place >= 0:
        return floor + place + 1
    return floor if floor in {0, dropped.end} and floor <= offset else offset


def _note_at(descriptor: int, start: int, dropped: Dropped) -> bytes:
    note = render_note(dropped.end - start, dropped.limit_bytes).encode()
    begins = start == 0 or os.pread(descriptor, 1, start - 1) == b"\n"
    return note if begins else b"\n" + note


def _start_of_lines(descriptor: int, size: int, floor: int, lines: int) -> int | None:
    """Offset of the n-th last line, or None where it lies before `floor` (or, with `floor` 0, is the beginning)."""
    if lines <= 0:
        return size
    end, missing = size, lines
    while end > floor:
        start = max(floor, end - _BLOCK_BYTES)
        block = os.pread(descriptor, end - start, start)
        place = len(block) - (1 if end == size and block.endswith(b"\n") else 0)
        while (place := block.rfind(b"\n", 0, place)) >= 0:
            missing -= 1
            if missing == 0:
                return start + place + 1
        end = start
    return 0 if floor == 0 else None


def _whole_characters(data: bytes) -> int:
    """Length of `data` without a character that is cut at its end; bytes that are not UTF-8 count as whole."""
    for back in range(1, min(_LONGEST_CHARACTER - 1, len(data)) + 1):
        byte = data[-back]
        if not _continues(byte):
            return len(data) - back if _character_bytes(byte) > back else len(data)
    return len(data)


def _partial_character(data: bytes) -> int:
    """How many bytes at the beginning belong to a character that began before; at most 3."""
    count = 0
    while count < min(_LONGEST_CHARACTER - 1, len(data)) and _continues(data[count]):
        count += 1
    return count


def _continues(byte: int) -> bool:
    return byte & 0b1100_0000 == 0b1000_0000  # noqa: PLR2004 - UTF-8


def _character_bytes(byte: int) -> int:
    """How many bytes the character has that begins with this one; 1 where no character does."""
    for count, mask, value in (
        (2, 0b1110_0000, 0b1100_0000),
        (3, 0b1111_0000, 0b1110_0000),
        (4, 0b1111_1000, 0b1111_0000),
    ):
        if byte & mask == value:
            return count
    return 1
