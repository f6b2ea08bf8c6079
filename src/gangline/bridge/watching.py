"""What has changed in run directories, found with as few looks as can be.

What appears by rename shows in the time of its folder; what only grows does not, so every such file of the newest
attempt is looked at each time, and those of older attempts now and then. Standard library only.
"""

from __future__ import annotations

import os
import secrets
import stat
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from gangline.rundir.mirror import grows, is_mirrored

__all__ = ["RunsWatch", "is_on_nfs"]

_ROOTS = ("attempts", "metrics", "launches")
_OLD_EVERY = 16
"""A look in so many is at everything."""
_SETTLED_S = 2.5
"""For so long after a folder's time was first seen it is read again: the time may not tell two changes apart."""
_MOST_IDLE_RUNS = 1000

Mark = tuple[int, int, int]
"""Size, mtime in ns, inode."""


@dataclass(slots=True)
class _Folder:
    """One folder as it was when it was read; paths are relative to the run directory."""

    mtime_ns: int
    seen_at: float
    """When this time was first seen, by the clock of `time.monotonic`."""
    is_settled: bool
    folders: list[str] = field(default_factory=list)
    growing: list[str] = field(default_factory=list)
    files: set[str] = field(default_factory=set)


@dataclass(slots=True)
class _Run:
    """What is known of one run directory."""

    root: str
    looks: int = 0
    folders: dict[str, _Folder] = field(default_factory=dict)
    marks: dict[str, Mark] = field(default_factory=dict)
    changed_at: dict[str, int] = field(default_factory=dict)
    """Number of the answer that was the first to tell it, by path."""


class RunsWatch:
    """Answers what is new since an answer before.

    Args:
        runs: folder of the run directories.
        on_nfs: sizes are asked of opened files: what NFS says of others may be a minute old.
    """

    def __init__(self, runs: str, *, on_nfs: bool = False) -> None:
        self._root = runs
        self._on_nfs = on_nfs
        self._nonce = secrets.token_hex(4)
        self._number = 0
        self._runs: dict[str, _Run] = {}
        self._lock = threading.Lock()

    def changes(self, runs: Sequence[str], since: object) -> dict[str, Any]:
        """See `Changes` of `backends/slurm/link.py`."""
        with self._lock:  # answers are told apart by their number alone, so one is made after the other
            self._number += 1
            answer: dict[str, Any] = {"since": [self._nonce, self._number], "files": {}, "alive": {}, "gone": []}
            self._drop_idle(runs)
            told = self._told(since)
            for name in runs:
                self._add(answer, name, told)
            return answer

    def _add(self, answer: dict[str, Any], name: str, told: int) -> None:
        if "/" in name or name in {"", ".", ".."}:
            answer["gone"].append(name)
            return
        run = self._runs.setdefault(name, _Run(f"{self._root}/{name}"))
        if not self._look(run, is_whole=told < 0):
            self._runs.pop(name, None)
            answer["gone"].append(name)
            return
        files = [[path, *run.marks[path]] for path, at in run.changed_at.items() if at > told]
        if files:
            answer["files"][name] = files
        alive = self._alive(run)
        if alive is not None:
            answer["alive"][name] = alive

    def _told(self, since: object) -> int:
        """Number of the answer that the asker has seen; -1: none of this bridge."""
        match since:
            case [self._nonce, int(number)]:
                return int(number)
        return -1

    def _drop_idle(self, asked: Sequence[str]) -> None:
        """Nobody says that a run is over: those that are not asked about are forgotten when there are many."""
        if len(self._runs) > len(asked) + _MOST_IDLE_RUNS:
            self._runs = {name: self._runs[name] for name in asked if name in self._runs}

    def _look(self, run: _Run, *, is_whole: bool) -> bool:
        """Bring what is known up to date; False: there is no such run directory."""
        if not _is_folder(run.root):
            return False
        is_whole = is_whole or run.looks % _OLD_EVERY == 0
        run.looks += 1
        newest = self._newest(run)
        for folder, path in self._walk(run):
            if is_whole or _is_current(path, newest):
                for file in folder.growing:
                    self._note(run, file)
        return True

    def _walk(self, run: _Run) -> Iterator[tuple[_Folder, str]]:
        pending = [*_ROOTS]
        while pending:
            path = pending.pop()
            folder = self._read_folder(run, path)
            if folder is not None:
                pending += folder.folders
                yield folder, path

    def _read_folder(self, run: _Run, path: str) -> _Folder | None:
        full = f"{run.root}/{path}"
        known = run.folders.get(path)
        try:
            status = os.lstat(full)
            if not stat.S_ISDIR(status.st_mode):
                return None
            is_same = known is not None and known.mtime_ns == status.st_mtime_ns
            if known is not None and is_same and known.is_settled:
                return known
            now = time.monotonic()
            seen_at = known.seen_at if known is not None and is_same else now
            folder = _Folder(status.st_mtime_ns, seen_at, now - seen_at >= _SETTLED_S)
            with os.scandir(full) as entries:
                for entry in entries:
                    self._sort_in(run, folder, f"{path}/{entry.name}", entry)
        except (FileNotFoundError, NotADirectoryError):
            folder = None
        for vanished in known.files - (folder.files if folder else set()) if known else ():
            run.marks.pop(vanished, None)
            run.changed_at.pop(vanished, None)
        if folder is None:
            run.folders.pop(path, None)
        else:
            run.folders[path] = folder
        return folder

    def _sort_in(self, run: _Run, folder: _Folder, path: str, entry: os.DirEntry[str]) -> None:
        if entry.is_dir(follow_symlinks=False):
            folder.folders.append(path)
        elif entry.is_file(follow_symlinks=False) and is_mirrored(path):
            folder.files.add(path)
            if grows(path):
                folder.growing.append(path)
            if not grows(path) or path not in run.marks:
                self._note(run, path)

    def _note(self, run: _Run, path: str) -> None:
        mark = self._mark(f"{run.root}/{path}")
        if mark is not None and run.marks.get(path) != mark:
            run.marks[path] = mark
            run.changed_at[path] = self._number

    def _mark(self, path: str) -> Mark | None:
        try:
            status = _stat_opened(path) if self._on_nfs else os.lstat(path)
        except OSError:
            return None
        return (status.st_size, status.st_mtime_ns, status.st_ino) if stat.S_ISREG(status.st_mode) else None

    def _alive(self, run: _Run) -> tuple[int, int] | None:
        """Number of the newest launch, and when its leader last showed that it lives."""
        for launch in _newest_two(run):
            mark = self._mark(f"{run.root}/{launch}/leader.alive")
            if mark is not None:
                return int(launch.rpartition("/")[2]), mark[1]
        return None

    def _newest(self, run: _Run) -> set[str]:
        return {_highest(run.folders.get("attempts")), *_newest_two(run)} - {""}


