"""The mirror protocol: copies of run directories made of (path, offset, bytes), resumable, and harmless to repeat.

Two kinds of files. What only grows (journals, logs, indexes) is sent in pieces; the copy's own length says what it has.
What appears by rename (other JSON) is sent whole, with a digest of its bytes and a version (the modification time at
the source, in nanoseconds); an older version never replaces a newer one. The copy can be killed at any moment, and
pieces may come twice or out of order. Of a log whose middle was dropped at the source, the copy drops the same bytes.

Standard library only.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from gangline.domain.errors import Conflict, InvalidRequest
from gangline.rundir.confined import open_parent, open_regular
from gangline.rundir.dropped import NOTHING, Dropped, read_dropped
from gangline.rundir.files import is_temporary
from gangline.rundir.punch import punch

__all__ = [
    "FileState",
    "Gap",
    "LocalSource",
    "Piece",
    "PullReport",
    "Source",
    "apply",
    "apply_dropped",
    "apply_whole",
    "grows",
    "is_log",
    "is_mirrored",
    "pull",
]

_GROWING = (".jsonl", ".log", ".index", ".stacks")
_MIRRORED_FOLDERS = frozenset({"attempts", "metrics"})
_PIECE_BYTES = 1 << 20
_LARGEST_WHOLE_BYTES = 64 << 20


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
    """SHA-256 of the whole file, hex."""
    dropped_to: int = 0
    """The bytes from `offset` up to here are gone at the source; `data` is empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PullReport:
    """What one pull did."""

    cursor: dict[str, tuple[int, int, int]]
    """Marks of files that are up to date; the next pull takes it and skips them. Losing it costs time alone."""
    num_bytes: int = 0
    problems: dict[str, str] = field(default_factory=dict)
    """Files that could not be copied, and why; the others were."""


class Source(Protocol):
    """Where a run directory can be read from."""

    def list(self) -> list[FileState]:
        """Files to mirror, each in the state that it has now."""
        ...

    def read(self, path: str, offset: int, num_bytes: int) -> bytes:
        """At most so many bytes from an offset on; b"" at the end.

        Raises:
            OSError: not there (any more), or not readable.
        """
        ...


def is_mirrored(path: str) -> bool:
    """Whether a file belongs to the mirror: what agents and ranks write, without code and checkpoints."""
    parts = path.split("/")
    if is_temporary(parts[-1]):
        return False
    return parts[0] in _MIRRORED_FOLDERS or (parts[0] == "launches" and path.endswith(".log"))


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
    if hashlib.sha256(piece.data).hexdigest() != piece.digest:
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


def pull(
    source: Source,
    dest_root: str | os.PathLike[str],
    cursor: Mapping[str, tuple[int, int, int]] | None = None,
    *,
    piece_bytes: int = _PIECE_BYTES,
) -> PullReport:
    """Bring a copy up to date with a source, reading what is new alone.

    Args:
        source: whose `list` is taken once; what is written meanwhile comes with the next pull.
        dest_root: folder of the copy; made if it is missing.
        cursor: of the report before; None: look at every file.
        piece_bytes: most that is held in memory of a growing file.
    """
    known = dict(cursor or {})
    problems: dict[str, str] = {}
    num_bytes = 0
    Path(dest_root).mkdir(parents=True, exist_ok=True)
    for state in source.list():
        if known.get(state.path) == state.mark:
            continue
        try:
            for piece in _pieces(source, dest_root, state, piece_bytes):
                num_bytes += _take(dest_root, piece)
            known[state.path] = state.mark
        except (OSError, InvalidRequest, Conflict) as error:
            known.pop(state.path, None)
            problems[state.path] = str(error)
    return PullReport(cursor=known, num_bytes=num_bytes, problems=problems)


