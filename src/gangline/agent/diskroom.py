"""A warning while there is still time: the file system of the run directory is nearly full. Standard library only."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from gangline.rundir.dropped import render_size

__all__ = ["DiskRoom", "decide_low"]

_LOW_SHARE = 20
_LOW_BYTES = 10_000_000_000
_AGAIN = 2
"""Said again only after so many times the room was free in between."""


class DiskRoom:
    """Looks now and then at how much room is left.

    Args:
        folder: whose file system is looked at.
        warn: told when it is low.
    """

    def __init__(self, folder: Path, warn: Callable[[str], None]) -> None:
        self._folder = folder
        self._warn = warn
        self._told = False

    def look(self) -> None:
        """Look once, and warn where the room has become low since."""
        try:
            volume = os.statvfs(self._folder)
        except OSError:
            return
        free_bytes, total_bytes = volume.f_bavail * volume.f_frsize, volume.f_blocks * volume.f_frsize
        low_bytes = decide_low(total_bytes)
        if free_bytes < low_bytes and not self._told:
            self._told = True
            self._warn(
                f"The disk is nearly full: {render_size(free_bytes)} of {render_size(total_bytes)} are left under"
                f" {self._folder}. Logs and checkpoints need room; what is not needed any more should go."
            )
        elif free_bytes >= _AGAIN * low_bytes:
            self._told = False


def decide_low(total_bytes: int) -> int:
    """Below how much room people should know: a twentieth, at most 10 GB."""
    return min(total_bytes // _LOW_SHARE, _LOW_BYTES)
