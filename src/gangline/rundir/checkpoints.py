"""Checkpoints in their folder: found, judged, committed, retired. Nothing here knows about ranks; see `gangline.training.saving`.

    <root>/step-0000000100.attempt-002/          one save; `.1`, `.2` … follow where the name was taken
    <root>/step-0000000100.attempt-002/manifest.json   its last file, by rename: with it, the save counts
    <root>/latest -> step-0000000100.attempt-002
    <root>/.saving/step-0000000100.attempt-002/  notes of the ranks while they save; gone afterwards
    <root>/.removed/                             what retention has taken out and is deleting

Standard library only.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import time
import zlib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gangline.domain.errors import GanglineError
from gangline.rundir.files import Unreadable, is_temporary, read_json, sync_folder, write_json

__all__ = [
    "CRC_LIMIT_BYTES",
    "MANIFEST",
    "CommitRefused",
    "FoundCheckpoint",
    "commit",
    "find_checkpoints",
    "folder_name",
    "move_latest",
    "newest_complete",
    "next_attempt",
    "notes_folder",
    "open_folder",
    "retain",
]

MANIFEST = "manifest.json"
LATEST = "latest"
CRC_LIMIT_BYTES = 256 * 1024 * 1024
"""Larger files are recorded with their size alone: a checksum of them would hold up training."""
_NOTES = ".saving"
_REMOVED = ".removed"
_NAME = re.compile(r"step-(\d+)\.attempt-(\d+)(?:\.(\d+))?")
_MOST_NAMES = 10_000
_BLOCK_BYTES = 1 << 20
_THREADS = 4


class CommitRefused(GanglineError):
    """What was saved cannot count as a checkpoint."""

    code = "commit_refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundCheckpoint:
    """One folder in a checkpoint path, and whether it can be trusted."""

    path: Path
    step: int
    attempt: int
    save: int = 0
    """0 for the first save of this step in this attempt, then 1, 2 …"""
    complete: bool = False
    why_not: str = ""
    """A sentence for people: why it does not count. "" where it is complete."""
    run_id: str = ""
    world_size: int = 0
    time: float = 0.0
    """Wall clock of the commit."""
    size_bytes: int = 0
    num_files: int = 0

    @property
    def order(self) -> tuple[int, int, int]:
        """What "newer" means: step, then attempt, then save, as numbers."""
        return self.step, self.attempt, self.save


def folder_name(step: int, attempt: int, save: int = 0) -> str:
    """`step-0000000100.attempt-002`, with `.1` and so on for further saves."""
    return f"step-{step:010d}.attempt-{attempt:03d}" + (f".{save}" if save else "")


def find_checkpoints(root: str | os.PathLike[str], *, checksums: bool = False) -> list[FoundCheckpoint]:
    """Every checkpoint folder in a checkpoint path, oldest first, each judged; [] where the path does not exist.

    Args:
        checksums: also read the files and compare what the manifest says of their contents; otherwise sizes alone.
    """
    return [judge(path, checksums=checksums) for path in _folders(root)]


def newest_complete(
    root: str | os.PathLike[str], *, run_id: str | None = None, checksums: bool = False
) -> tuple[FoundCheckpoint | None, list[FoundCheckpoint]]:
    """The checkpoint to resume from, and the newer folders that were passed over, newest first, each with its `why_not`.

    Args:
        run_id: only checkpoints that this run has committed count; None: those of any run.
    """
    skipped: list[FoundCheckpoint] = []
    for path in reversed(_folders(root)):
        found = judge(path, checksums=checksums)
        if found.complete and run_id in {None, found.run_id}:
            return found, skipped
        if not found.complete:
            skipped.append(found)
    return None, skipped


def judge(path: Path, *, checksums: bool = False) -> FoundCheckpoint:
    """Say whether one checkpoint folder is complete.

    Raises:
        ValueError: the folder's name is not that of a checkpoint.
    """
    match = _NAME.fullmatch(path.name)
    if match is None:
        raise ValueError(f"`{path.name}` is not the name of a checkpoint folder")
    step, attempt, save = (int(group or 0) for group in match.groups())
    manifest, why_not = _read_manifest(path)
    if manifest is None:
        return FoundCheckpoint(path=path, step=step, attempt=attempt, save=save, why_not=why_not)
    files: Mapping[str, Any] = manifest["files"]
    why_not = _fault(path, files, checksums=checksums)
    return FoundCheckpoint(
        path=path,
        step=step,
        attempt=attempt,
        save=save,
        complete=not why_not,
        why_not=why_not,
        run_id=str(manifest.get("run_id") or ""),
        world_size=_number(manifest.get("world_size")),
        time=float(_number(manifest.get("time"))),
        size_bytes=sum(entry["size"] for entry in files.values()),
        num_files=len(files),
    )


def next_attempt(root: str | os.PathLike[str]) -> int:
    """A number that no checkpoint folder bears yet: for training that runs without a platform to number its attempts."""
    return max((_key(path)[1] for path in _folders(root)), default=-1) + 1


def open_folder(root: str | os.PathLike[str], step: int, attempt: int, *, owner: Mapping[str, Any]) -> Path:
    """Make the private, empty folder of one save; nobody else ever gets the same one.

    Args:
        owner: noted in `.saving/<name>/owner.json` together with this process, so that a later attempt of the same run can tell
            whose the folder was; `run_id` and `attempt` are what `retain` looks at.
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
    return folder.parent / _NOTES / folder.name


