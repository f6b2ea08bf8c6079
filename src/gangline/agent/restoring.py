"""The source tree of a run, put where its agents run from the contents that the server has sent. Standard library only.

The leader does so before anything else; the other agents wait until the tree is there. It appears by rename.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gangline.agent.source import folders_of, text_of
from gangline.rundir.files import Unreadable, read_json
from gangline.rundir.layout import RunDir

__all__ = ["await_tree", "restore_tree"]

_BLOCK_BYTES = 1 << 20
_AT_ONCE = 8
_BATCH = 64
_BATCH_BYTES = 32 << 20
_FIRST_PAUSE_S = 0.01
_LONGEST_PAUSE_S = 0.5
_SUFFIX = ".restoring"


def restore_tree(run: RunDir, objects: Path | None) -> str:
    """Make `code/`, unless it is there; what is wrong, or "".

    Whatever goes wrong, there is a folder then: what it lacks is found, and told, before the first attempt.

    Args:
        objects: the store of contents; None: the run has no snapshot.
    """
    if run.code.exists():
        return ""
    for left in run.path.glob(f".code.*{_SUFFIX}"):  # this agent holds the lock of its node: nobody works there
        shutil.rmtree(left, ignore_errors=True)
    private = run.path / f".code.{os.urandom(4).hex()}{_SUFFIX}"
    try:
        raw = None if objects is None else read_json(run.code_manifest)
        if raw is None or objects is None:
            run.code.mkdir()
            return ""
        private.mkdir(mode=0o755)
        _fill(private, raw["files"], objects)
        private.rename(run.code)
        run.code_restored.touch()
    except (OSError, Unreadable, KeyError, ValueError) as error:
        shutil.rmtree(private, ignore_errors=True)
        run.code.mkdir(exist_ok=True)
        return f"the source tree cannot be restored: {error}"
    return ""


def await_tree(
    run: RunDir,
    *,
    patience_s: float,
    sleep: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.monotonic,
) -> bool:
    """Wait for the leader to make `code/`; whether it is there."""
    deadline, pause_s = now() + patience_s, _FIRST_PAUSE_S
    while run.code.name not in _names(run.path):
        if now() >= deadline:
            return False
        sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
    return True


def _names(folder: Path) -> list[str]:
    """A listing asks the file server, where a look for one name may be answered by what was so half a minute ago."""
    try:
        return os.listdir(folder)  # noqa: PTH208 - names are what is wanted
    except OSError:
        return []


def _fill(root: Path, entries: Sequence[Mapping[str, Any]], objects: Path) -> None:
    named = [(text_of(entry, "path"), entry) for entry in entries]
    folders = folders_of(named)
    for folder in sorted(folders):
        os.makedirs(os.path.join(root, folder), mode=0o700, exist_ok=True)  # noqa: PTH103, PTH118 - there may be many
    paths = [(os.path.join(root, path), entry) for path, entry in named]  # noqa: PTH118 - the same
    _copy_all([(path, entry) for path, entry in paths if entry["kind"] == "file"], objects)
    for path, entry in paths:
        if entry["kind"] == "link":
            os.symlink(text_of(entry, "target"), path)  # noqa: PTH211 - Path() would tidy it
    for folder, mode in sorted(folders.items(), reverse=True):  # what is inside first: the mode may forbid it then
        os.chmod(os.path.join(root, folder), mode)  # noqa: PTH101, PTH118 - the same


def _copy_all(files: Sequence[tuple[str, Mapping[str, Any]]], objects: Path) -> None:
    """Side by side: on a network file system each file waits for its server a few times."""
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - only where there is something to restore

    def copy_some(batch: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
        for path, entry in batch:
            _copy(path, entry, objects)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for copied in [pool.submit(copy_some, batch) for batch in _batches(files)]:
            copied.result()


def _batches(files: Iterable[tuple[str, Mapping[str, Any]]]) -> Iterable[list[tuple[str, Mapping[str, Any]]]]:
    batch: list[tuple[str, Mapping[str, Any]]] = []
    size = 0
    for path, entry in files:
        batch.append((path, entry))
        size += entry["size"]
        if len(batch) >= _BATCH or size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _copy(path: str, entry: Mapping[str, Any], objects: Path) -> None:
    """One file: its bytes are shared with the store where the file system can, and compared with their digest.

    Raises:
        OSError: the store lacks the content, or holds another one under its name.
    """
    import hashlib  # noqa: PLC0415 - only where there is something to restore

    digest, size = entry["digest"], entry["size"]
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with (objects / digest[:2] / digest[2:]).open("rb", buffering=0) as source:
        sink = os.open(path, flags, 0o600)
        try:
            shared = _share(source.fileno(), sink, size)
            sha = hashlib.sha256()
            os.lseek(source.fileno(), 0, os.SEEK_SET)
            while block := source.read(_BLOCK_BYTES):
                sha.update(block)
                if not shared:
                    _write_all(sink, block)
            os.fchmod(sink, entry["mode"])
        finally:
            os.close(sink)
    if sha.hexdigest() != digest:
        raise OSError(f"the content of {path} in the store is damaged")


def _share(source: int, sink: int, size: int) -> bool:
    """Have the kernel, or the file server, copy; False: it does not, and nothing was written."""
    if not hasattr(os, "copy_file_range"):
        return False
    copied = 0
    while copied < size:
        try:
            count = os.copy_file_range(source, sink, size - copied, copied, copied)
        except OSError:
            count = 0
        if count == 0:
            os.ftruncate(sink, 0)
            return False
        copied += count
    return True


def _write_all(sink: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(sink, view) :]
