"""The leader's sign of life for the server: `leader.alive`, touched every few seconds.

What the file holds is of no meaning but takes room on the disk, which is given back when a disk is full and a result
has to be written. Standard library only.
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

    def give_room(self) -> None:
        """Let the room be used by others."""
        with suppress(OSError):
            os.truncate(self._path, 0)
