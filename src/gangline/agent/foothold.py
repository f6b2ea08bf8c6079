"""Whether folders are still those that they were: a rank may remove or move what its agent writes to.

Standard library only.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

__all__ = ["Foothold"]


class Foothold:
    """Holds folders open, so that one that was removed and made anew is not taken for the old one."""

    def __init__(self) -> None:
        self._held: dict[Path, int] = {}

    def hold(self, path: Path) -> None:
        """Look after a folder from now on; one that is not there is none of our business."""
        with suppress(OSError):
            held = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self.release(path)
            self._held[path] = held

    def release(self, path: Path) -> None:
        """Look after it no more."""
        held = self._held.pop(path, None)
        if held is not None:
            os.close(held)

    def find_lost(self) -> Path | None:
        """The first folder that is not where it was."""
        return next((path for path, held in self._held.items() if not _is_same(path, held)), None)

    def has_lost(self, path: Path) -> bool:
        """Whether a folder that is looked after is not where it was."""
        held = self._held.get(path)
        return held is not None and not _is_same(path, held)

    def close(self) -> None:
        """Let go of all."""
        for path in list(self._held):
            self.release(path)


def _is_same(path: Path, held: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(held))
    except FileNotFoundError:
        return False
    except OSError:
        return True  # the file system does not answer: nobody knows
