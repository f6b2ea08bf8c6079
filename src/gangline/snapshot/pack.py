"""Pack a working tree: a manifest of what is in it, and where each content can be read.

Nothing is copied here. The client asks the server which contents it lacks and sends those alone.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from gangline.domain.errors import SnapshotRefused
from gangline.rundir.home import Home
from gangline.snapshot.git import GitStatus, fetch_diff, fetch_remote
from gangline.snapshot.hashing import hash_files
from gangline.snapshot.ignore import Include
from gangline.snapshot.manifest import CodeInfo, FileEntry, Manifest, printable
from gangline.snapshot.root import find_root
from gangline.snapshot.walk import Found, Selection, select

__all__ = ["Limits", "Packed", "find_root", "pack"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a snapshot may hold. Data belongs elsewhere; code does not reach these."""

    max_file_bytes: int = 1_000_000_000
    max_total_bytes: int = 5_000_000_000
    max_files: int = 200_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """A working tree, ready to be sent."""

    manifest: Manifest
    sources: Mapping[str, Path]
    """A file that holds each content, by digest."""
    warnings: tuple[str, ...] = ()
    """What a person should know: links that were changed, a git that does not answer."""


def pack(
    root: Path,
    *,
    include: Sequence[str] = (),
    cache_path: Path | None = None,
    limits: Limits = Limits(),
    home: Path | None = None,
) -> Packed:
    """Describe the files of a working tree as they are now, whatever git has committed.

    Args:
        root: the project; see `find_root`.
        include: patterns as in `.gitignore`, seen from the root, that win over every rule.
        cache_path: where digests are remembered between calls; None: nowhere.
        limits: what the snapshot may hold.
        home: the state folder, which is never packed; None: the one that the environment names.
    Raises:
        SnapshotRefused: names the file, and what to do about it.
    """
    root = Path(os.path.realpath(root))
    state = Home.from_env().path if home is None else home
    chosen = select(root, include=Include(include), home=state, max_files=limits.max_files)
    files = [item for item in chosen.found if item.kind == "file"]
    _check_sizes(files, limits)
    with ThreadPoolExecutor(2) as pool:
        facts = _ask_git(pool, root, chosen.git)
        hashed = hash_files(files, cache_path=cache_path, root=os.fspath(root))
        code = _code(root, chosen, *(fact.result() if fact else None for fact in facts))
    entries = [entry for item in chosen.found if (entry := _entry(item, hashed)) is not None]
    sources = {hashed[item.path][0]: item.where for item in files if item.path in hashed}
    manifest = Manifest(files=tuple(entries), code=code)
    return Packed(manifest=manifest, sources=_Sources(sources), warnings=chosen.warnings)


class _Sources(Mapping[str, Path]):
    """Paths made when they are asked for: of tens of thousands, a second submit needs a few."""

    def __init__(self, places: Mapping[str, str]) -> None:
        self._places = places

    def __getitem__(self, digest: str) -> Path:
        return Path(self._places[digest])

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def _ask_git(
    pool: ThreadPoolExecutor, root: Path, status: GitStatus | None
) -> tuple[Future[str | None] | None, Future[str] | None]:
    """The remote and the diff, fetched while files are hashed."""
    if status is None:
        return None, None
    differs = status.dirty and status.commit is not None
    return pool.submit(fetch_remote, root), pool.submit(fetch_diff, root) if differs else None


def _code(root: Path, chosen: Selection, remote: str | None, diff: str | None) -> CodeInfo:
    git = chosen.git
    return CodeInfo(
        root=printable(os.fspath(root)),
        commit=git.commit if git else None,
        branch=printable(git.branch) if git and git.branch else None,
        remote=remote,
        dirty=git.dirty if git else False,
        diff=(diff or "") if git else None,
        untracked=tuple(map(printable, chosen.untracked)),
        excluded=chosen.excluded,
    )


def _entry(item: Found, hashed: Mapping[str, tuple[str, os.stat_result]]) -> FileEntry | None:
    if item.kind == "link":
        return FileEntry(path=item.path, kind="link", mode=0, target=item.target)
    if item.kind == "dir":
        return FileEntry(path=item.path, kind="dir", mode=_permissions(item.stat))
    if item.path not in hashed:
        return None  # removed since the walk
    digest, status = hashed[item.path]
    return FileEntry(path=item.path, kind="file", mode=_permissions(status), size=status.st_size, digest=digest)


def _permissions(status: os.stat_result) -> int:
    return stat.S_IMODE(status.st_mode) & 0o777


def _check_sizes(files: Sequence[Found], limits: Limits) -> None:
    largest = sorted(files, key=lambda item: -item.stat.st_size)[:5]
    total = sum(item.stat.st_size for item in files)
    if largest and largest[0].stat.st_size > limits.max_file_bytes:
        size = _gb(largest[0].stat.st_size)
        what = f"{printable(largest[0].path)} has {size}, a file may have {_gb(limits.max_file_bytes)}"
    elif total > limits.max_total_bytes:
        what = f"The project has {_gb(total)}, {_gb(limits.max_total_bytes)} are allowed"
    else:
        return
    listed = ", ".join(f"{printable(item.path)} ({_gb(item.stat.st_size)})" for item in largest)
    raise SnapshotRefused(
        what,
        why=f"Largest: {listed}",
        fix="List data, models and results in .ganglineignore, or keep them outside and give training their path.",
    )


def _gb(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:.2f} GB" if size_bytes >= 10**7 else f"{size_bytes / 1e6:.2f} MB"
