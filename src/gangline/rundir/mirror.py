"""The mirror protocol: copies of run directories made of (path, offset, bytes), resumable, and harmless to repeat.

Two kinds of files. What only grows (journals, logs, indexes) is sent in pieces; the copy's own length says what it has.
What appears by rename (other JSON) is sent whole, with a digest of its bytes and a version (the modification time at
the source, in nanoseconds); an older version never replaces a newer one. The copy can be killed at any moment, and
pieces may come twice or out of order. Of a log whose middle was dropped at the source, the copy drops the same bytes.
`rundir/pull.py` asks a source for the pieces.

Standard library only.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import stat
from dataclasses import dataclass

from gangline.domain.errors import Conflict, InvalidRequest
from gangline.rundir.confined import open_parent, open_regular
from gangline.rundir.files import is_temporary
from gangline.rundir.layout import EXIT_MARK
from gangline.rundir.punch import punch

__all__ = [
    "FileState",
    "Gap",
    "Piece",
    "apply",
    "apply_dropped",
    "apply_whole",
    "grows",
    "is_log",
    "is_mirrored",
]

_GROWING = (".jsonl", ".log", ".index", ".stacks")
_MIRRORED_FOLDERS = frozenset({"attempts", "metrics"})


class Gap(Conflict):
    """A piece begins after the end of the copy; send from `size` on.

    Args:
        size: bytes that the copy has.
    """

    code = "mirror_gap"

    def __init__(self, path: str, offset: int, size: int) -> None:
        super().__init__(
            f"`{path}` has {size} bytes here, the piece begins at {offset}", fix=f"Send the bytes from {size} on first"
        )
        self.size = size


@dataclass(frozen=True, slots=True)
class FileState:
    """What a source says of one file."""

    path: str
    """POSIX, relative to the run directory."""
    size: int
    mtime_ns: int
    inode: int

    @property
    def mark(self) -> tuple[int, int, int]:
        """Equal marks: nothing has changed."""
        return self.size, self.mtime_ns, self.inode


@dataclass(frozen=True, slots=True)
class Piece:
    """One triple of the protocol: bytes of a file from an offset on. `version` and `digest` are set for whole files."""

    path: str
    offset: int
    data: bytes
    version: int = 0
    digest: str = ""
    """SHA-256 of the whole file, hex; "" where the way that they came already vouches for the bytes."""


def is_mirrored(path: str) -> bool:
    """Whether a file belongs to the mirror: what agents and ranks write, without code and checkpoints."""
    parts = path.split("/")
    if is_temporary(parts[-1]):
        return False
    of_launch = parts[0] == "launches" and (path.endswith(".log") or parts[-1] == EXIT_MARK)
    return parts[0] in _MIRRORED_FOLDERS or of_launch


def grows(path: str) -> bool:
    """Whether a file only grows (sent in pieces); others appear by rename (sent whole)."""
    return path.endswith(_GROWING)


def is_log(path: str) -> bool:
    """Whether a file is the log of a rank, whose middle may be dropped."""
    return path.startswith("attempts/") and path.endswith(".log")


def apply(dest_root: str | os.PathLike[str], path: str, offset: int, data: bytes) -> int:
    """Add a piece to the copy of a file that only grows. Bytes that the copy has already stay as they are.

    Returns:
        The size that the copy has now.
    Raises:
        Gap: bytes before `offset` are missing.
        UnsafePath: the path would leave the root, also by way of a symbolic link.
        OSError: the copy could not be written; what was is kept, and the same piece may come again.
    """
    with open_parent(dest_root, path) as (folder, name):
        descriptor = open_regular(name, os.O_WRONLY | os.O_CREAT, folder, path)
        try:
            size = os.fstat(descriptor).st_size
            if offset < 0 or offset > size:
                raise Gap(path, offset, size)
            rest = memoryview(data)[size - offset :]
            while rest:
                written = os.pwrite(descriptor, rest, size)
                size, rest = size + written, rest[written:]
            return size
        finally:
            os.close(descriptor)


def apply_dropped(dest_root: str | os.PathLike[str], path: str, start: int, end: int) -> int:
    """Drop from the copy of a log what was dropped at the source; it goes on at `end`.

    What the copy has of these bytes is freed where its file system can do that. The journal that says so
    (`rundir/dropped.py`) has to be brought first.

    Returns:
        The size that the copy has now: at least `end`.
    Raises:
        Gap: bytes before `start` are missing.
        UnsafePath, OSError: as for `apply`.
    """
    size = apply(dest_root, path, start, b"")
    with open_parent(dest_root, path) as (folder, name):
        descriptor = open_regular(name, os.O_WRONLY, folder, path)
        try:
            if size < end:
                os.ftruncate(descriptor, end)
            with contextlib.suppress(OSError):
                punch(descriptor, start, end - start)
        finally:
            os.close(descriptor)
    return max(size, end)


def apply_whole(dest_root: str | os.PathLike[str], piece: Piece) -> bool:
    """Replace the copy of a file that appears by rename; False where the copy is as new, or newer.

    Raises:
        InvalidRequest: the bytes are not those of the digest.
        UnsafePath, OSError: as for `apply`; the copy is untouched.
    """
    if piece.digest and hashlib.sha256(piece.data).hexdigest() != piece.digest:
        raise InvalidRequest(f"The bytes of `{piece.path}` do not match their digest", fix="Send the file again")
    with open_parent(dest_root, piece.path) as (folder, name):
        if _is_as_new(folder, name, piece):
            return False
        temporary = f".{name}.{secrets.token_hex(6)}.tmp"
        try:
            _write_new(temporary, folder, piece)
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=folder)
            raise
        return True


def _is_as_new(folder: int, name: str, piece: Piece) -> bool:
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError:  # there is none, or something else in its place, which the rename settles
        return False
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_mtime_ns < piece.version:
            return False
        return status.st_mtime_ns > piece.version or file.read() == piece.data


def _write_new(name: str, folder: int, piece: Piece) -> None:
    descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=folder)
    try:
        rest = memoryview(piece.data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.utime(descriptor, ns=(piece.version, piece.version))
    finally:
        os.close(descriptor)
