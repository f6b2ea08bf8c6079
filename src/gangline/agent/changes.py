"""Whether anything below a folder was touched, for nothing while nothing is: inotify. Standard library only.

Where the system has no inotify, or no room for more watches, the answer is always "perhaps".
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from contextlib import suppress
from pathlib import Path

__all__ = ["ChangeWatch"]

_EVENT = struct.Struct("iIII")
_ATTRIB, _MODIFY, _CLOSE_WRITE = 0x4, 0x2, 0x8
_MOVED_FROM, _MOVED_TO, _CREATE, _DELETE, _DELETE_SELF, _MOVE_SELF = 0x40, 0x80, 0x100, 0x200, 0x400, 0x800
_OVERFLOW = 0x4000
_ONLYDIR = 0x01000000
_MASK = (
    _ATTRIB
    | _MODIFY
    | _CLOSE_WRITE
    | _MOVED_FROM
    | _MOVED_TO
    | _CREATE
    | _DELETE
    | _DELETE_SELF
    | _MOVE_SELF
    | _ONLYDIR
)
_READ_BYTES = 1 << 18
_MOST_FOLDERS = 20_000


class ChangeWatch:
    """Watches every folder that is below `root` now; new ones hold nothing that was there before."""

    def __init__(self, root: Path) -> None:
        self._folders: dict[int, str] = {}
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._notify = self._open()
        self.found: set[str] = set()
        """Paths of everything that is there now."""
        try:
            for folder, names, files in os.walk(root):
                names[:] = [name for name in names if name != "__pycache__"]
                prefix = "" if folder == str(root) else f"{folder[len(str(root)) + 1 :]}/"
                self.found.update(prefix + name for name in (*names, *files))
                self._add(prefix, folder)
        except OSError:
            self.close()

    def take(self) -> set[str] | None:
        """Paths below the root that were touched since the last call; None: any may have been."""
        if self._notify is None:
            return None
        found: set[str] = set()
        with suppress(BlockingIOError):
            while data := os.read(self._notify, _READ_BYTES):
                if not self._read(data, found):
                    return None
        return found

    def close(self) -> None:
        """Watch no more."""
        if self._notify is not None:
            os.close(self._notify)
            self._notify = None

    def _open(self) -> int | None:
        if sys.platform != "linux":
            return None
        number = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        return None if number < 0 else int(number)

    def _add(self, prefix: str, folder: str) -> None:
        if self._notify is None or len(self._folders) >= _MOST_FOLDERS:
            raise OSError("too many folders to watch")
        number = self._libc.inotify_add_watch(self._notify, os.fsencode(folder), _MASK)
        if number < 0:
            raise OSError(ctypes.get_errno(), "cannot be watched", folder)
        self._folders[number] = prefix

    def _read(self, data: bytes, found: set[str]) -> bool:
        """False: more happened than was noted."""
        offset = 0
        while offset < len(data):
            number, mask, _, length = _EVENT.unpack_from(data, offset)
            offset += _EVENT.size
            name = os.fsdecode(data[offset : offset + length].rstrip(b"\0"))
            offset += length
            if mask & (_OVERFLOW | _DELETE_SELF | _MOVE_SELF):
                return False
            if name and name != "__pycache__":
                found.add(self._folders.get(number, "") + name)
        return True
