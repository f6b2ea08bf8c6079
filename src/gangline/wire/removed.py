"""What the API answers about the room that runs take, and what became of it when they were removed.

Standard library only.
"""

from __future__ import annotations

from typing_extensions import TypedDict

__all__ = ["FreedView", "RemovedView", "RunSizeView"]


class RunSizeView(TypedDict):
    """What `gangline rm` would remove of a run."""

    id: str
    size_bytes: int
    """What its folder takes on the disk, checkpoints included."""
    checkpoints_bytes: int
    """Those in its folder."""
    num_checkpoints: int
    """Those in its folder."""
    checkpoint_path: str | None
    """Where it saves, if that is not in its folder: what lies there stays."""


class RemovedView(TypedDict):
    """A run that was removed."""

    id: str
    freed_bytes: int
    kept: str | None
    """Where its checkpoints are now, if they were to be kept and there were any."""
    left: list[str]
    """A sentence for each thing that could not be removed, or lies where the server does not reach."""


class FreedView(TypedDict):
    """Contents of code that no run uses any more, and that were removed."""

    num_objects: int
    num_snapshots: int
    freed_bytes: int
