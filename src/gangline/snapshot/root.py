"""Which folder is the project."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from gangline.domain.errors import SnapshotRefused

__all__ = ["PROJECT_FILE", "find_git_top", "find_root"]

PROJECT_FILE = "gangline.yaml"


def find_root(start: Path) -> Path:
    """The folder that is packed when a run is submitted in `start`.

    The nearest parent with a `gangline.yaml`, else the top of the git working tree, else `start` itself. Never `/` or
    the home folder, whatever lies in them.

    Raises:
        SnapshotRefused: `start` is no folder, or is one of the two and no project.
    """
    start = Path(os.path.realpath(start))
    if not start.is_dir():
        raise SnapshotRefused(f"There is no folder {start}", fix="Submit from the project's folder.")
    _refuse_too_wide(start)
    parents = [folder for folder in (start, *start.parents) if not _too_wide(folder)]
    with_file = next((folder for folder in parents if (folder / PROJECT_FILE).is_file()), None)
    return with_file or find_git_top(start) or start


def find_git_top(folder: Path) -> Path | None:
    """The nearest parent that holds a `.git`, a file in worktrees and submodules; never `/` or the home folder."""
    return next((at for at in (folder, *folder.parents) if os.path.lexists(at / ".git") and not _too_wide(at)), None)


def _refuse_too_wide(folder: Path) -> None:
    if not _too_wide(folder):
        return
    name = "the root of the file system" if folder.parent == folder else "the home folder"
    raise SnapshotRefused(
        f"{folder} is {name} and cannot be a project",
        why="Everything in it would be packed",
        fix="Put the training code into a folder of its own and submit from there.",
    )


def _too_wide(folder: Path) -> bool:
    return folder.parent == folder or folder in _homes()


def _homes() -> Iterator[Path]:
    home = os.path.expanduser("~")  # noqa: PTH111 - Path.home() raises where there is none
    if home.startswith("/"):
        yield Path(os.path.realpath(home))