def commit(
    folder: Path, *, step: int, attempt: int, world_size: int, run_id: str = "", crc_limit_bytes: int = CRC_LIMIT_BYTES
) -> FoundCheckpoint:
    """Turn a finished save into a checkpoint: contents to the disk, then the manifest by rename, then `latest`.

    Killed at any moment, it leaves either an incomplete folder and the old `latest`, or a complete one.

    Raises:
        CommitRefused: there is nothing in the folder.
        OSError: a file could not be read or made durable; the folder stays incomplete.
    """
    names = _list_files(folder)
    if not names:
        raise CommitRefused(
            f"The checkpoint of step {step} holds no file",
            fix="Write into the path that `with gangline.checkpoint(step) as path` gives",
        )
    with ThreadPoolExecutor(_THREADS) as threads:
        entries = list(threads.map(lambda name: _settle(folder / name, crc_limit_bytes), names))
    for inner in sorted({(folder / name).parent for name in names} | {folder}, reverse=True):
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
    return judge(folder)


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
    protect: Iterable[str | os.PathLike[str]] = (),
) -> list[FoundCheckpoint]:
    """Remove what is over `keep_last` among this run's own complete checkpoints, and what its older attempts left unfinished.

    Kept in any case: the newest, what `latest` points to, `protect` (what the attempt resumed from), checkpoints of other runs that
    share the path, and folders of the running attempt that are still being written. Unfinished folders of older attempts go only
    when a newer complete checkpoint exists.

    Args:
        keep_last: 0 keeps every complete checkpoint.
        attempt: the one that is running.
    Returns:
        The complete checkpoints that were removed, oldest first.
    """
    root = Path(root)
    shutil.rmtree(root / _REMOVED, ignore_errors=True)
    found = find_checkpoints(root)
    guarded = {Path(os.path.realpath(path)) for path in [*protect, root / LATEST]}
    mine = [one for one in found if one.complete and one.run_id == run_id]
    surplus = mine[:-keep_last] if keep_last > 0 else []
    removed = [one for one in surplus if Path(os.path.realpath(one.path)) not in guarded]
    for one in removed:
        _remove(one.path)
    _remove_unfinished(root, found, run_id=run_id, attempt=attempt)
    shutil.rmtree(root / _REMOVED, ignore_errors=True)
    return removed


