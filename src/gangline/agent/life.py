"""The leader's sign of life for the server: `leader.alive`, touched every few seconds.

What the file holds is of no meaning but takes room on the disk, into which a result is written when the disk is full.
Standard library only.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from gangline.agent.site import complain

__all__ = ["BEAT_S", "LifeSign"]

BEAT_S = 5.0
_ROOM_BYTES = 64 * 1024


class LifeSign:
    """Shows that the leader lives. Trouble with the file is told in the agent's log, and stops nothing."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def begin(self) -> None:
        """Make the file."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.write_bytes(os.urandom(_ROOM_BYTES))  # nothing that a file system could store in less
        except OSError as error:
            complain(f"the sign of life {self._path} cannot be written: {error}")

    def beat(self) -> None:
        """Touch it, from any thread. A file that somebody has removed stays away: the server then waits for no sign."""
        with suppress(OSError):
            os.utime(self._path)

    def become(self, path: Path, data: bytes) -> bool:
        """Be another file of the run, with this content, for which nothing more is taken of the disk.

        Room that was given back could be taken by others first.

        Returns:
            Whether it is there. Where it is not (a file system that writes nowhere twice), the room is given back.
        """
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
            try:
                written = os.pwrite(descriptor, data, 0)
                os.ftruncate(descriptor, written)
            finally:
                os.close(descriptor)
            if written == len(data):
                self._path.rename(path)
                return True
        except OSError as error:
            complain(f"{path} could not be written in place of the sign of life: {error}")
        with suppress(OSError):
            os.truncate(self._path, 0)
        return False