def is_on_nfs(path: str, mounts: Iterable[str] | None = None) -> bool:
    """Whether a folder lies on NFS, by `/proc/self/mountinfo`."""
    if mounts is None:
        try:
            with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
                mounts = file.readlines()
        except OSError:
            return False
    real = os.path.realpath(path)
    best, kind = "", ""
    for line in mounts:
        before, _, after = line.partition(" - ")
        fields = before.split()
        if len(fields) < 5 or not after:  # noqa: PLR2004 - the fifth is where it is mounted
            continue
        point = fields[4].replace("\\040", " ")
        if len(point) >= len(best) and (real + "/").startswith(point.rstrip("/") + "/"):
            best, kind = point, after.split()[0]
    return kind.startswith("nfs")


def _is_current(path: str, newest: set[str]) -> bool:
    """Whether something may grow in this folder: it is of the newest attempt or launch, or of all of the run."""
    parts = path.split("/")
    return len(parts) == 1 or "/".join(parts[:2]) in newest or parts[0] == "metrics"


def _newest_two(run: _Run) -> list[str]:
    """Launches, the newest first: it may be one that waits for the end of the other."""
    return _numbered(run.folders.get("launches"))[-2:][::-1]


def _highest(folder: _Folder | None) -> str:
    return next(reversed(_numbered(folder)), "")


def _numbered(folder: _Folder | None) -> list[str]:
    """Folders that are called by a number, in their order."""
    found = [] if folder is None else [path for path in folder.folders if path.rpartition("/")[2].isdigit()]
    return sorted(found, key=lambda path: int(path.rpartition("/")[2]))


def _is_folder(path: str) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False


def _stat_opened(path: str) -> os.stat_result:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return os.fstat(descriptor)
    finally:
        os.close(descriptor)
