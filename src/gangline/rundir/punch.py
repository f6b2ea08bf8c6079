"""Room given back from the middle of a file, which keeps its length: on Linux, where the file system can do it.

Standard library only.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from contextlib import suppress

__all__ = ["punch", "reserve"]

_KEEP_SIZE, _PUNCH_HOLE = 1, 2


def punch(descriptor: int, offset: int, num_bytes: int) -> None:
    """Give back the room of these bytes; they read as zeros from then on.

    Raises:
        OSError: it could not be done; EOPNOTSUPP or ENOSYS: not on this file system.
    """
    if num_bytes > 0:
        _fallocate(descriptor, _KEEP_SIZE | _PUNCH_HOLE, offset, num_bytes)


def reserve(descriptor: int, num_bytes: int) -> None:
    """Set room aside for the first bytes of a file, which keeps its length; does nothing where that cannot be done."""
    with suppress(OSError):
        _fallocate(descriptor, _KEEP_SIZE, 0, num_bytes)


def _fallocate(descriptor: int, mode: int, offset: int, num_bytes: int) -> None:
    if sys.platform != "linux":
        raise OSError(errno.EOPNOTSUPP, "only Linux gives room back")
    libc = ctypes.CDLL(None, use_errno=True)
    call = getattr(libc, "fallocate64", None) or libc.fallocate
    call.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    while call(descriptor, mode, offset, num_bytes):
        number = ctypes.get_errno()
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number))
