"""Files below a root that nobody can lead out of it: no `..`, and no step on the way is a symbolic link.

Standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator

from gangline.domain.errors import InvalidRequest

__all__ = ["UnsafePath", "open_parent", "open_regular"]

_LONGEST_PATH = 1024
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class UnsafePath(InvalidRequest):
    """A path leaves its root."""

    code = "unsafe_path"


@contextlib.contextmanager
def open_parent(root: str | os.PathLike[str], path: str, *, create: bool = True) -> Iterator[tuple[int, str]]:
    """The folder of a file below a root, as a descriptor, and the file's name; no step there is a symbolic link.

    Raises:
        UnsafePath: the path would leave the root.
        OSError: a folder is not there, or cannot be entered or made.
    """
    parts = path.split("/")
    if any(part in {"", ".", ".."} or "\0" in part for part in parts) or len(path) > _LONGEST_PATH:
        raise UnsafePath(f"`{path}` is no path inside its folder", fix="Name it relative to the folder, without `..`")
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts[:-1]:
            inner = _open_folder(part, folder, path, create=create)
            os.close(folder)
            folder = inner
        yield folder, parts[-1]
    finally:
        os.close(folder)


def open_regular(name: str, flags: int, folder: int, path: str) -> int:
    """Open a regular file of a folder that is open; `path` is what it is called in errors.

    Raises:
        UnsafePath: it is a symbolic link, a folder, a pipe or the like.
    """
    try:
        descriptor = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644, dir_fd=folder)
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.EISDIR, errno.ENXIO}:
            raise _not_regular(path) from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _not_regular(path)
    return descriptor


def _open_folder(name: str, parent: int, path: str, *, create: bool) -> int:
    if create:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o755, dir_fd=parent)
    try:
        return os.open(name, _OPEN_FOLDER, dir_fd=parent)
    except OSError as error:
        if error.errno not in {errno.ENOTDIR, errno.ELOOP}:
            raise
        raise UnsafePath(
            f"`{path}` leads through `{name}`, which is no folder", fix="Remove the link or file"
        ) from error


def _not_regular(path: str) -> UnsafePath:
    return UnsafePath(f"`{path}` is no regular file", why="a link, folder or pipe is in its place", fix="Remove it")
