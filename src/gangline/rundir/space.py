"""A disk that takes no more: how it is told from other trouble, and what is said of it. Standard library only."""

from __future__ import annotations

import errno
import os
from pathlib import Path

__all__ = ["STORAGE_WORDS", "describe_full", "is_full", "is_out_of_room", "probe_folder"]

STORAGE_WORDS = "the launch cannot go on without its run directory"
"""By these the server knows in an agent's log why the agent gave up."""
_OUT_OF_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
_FULL = _OUT_OF_ROOM | {errno.EROFS}
_PROBE_BYTES = 4096


def is_full(error: BaseException) -> bool:
    """Whether an error says that a disk, or a quota, is full, or that it may only be read."""
    return isinstance(error, OSError) and error.errno in _FULL


def is_out_of_room(error: BaseException) -> bool:
    """Whether an error says that a disk, or a quota, is full: room would help, as against one that is read-only."""
    return isinstance(error, OSError) and error.errno in _OUT_OF_ROOM


def describe_full(path: str | os.PathLike[str], error: OSError) -> str:
    """`/runs/a cannot be written: No space left on device (0.0 MiB are free)`."""
    return f"{os.fspath(path)} cannot be written: {error.strerror or error}{_free(Path(path))}"


def probe_folder(folder: Path) -> str:
    """Try to write into a folder that exists; what is wrong if its disk is full, else ""."""
    probe = folder / f".gangline-room.{os.getpid()}.tmp"
    try:
        try:
            probe.write_bytes(os.urandom(_PROBE_BYTES))
        finally:
            probe.unlink(missing_ok=True)
    except OSError as error:
        return describe_full(folder, error) if is_full(error) else ""
    return ""


def _free(path: Path) -> str:
    for place in (path, *path.parents):
        try:
            volume = os.statvfs(place)
        except OSError:
            continue
        return f" ({volume.f_bavail * volume.f_frsize / (1 << 20):.1f} MiB are free)"
    return ""