def _remove_unfinished(root: Path, found: list[FoundCheckpoint], *, run_id: str, attempt: int) -> None:
    newest = max((one.order for one in found if one.complete), default=(-1, -1, -1))
    complete = {one.path.name for one in found if one.complete}
    for notes in _listdir(root / _NOTES):
        owner = _read_owner(notes)
        if owner.get("run_id") != run_id or not _is_over(owner, attempt):
            continue
        folder = root / notes.name
        if notes.name not in complete and folder.is_dir():
            if _key(folder) > newest:
                continue
            _remove(folder)
        shutil.rmtree(notes, ignore_errors=True)


def _is_over(owner: Mapping[str, Any], attempt: int) -> bool:
    """Whether whoever began a save has certainly ended: a platform ends one attempt before the next, others are looked up."""
    if _number(owner.get("attempt")) >= attempt:
        return False
    if owner.get("numbered_by_platform"):
        return True
    return owner.get("host") == socket.gethostname() and not _is_alive(_number(owner.get("pid")))


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _remove(folder: Path) -> None:
    """Take a folder out by one rename, then delete it; a kill in between leaves it to the next retention."""
    removed = folder.parent / _REMOVED
    removed.mkdir(exist_ok=True)
    target = removed / f"{folder.name}.{os.getpid()}"
    try:
        folder.rename(target)
    except FileNotFoundError:
        return
    shutil.rmtree(target, ignore_errors=True)


def _read_manifest(folder: Path) -> tuple[dict[str, Any] | None, str]:
    try:
        manifest = read_json(folder / MANIFEST)
    except Unreadable as error:
        return None, f"its manifest cannot be read ({error.why})"
    except OSError as error:
        return None, f"its manifest cannot be read ({error.strerror})"
    if manifest is None:
        return None, "it has no manifest: the save was not finished"
    files = manifest.get("files")
    if not isinstance(files, dict) or not files:
        return None, "its manifest lists no files"
    if not all(isinstance(entry, dict) and type(entry.get("size")) is int for entry in files.values()):
        return None, "its manifest does not say how large its files are"
    return manifest, ""


def _fault(folder: Path, files: Mapping[str, Any], *, checksums: bool) -> str:
    """The first thing that is wrong with the files of a checkpoint, as a sentence; "" where nothing is."""
    for name, entry in files.items():
        try:
            size = (folder / name).stat().st_size
        except (OSError, ValueError):
            return f"`{name}` is missing"
        if size != entry["size"]:
            return f"`{name}` has {size:,} bytes, {entry['size']:,} were saved"
        crc32 = entry.get("crc32")
        if checksums and crc32 and _crc32(folder / name) != crc32:
            return f"`{name}` is not what was saved (its checksum differs)"
    extra = next((name for name in _list_files(folder) if name not in files and name.endswith(".tmp")), None)
    return f"`{extra}` is not in its manifest: something was still writing" if extra else ""


def _settle(path: Path, crc_limit_bytes: int) -> dict[str, Any]:
    """Bring one file to the disk and describe it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
        size = os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)
    return {"size": size, "crc32": _crc32(path) if size <= crc_limit_bytes else None}


def _crc32(path: Path) -> str:
    value = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            value = zlib.crc32(block, value)
    return f"{value:08x}"


def _list_files(folder: Path) -> list[str]:
    """Regular files (also behind symbolic links) by POSIX path relative to the folder, sorted; without the manifest."""
    found = []
    for parent, _, names in os.walk(folder):
        inner = Path(parent).relative_to(folder)
        found += [
            (inner / name).as_posix() for name in names if not is_temporary(name) and (Path(parent) / name).is_file()
        ]
    return sorted(name for name in found if name != MANIFEST)


def _folders(root: str | os.PathLike[str]) -> list[Path]:
    named = [path for path in _listdir(Path(root)) if _NAME.fullmatch(path.name) and path.is_dir()]
    return sorted(named, key=_key)


def _key(path: Path) -> tuple[int, int, int]:
    match = _NAME.fullmatch(path.name)
    step, attempt, save = (int(group or 0) for group in match.groups()) if match else (0, 0, 0)
    return step, attempt, save


def _listdir(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


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


def _number(value: Any) -> int:
    return int(value) if isinstance(value, int | float) and value == value else 0  # noqa: PLR0124 - NaN differs from itself
