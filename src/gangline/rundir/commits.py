"""Making and retiring checkpoints. Nothing here knows about ranks: see `gangline.training.saving`.

A kill at any moment leaves every committed checkpoint whole and `latest` on one of them. Standard library only.
"""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from gangline.domain.errors import GanglineError
from gangline.rundir.checkpoints import (
    LATEST,
    MANIFEST,
    NOTES,
    FoundCheckpoint,
    crc32_of,
    find_checkpoints,
    folder_name,
    judge,
    list_checkpoint_folders,
    list_files,
    parse_folder_name,
)
from gangline.rundir.files import Unreadable, read_json, sync_folder, write_json

__all__ = [
    "CRC_LIMIT_BYTES",
    "CommitRefused",
    "commit",
    "discard",
    "find_known",
    "is_gone",
    "list_saves",
    "move_latest",
    "next_attempt",
    "notes_folder",
    "open_folder",
    "retain",
]

CRC_LIMIT_BYTES = 256 * 1024 * 1024
"""Larger files are recorded with their size alone: a checksum of them would hold up training."""
_REMOVED = ".removed"
_MOST_NAMES = 10_000
_THREADS = 4


class CommitRefused(GanglineError):
    """What was saved cannot count as a checkpoint."""

    code = "commit_refused"


def next_attempt(root: str | os.PathLike[str]) -> int:
    """A number that no checkpoint folder bears yet, for training that no platform numbers the attempts of."""
    found = (parse_folder_name(path.name) for path in list_checkpoint_folders(root))
    return max((order[1] for order in found if order is not None), default=-1) + 1


def open_folder(root: str | os.PathLike[str], step: int, attempt: int, *, owner: Mapping[str, Any]) -> Path:
    """Make the private, empty folder of one save; nobody else ever gets the same one.

    Args:
        owner: noted in `.saving/<name>/owner.json` together with this process, so that a later attempt of the same
            run can tell whose the folder was; `retain` looks at `run_id` and `numbered_by_platform`.
    Raises:
        OSError: the checkpoint path cannot be written.
    """
    root = Path(root)
    for save in range(_MOST_NAMES):
        folder = root / folder_name(step, attempt, save)
        notes = notes_folder(folder)
        if folder.exists() or not _make_new(notes):
            continue
        write_json(notes / "owner.json", {**_this_process(), **owner, "attempt": attempt, "step": step})
        if _make_new(folder):
            return folder
        shutil.rmtree(notes, ignore_errors=True)
    raise OSError(f"`{root}` already holds {_MOST_NAMES} saves of step {step}")


def notes_folder(folder: Path) -> Path:
    """Where the ranks leave word about a save that is going on."""
    return folder.parent / NOTES / folder.name