class LocalSource:
    """A run directory that this process can read. Symbolic links in it are not followed.

    Args:
        root: the run directory; a missing one has no files.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)

    def list(self) -> list[FileState]:
        """See `Source`."""
        found = []
        for folder in sorted(_MIRRORED_FOLDERS | {"launches"}):
            for parent, folders, names in os.walk(self.root / folder):
                folders.sort()
                found += [state for name in sorted(names) if (state := self._state(Path(parent) / name)) is not None]
        return found

    def read(self, path: str, offset: int, num_bytes: int) -> bytes:
        """See `Source`."""
        with open_parent(self.root, path, create=False) as (folder, name):
            descriptor = open_regular(name, os.O_RDONLY, folder, path)
            try:
                return os.pread(descriptor, num_bytes, offset)
            finally:
                os.close(descriptor)

    def _state(self, path: Path) -> FileState | None:
        relative = path.relative_to(self.root).as_posix()
        try:
            status = path.lstat()
        except FileNotFoundError:
            return None
        if not stat.S_ISREG(status.st_mode) or not is_mirrored(relative):
            return None
        return FileState(relative, status.st_size, status.st_mtime_ns, status.st_ino)


def _pieces(source: Source, dest_root: str | os.PathLike[str], state: FileState, piece_bytes: int) -> Iterator[Piece]:
    if not grows(state.path):
        if state.size > _LARGEST_WHOLE_BYTES:
            raise InvalidRequest(f"`{state.path}` has {state.size:,} bytes; files sent whole have at most 64 MiB")
        data = source.read(state.path, 0, _LARGEST_WHOLE_BYTES)
        yield Piece(state.path, 0, data, state.mtime_ns, hashlib.sha256(data).hexdigest())
        return
    if is_log(state.path):
        yield from _log_pieces(source, dest_root, state, piece_bytes)
        return
    offset = apply(dest_root, state.path, 0, b"")
    while offset < state.size:
        data = source.read(state.path, offset, min(piece_bytes, state.size - offset))
        if not data:
            return
        yield Piece(state.path, offset, data)
        offset += len(data)


def _log_pieces(
    source: Source, dest_root: str | os.PathLike[str], state: FileState, piece_bytes: int
) -> Iterator[Piece]:
    """As for every file that grows, but for what is dropped from it, also while it is read."""
    offset = apply(dest_root, state.path, 0, b"")
    dropped = _pull_dropped(source, dest_root, state.path)
    if dropped.start < min(offset, dropped.end):
        yield Piece(state.path, dropped.start, b"", dropped_to=dropped.end)
        offset = max(offset, dropped.end)
    while offset < state.size:
        data = source.read(state.path, offset, min(piece_bytes, state.size - offset))
        dropped = _pull_dropped(source, dest_root, state.path)  # after the bytes: these may be zeros already
        if dropped.holds(offset):
            yield Piece(state.path, offset, b"", dropped_to=dropped.end)
            offset = dropped.end
            continue
        if offset < dropped.start:
            data = data[: dropped.start - offset]
        if not data:
            return
        yield Piece(state.path, offset, data)
        offset += len(data)


def _pull_dropped(source: Source, dest_root: str | os.PathLike[str], log: str) -> Dropped:
    """What is dropped at the source now; the copy knows it, too, before it is given the bytes that follow."""
    journal = f"{log.removesuffix('.log')}.dropped.jsonl"
    try:
        source.read(journal, 0, 1)
    except OSError:
        return NOTHING
    size = apply(dest_root, journal, 0, b"")
    while data := source.read(journal, size, _PIECE_BYTES):
        size = apply(dest_root, journal, size, data)
    return read_dropped(Path(dest_root, log))


def _take(dest_root: str | os.PathLike[str], piece: Piece) -> int:
    if piece.digest:
        return len(piece.data) if apply_whole(dest_root, piece) else 0
    if piece.dropped_to:
        apply_dropped(dest_root, piece.path, piece.offset, piece.dropped_to)
    else:
        apply(dest_root, piece.path, piece.offset, piece.data)
    return len(piece.data)


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
