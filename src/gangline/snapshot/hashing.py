"""SHA-256 of the files of a tree, remembered from one submit to the next.

A remembered digest counts while size, times, inode and device are what they were. A file that was changed within two
seconds before it was hashed is not remembered: it could be changed once more without any of these telling.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from gangline.domain.errors import SnapshotRefused
from gangline.rundir.files import write_text
from gangline.snapshot.manifest import printable
from gangline.snapshot.walk import Found

__all__ = ["HashCache", "cache_path_for", "hash_file", "hash_files"]

RACY_NS = 2 * 10**9
"""Coarsest time stamps of file systems in use."""
_VERSION = 1
_BUFFER_BYTES = 1 << 20
_TRIES = 3
_PARALLEL_BYTES = 8 << 20
"""Below this, threads cost more than they bring."""

_Mark = tuple[int, int, int, int, int]


def cache_path_for(home: Path, root: Path) -> Path:
    """Where the digests of one project are remembered: a file of its own in the state folder."""
    name = hashlib.sha256(os.fsencode(os.path.realpath(root))).hexdigest()[:32]
    return home / "hashes" / f"{name}.json"


@dataclass(slots=True, kw_only=True)
class HashCache:
    """Digests by path, with what the file system said of each file then."""

    root: str
    marks: dict[str, tuple[_Mark, str]] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path | None, *, root: str) -> HashCache:
        """Read a cache; one that is missing, damaged or of another tree is empty."""
        if path is None:
            return cls(root=root)
        try:
            raw = json.loads(path.read_bytes())
            if raw["version"] != _VERSION or raw["root"] != root:
                return cls(root=root)
            return cls(root=root, marks={key: (tuple(item[:5]), item[5]) for key, item in raw["files"].items()})
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return cls(root=root)

    def find(self, path: str, status: os.stat_result) -> str | None:
        """The digest, if the file is as it was."""
        held = self.marks.get(path)
        return held[1] if held is not None and held[0] == _mark(status) else None

    def save(self, path: Path) -> None:
        """Write by rename. A cache that cannot be written costs time at the next submit, nothing else."""
        files = {key: [*mark, digest] for key, (mark, digest) in self.marks.items()}
        with suppress(OSError):
            write_text(path, json.dumps({"version": _VERSION, "root": self.root, "files": files}), mode=0o600)


def hash_files(files: Sequence[Found], *, cache_path: Path | None, root: str) -> dict[str, tuple[str, os.stat_result]]:
    """Digest and status of each file, by its path in the tree. Files that are gone by now are not in the result.

    Raises:
        SnapshotRefused: a file cannot be read, or does not hold still.
    """
    cache = HashCache.load(cache_path, root=root)
    done: dict[str, tuple[str, os.stat_result]] = {}
    todo: list[Found] = []
    for item in files:
        digest = cache.find(item.path, item.stat)
        if digest is None:
            todo.append(item)
        else:
            done[item.path] = (digest, item.stat)
    began_ns = time.time_ns()
    done.update(_hash_all(todo))
    if cache_path is not None and (todo or len(cache.marks) > len(done)):
        fresh = HashCache(root=root, marks=_worth_keeping(cache, done, began_ns))
        if fresh.marks != cache.marks:
            fresh.save(cache_path)
    return done


def hash_file(path: str, where: str) -> tuple[str, os.stat_result] | None:
    """Digest of a file that held still while it was read, and its status then; None if it is gone.

    Raises:
        SnapshotRefused: it cannot be read, or changed during each of three readings.
    """
    for _ in range(_TRIES):
        try:
            digest, before, after = _read(where)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise SnapshotRefused(
                f"{printable(path)} cannot be read",
                why=error.strerror or "",
                fix="Make it readable, or list it in .ganglineignore.",
            ) from error
        if _mark(before) == _mark(after):
            return digest, after
    raise SnapshotRefused(
        f"{printable(path)} changes while it is packed",
        why="Something writes to it",
        fix="Submit again when it is quiet, or list it in .ganglineignore.",
    )


def _hash_all(todo: Sequence[Found]) -> Mapping[str, tuple[str, os.stat_result]]:
    workers = min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, 8)
    if workers == 1 or sum(item.stat.st_size for item in todo) < _PARALLEL_BYTES:
        return _hash_some(todo)
    with ThreadPoolExecutor(workers) as pool:
        shares = pool.map(_hash_some, (todo[first :: workers * 4] for first in range(workers * 4)))
        return {path: result for share in shares for path, result in share.items()}


def _hash_some(items: Sequence[Found]) -> dict[str, tuple[str, os.stat_result]]:
    results = ((item.path, hash_file(item.path, item.where)) for item in items)
    return {path: result for path, result in results if result is not None}


def _read(where: str) -> tuple[str, os.stat_result, os.stat_result]:
    descriptor = os.open(where, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        before = os.fstat(descriptor)
        sha = hashlib.sha256()
        while chunk := os.read(descriptor, _BUFFER_BYTES):
            sha.update(chunk)
        return sha.hexdigest(), before, os.fstat(descriptor)
    finally:
        os.close(descriptor)


def _worth_keeping(
    cache: HashCache, done: Mapping[str, tuple[str, os.stat_result]], began_ns: int
) -> dict[str, tuple[_Mark, str]]:
    kept = {}
    for path, (digest, status) in done.items():
        mark = _mark(status)
        if cache.marks.get(path) == (mark, digest) or status.st_ctime_ns < began_ns - RACY_NS:
            kept[path] = (mark, digest)
    return kept


def _mark(status: os.stat_result) -> _Mark:
    return (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev)
