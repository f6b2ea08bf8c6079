"""Room set aside in the state folder: on a full disk a server still starts, stores how runs ended, and removes runs.

Standard library only.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

__all__ = ["RESERVE_BYTES", "release_reserve", "renew_reserve"]

RESERVE_BYTES = 1 << 20
_FREE_BYTES = 4 * RESERVE_BYTES
"""So much has to be free before room is set aside again: a disk that stays full is not filled further."""


def release_reserve(home: Path) -> bool:
    """Give the room back to the disk; whether there was any."""
    with suppress(OSError):
        (home / "reserve").unlink()
        return True
    return False


def renew_reserve(home: Path) -> None:
    """Set room aside where none is and the disk has enough; it is not vital, so trouble is passed over."""
    path = home / "reserve"
    with suppress(OSError):
        if path.exists():
            return
        volume = os.statvfs(home)
        if volume.f_bavail * volume.f_frsize < _FREE_BYTES:
            return
        try:
            path.write_bytes(os.urandom(RESERVE_BYTES))  # neither a hole nor zeros: those may take no room
        except OSError:
            path.unlink(missing_ok=True)
