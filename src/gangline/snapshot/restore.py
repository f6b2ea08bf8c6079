"""Rebuild a tree byte for byte from its manifest.

Everything is written into a private folder next to the destination, which takes its name when it is complete. Whoever
is killed half-way leaves a private folder behind that the next restore to the same destination removes.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from gangline.domain.errors import Conflict, SnapshotRefused
from gangline.snapshot.manifest import FOLDER_MODE, FileEntry, Manifest, printable
from gangline.snapshot.objects import ObjectStore, read_chunks

__all__ = ["restore"]

_LARGE_BYTES = 1 << 20


def restore(manifest: Manifest, objects: ObjectStore, dest: Path) -> Path:
    """Write the tree to `dest`, which must not exist or be an empty folder.

    Raises:
        Conflict: there is something in `dest`.
        NotFound: a content is not in the store.
        SnapshotRefused: a content in the store is damaged; it was removed, so that the next submit sends it again.
    """
    dest = Path(os.path.abspath(dest))  # noqa: PTH100 - a link at the end is not followed
    _refuse_occupied(dest)
    dest.parent.mkdir(parents=True, exist_ok=True)
    with _private_folder(dest) as private:
        folders = _make_folders(manifest.files, private)
        _write_files([entry for entry in manifest.files if entry.kind == "file"], objects, private)
        for entry in manifest.files:
            if entry.kind == "link":
                os.symlink(entry.target or "", _inside(private, entry.path))  # noqa: PTH211 - Path() would tidy it
        for folder, mode in sorted(folders.items(), reverse=True):  # what is inside first: the mode may forbid it then
            os.chmod(_inside(private, folder), mode)  # noqa: PTH101
        try:
            private.rename(dest)
        except OSError as error:
            _refuse_occupied(dest)
            raise SnapshotRefused(f"{dest} cannot be written", why=error.strerror or "") from error
    return dest


def _refuse_occupied(dest: Path) -> None:
    if os.path.lexists(dest) and not (dest.is_dir() and not dest.is_symlink() and not any(dest.iterdir())):
        raise Conflict(
            f"There is something at {dest} already", fix="Name a folder that does not exist, or an empty one."
        )


@contextmanager
def _private_folder(dest: Path) -> Iterator[Path]:
    """A folder next to `dest`, locked while its maker lives, removed unless it was renamed."""
    prefix = f".{dest.name}.restore-"
    _remove_abandoned(dest.parent, prefix)
    private = Path(tempfile.mkdtemp(prefix=prefix, dir=dest.parent))
    held = os.open(private, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        private.chmod(0o755)
        yield private
    finally:
        shutil.rmtree(private, ignore_errors=True)
        os.close(held)


def _remove_abandoned(parent: Path, prefix: str) -> None:
    for found in parent.glob(f"{prefix}*"):
        try:
            held = os.open(found, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(found, ignore_errors=True)
        except BlockingIOError:
            pass  # its maker lives
        finally:
            os.close(held)


def _make_folders(entries: Sequence[FileEntry], private: Path) -> dict[str, int]:
    """Make every folder of the tree; the modes that they are to have, whatever this process would give them."""
    folders = {entry.path: entry.mode for entry in entries if entry.kind == "dir"}
    for entry in entries:
        parent = entry.path.rpartition("/")[0]
        while parent and parent not in folders:
            folders[parent] = FOLDER_MODE
            parent = parent.rpartition("/")[0]
    for folder in sorted(folders):
        os.makedirs(_inside(private, folder), mode=0o700, exist_ok=True)  # noqa: PTH103
    return folders


def _write_files(entries: Sequence[FileEntry], objects: ObjectStore, private: Path) -> None:
    """Write large files side by side; small ones cost less one after the other, threads would only get in their way."""
    large = [entry for entry in entries if entry.size >= _LARGE_BYTES]
    small = [entry for entry in entries if entry.size < _LARGE_BYTES]
    with ThreadPoolExecutor(min(os.cpu_count() or 1, 8)) as pool:
        writing = [pool.submit(_write_file, entry, objects, private) for entry in large]
        for entry in small:
            _write_file(entry, objects, private)
        for future in writing:
            future.result()


def _write_file(entry: FileEntry, objects: ObjectStore, private: Path) -> None:
    sha = hashlib.sha256()
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    digest = entry.digest or ""
    with (
        objects.open(digest) as source,
        os.fdopen(os.open(_inside(private, entry.path), flags, 0o600), "wb", buffering=0) as sink,
    ):
        for chunk in read_chunks(source):
            sha.update(chunk)
            sink.write(chunk)
        os.fchmod(sink.fileno(), entry.mode)
    if sha.hexdigest() != digest:
        objects.discard(digest)
        raise SnapshotRefused(
            f"The stored content of {printable(entry.path)} is damaged",
            why="Its bytes are not those that were submitted; it was removed from the store",
            fix="Submit again.",
        )


def _inside(folder: Path, path: str) -> str:
    """The place of a manifest's path; the manifest has made sure that it stays inside, and below no link."""
    return os.path.join(folder, path)  # noqa: PTH118 - text paths on purpose, there can be many
