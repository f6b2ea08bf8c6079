"""The size limit of a rank's log: the middle is freed while the rank goes on writing, the beginning and the end stay.

The rank holds the file itself, so nothing can be moved or rotated. On Linux a hole is punched instead: offsets stay,
readers and mirrors go on by offset, and only room is given back. What goes is written to the journal beside the log
first (`rundir/dropped.py`). Standard library only.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from gangline.rundir.dropped import NOTHING, Dropped, dropped_path, read_dropped
from gangline.rundir.punch import punch, reserve

__all__ = ["LogLimit", "decide_drop"]

_HEAD_SHARE = 4
"""One part in so many is for the beginning."""
_SLACK_SHARE = 8
"""So much is freed at once beyond what has to be, so that this is not done for every line."""
_ALIGN_BYTES = 1 << 16
"""A line end is looked for within so many bytes."""
_ROOM_BYTES = 1 << 16
"""Room for the journal itself, taken at its beginning: a full disk is when it is needed most."""
_LONGEST_CHARACTER = 4


class LogLimit:
    """Keeps one log within its limit.

    Args:
        log: written by the rank, and by nobody else.
        limit_bytes: of what it may take on disk; 0: no limit.
    """

    def __init__(self, log: str | os.PathLike[str], limit_bytes: int) -> None:
        self.log = Path(log)
        self.limit_bytes = limit_bytes
        self.dropped = read_dropped(log)
        self._size = 0
        self._torn = dropped_path(log).exists()

    def apply(self, size: int) -> bool:
        """Free what is too much; True where something was.

        Args:
            size: bytes that the log has now.
        Raises:
            OSError: nothing was freed, or not everything; EOPNOTSUPP: this file system cannot do it.
        """
        before, self._size = self._size, size
        if size < before and self.dropped.num_bytes:  # the rank has emptied it (`> /dev/stdout` in a shell does)
            self._note(Dropped(limit_bytes=self.limit_bytes))
        if not self.limit_bytes or size - self.dropped.num_bytes <= self.limit_bytes:
            return False
        descriptor = os.open(self.log, os.O_RDWR | os.O_CLOEXEC)
        try:
            start, end = decide_drop(size, self.limit_bytes)
            start = self.dropped.start if self.dropped.num_bytes else _after_line(descriptor, start)
            gone = Dropped(start=start, end=_before_line(descriptor, end), limit_bytes=self.limit_bytes)
            free_from = self.dropped.end if self.dropped.num_bytes else gone.start
            self._note(gone)
            punch(descriptor, free_from, gone.end - free_from)
        finally:
            os.close(descriptor)
        return True

    def _note(self, dropped: Dropped) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        descriptor = os.open(dropped_path(self.log), flags, 0o644)
        try:
            if self.dropped == NOTHING:
                punch(descriptor, _ROOM_BYTES, 1)  # whether it can be done is found out before anything is said
                reserve(descriptor, _ROOM_BYTES)
            line = b"\n" * self._torn + dropped.render()
            self._torn = True  # until all of it is known to be written
            if os.write(descriptor, line) != len(line):
                raise OSError(errno.ENOSPC, "only a part of a record was taken", str(dropped_path(self.log)))
        finally:
            os.close(descriptor)
        self._torn = False
        self.dropped = dropped


def decide_drop(size: int, limit_bytes: int) -> tuple[int, int]:
    """What of a log of `size` bytes has to go: from where to where."""
    head = limit_bytes // _HEAD_SHARE
    tail = limit_bytes - head - limit_bytes // _SLACK_SHARE
    return head, size - tail


def _after_line(descriptor: int, place: int) -> int:
    """The end of the last line before `place`, where there is one near."""
    floor = max(0, place - _ALIGN_BYTES)
    end = os.pread(descriptor, place - floor, floor).rfind(b"\n")
    return floor + end + 1 if end >= 0 else place


def _before_line(descriptor: int, place: int) -> int:
    """The beginning of the first line after `place`, where there is one near; else a whole character."""
    data = os.pread(descriptor, _ALIGN_BYTES, place)
    end = data.find(b"\n")
    if end >= 0:
        return place + end + 1
    while data[:1] and data[0] & 0b1100_0000 == 0b1000_0000:  # noqa: PLR2004 - inside a character of UTF-8
        data, place = data[1:_LONGEST_CHARACTER], place + 1
    return place