def list_saves(root: str | os.PathLike[str]) -> list[tuple[Path, dict[str, Any]]]:
    """Saves that have begun and not ended: the folder (which may be gone) and the owner's note (which may be empty)."""
    root = Path(root)
    try:
        names = sorted(path.name for path in (root / NOTES).iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [(root / name, _read_owner(root / NOTES / name)) for name in names]


def find_known(root: str | os.PathLike[str]) -> list[FoundCheckpoint]:
    """As `find_checkpoints`; of a save that was not finished, also whose it is and when it was last written to."""
    owners = {path.name: str(note.get("run_id") or "") for path, note in list_saves(root)}
    return [
        replace(one, run_id=one.run_id or owners.get(one.path.name, ""), time=one.time or _changed(one.path))
        for one in find_checkpoints(root)
    ]


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def commit(
    folder: Path, *, step: int, attempt: int, world_size: int, run_id: str = "", crc_limit_bytes: int = CRC_LIMIT_BYTES
) -> FoundCheckpoint:
    """Turn a finished save into a checkpoint: contents to the disk, then the manifest by rename.

    Killed at any moment, it leaves either an incomplete folder or a complete one. `move_latest` and `retain` come
    after.

    Raises:
        CommitRefused: there is nothing in the folder, or a file that bears the manifest's name.
        OSError: a file could not be read or made durable; the folder stays incomplete.
    """
    names = _names_to_commit(folder, step)
    with ThreadPoolExecutor(_THREADS) as threads:
        entries = list(threads.map(lambda name: _settle(folder / name, crc_limit_bytes), names))
    for inner in {(folder / name).parent for name in names} | {folder}:
        sync_folder(inner)
    manifest = {
        "version": 1,
        "step": step,
        "attempt": attempt,
        "world_size": world_size,
        "run_id": run_id,
        "time": time.time(),
        "files": dict(zip(names, entries, strict=True)),
    }
    write_json(folder / MANIFEST, manifest, durable=True)
    sync_folder(folder.parent)
    shutil.rmtree(notes_folder(folder), ignore_errors=True)
    return judge(folder)


def discard(folder: Path) -> None:
    """Remove a save that will not be committed and that nobody writes to any more."""
    _remove(folder)
    shutil.rmtree(notes_folder(folder), ignore_errors=True)


def move_latest(folder: Path) -> None:
    """Point `latest` at a committed checkpoint, by rename: at no moment is it missing or half-made.

    Raises:
        OSError: the file system has no symbolic links, or `latest` is a folder.
    """
    temporary = folder.parent / f".{LATEST}.{os.getpid()}.tmp"
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(folder.name)
    temporary.replace(folder.parent / LATEST)


def retain(
    root: str | os.PathLike[str],
    *,
    keep_last: int,
    run_id: str,
    attempt: int,
    branch_attempt: int = 0,
    protect: Iterable[str | os.PathLike[str]] = (),
) -> list[FoundCheckpoint]:
    """Remove what is over `keep_last` of this run's complete checkpoints, and what its older attempts left unfinished.

    Kept in any case: the newest, what `latest` points to, `protect` (what the attempt resumed from), checkpoints of
    other runs that share the path, and folders of the running attempt that are still being written. Unfinished folders
    of older attempts go only when a newer complete checkpoint exists.

    Args:
        keep_last: 0 keeps every complete checkpoint.
        attempt: the one that is running.
        branch_attempt: what older attempts saved counts as older, whatever its step: training went back before it.
    Returns:
        The complete checkpoints that were removed, oldest first.
    """
    root = Path(root)
    shutil.rmtree(root / _REMOVED, ignore_errors=True)
    found = find_checkpoints(root)
    guarded = {os.path.realpath(path) for path in [*protect, root / LATEST]}
    mine = [one for one in found if one.complete and one.run_id == run_id]
    mine.sort(key=lambda one: one.attempt >= branch_attempt)
    surplus = mine[:-keep_last] if keep_last > 0 else []
    removed = [one for one in surplus if os.path.realpath(one.path) not in guarded and _remove(one.path)]
    _remove_unfinished(root, found, run_id=run_id, attempt=attempt)
    shutil.rmtree(root / _REMOVED, ignore_errors=True)
    return removed


def _names_to_commit(folder: Path, step: int) -> list[str]:
    names = list_files(folder)
    if not names:
        raise CommitRefused(
            f"The checkpoint of step {step} holds no file",
            fix="Write into the path that `with gangline.checkpoint(step) as path` gives",
        )
    if (folder / MANIFEST).exists():
        raise CommitRefused(
            f"The checkpoint of step {step} holds a `{MANIFEST}` of its own",
            why="that name is the mark of a complete checkpoint",
            fix="Give your file another name, or put it into a folder inside the checkpoint",
        )
    return names


def _remove_unfinished(root: Path, found: list[FoundCheckpoint], *, run_id: str, attempt: int) -> None:
    newest = max((one.order for one in found if one.complete), default=None)
    complete = {one.path.name for one in found if one.complete}
    for folder, owner in list_saves(root):
        if owner.get("run_id") != run_id or not _is_over(owner, attempt):
            continue
        if folder.name not in complete and folder.is_dir():
            if newest is None or (parse_folder_name(folder.name) or newest) >= newest:
                continue
            _remove(folder)
        shutil.rmtree(notes_folder(folder), ignore_errors=True)


def _is_over(owner: Mapping[str, Any], attempt: int) -> bool:
    """Whether who began a save has surely ended: a platform ends an attempt before the next, others are looked up."""
    begun_in = owner.get("attempt")
    if not isinstance(begun_in, int) or begun_in >= attempt:
        return False
    return bool(owner.get("numbered_by_platform")) or is_gone(owner)


def is_gone(owner: Mapping[str, Any]) -> bool:
    """Whether the process that opened a save ran on this machine and is no more."""
    return owner.get("host") == socket.gethostname() and not _is_alive(owner.get("pid"))


def _is_alive(pid: object) -> bool:
    if not isinstance(pid, int) or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _remove(folder: Path) -> bool:
    """Take a folder out by one rename, then delete it; a kill in between leaves it to the next retention."""
    removed = folder.parent / _REMOVED
    target = removed / f"{folder.name}.{os.getpid()}"
    try:
        removed.mkdir(exist_ok=True)
        folder.rename(target)
    except FileNotFoundError:
        return False
    shutil.rmtree(target, ignore_errors=True)
    return True


def _settle(path: Path, crc_limit_bytes: int) -> dict[str, Any]:
    """Bring one file to the disk and describe it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
        size = os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)
    return {"size": size, "crc32": crc32_of(path) if size <= crc_limit_bytes else None}


def _make_new(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        return False
    return True


def _read_owner(notes: Path) -> dict[str, Any]:
    try:
        return read_json(notes / "owner.json") or {}
    except (Unreadable, OSError):
        return {}


def _this_process() -> dict[str, Any]:
    return {"host": socket.gethostname(), "pid": os.getpid()}
