"""What runs is what was submitted: the restored tree is looked at before each attempt, and put right where it changed.

Only what the snapshot holds is looked at; files that the run itself made stay. What a run made of a snapshot's file is
kept in `<run>/changed/<attempt>/`. Standard library only.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gangline.agent.changes import ChangeWatch
from gangline.rundir.files import Unreadable, read_json
from gangline.rundir.layout import RunDir

__all__ = ["Looked", "SourceTree", "folders_of", "text_of"]

_BLOCK_BYTES = 1 << 20
_MOST_NAMED = 5
_FOLDER_MODE = 0o755
"""As `gangline.snapshot.manifest.FOLDER_MODE`; a test holds them equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """What a look at the tree has found."""

    restored: tuple[str, ...] = ()
    """Paths in the tree."""
    kept: str = ""
    """Folder that holds what the run had made of them."""
    refused: str = ""
    """Why the tree cannot be put right; "" where it is as it was submitted."""

    def describe(self) -> str:
        """A sentence for people; "" where nothing was restored."""
        if not self.restored:
            return ""
        named = ", ".join(self.restored[:_MOST_NAMED])
        more = len(self.restored) - _MOST_NAMED
        what = f"{named} and {more} more" if more > 0 else named
        kept = f" What had become of them is in {self.kept}." if self.kept else ""
        return f"Files of the snapshot were changed or removed, and are restored: {what}.{kept}"


@dataclass(slots=True)
class _Repair:
    """One look under way."""

    code: Path
    objects: Path
    aside: Path
    restored: list[str] = field(default_factory=list)
    is_kept: bool = False


class SourceTree:
    """The tree of one run, watched over all attempts of one launch.

    Args:
        objects: the store of file contents.
        fresh: no attempt has run in the tree yet.
    """

    def __init__(self, run: RunDir, objects: Path, *, fresh: bool) -> None:
        self._run = run
        self._objects = objects
        self._watch = ChangeWatch(run.code)
        self._paths: frozenset[str] | set[str] = self._watch.found
        """What the snapshot holds, and the folders above; a fresh tree holds nothing else."""
        self._is_trusted = fresh

    def look(self, attempt: int) -> Looked:
        """Compare, and restore what differs; costs next to nothing where nothing was touched."""
        try:
            if not self._is_touched():
                return Looked()
            looked = self._look_at_all(attempt)
        except (OSError, Unreadable, KeyError, ValueError) as error:
            return Looked(refused=f"the source tree cannot be compared with the snapshot: {error}")
        self._is_trusted = not looked.refused
        return looked

    def close(self) -> None:
        """Watch no more."""
        self._watch.close()

    def _is_touched(self) -> bool:
        touched = self._watch.take()
        return not self._is_trusted or touched is None or not touched.isdisjoint(self._paths)

    def _entries(self) -> list[tuple[str, Mapping[str, Any]]]:
        """What the tree holds; folders at the end, as what is put into one may need another mode."""
        raw = read_json(self._run.code_manifest) or {"files": []}
        entries = [(text_of(entry, "path"), entry) for entry in raw["files"]]
        folders = sorted(folders_of(entries).items(), reverse=True)
        return [
            *((path, entry) for path, entry in entries if entry["kind"] != "dir"),
            *((path, {"kind": "dir", "mode": mode}) for path, mode in folders),
        ]

    def _look_at_all(self, attempt: int) -> Looked:
        """Everything that has changed by its times since the tree was last right is compared by content."""
        marker = self._run.code_restored
        since_ns = marker.stat().st_ctime_ns if marker.exists() else 0
        aside = self._run.changed(attempt)
        repair = _Repair(self._run.code, self._objects, aside)
        folders: dict[str, bool] = {}
        root, entries = str(self._run.code), self._entries()
        for path, entry in entries:
            parent = path.rpartition("/")[0]
            if parent not in folders:
                folders[parent] = all(_is_folder(self._run.code / one) for one in (*_parents(path), ""))
            if folders[parent] and _is_as_before(f"{root}/{path}", entry, since_ns):
                continue
            folders.clear()  # what is put right may be a folder
            try:
                _put_right(repair, path, entry)
            except OSError as error:
                why = f"{path} differs from the snapshot and cannot be restored: {error.strerror or error}"
                return Looked(restored=tuple(repair.restored), refused=why)
        self._watch.close()  # what was done here is no news, and there may be new folders
        self._watch = ChangeWatch(self._run.code)
        self._paths = frozenset(one for path, _ in entries for one in (path, *_parents(path)))
        marker.touch()
        os.utime(marker)
        return Looked(restored=tuple(repair.restored), kept=str(aside) if repair.is_kept else "")


def text_of(entry: Mapping[str, Any], key: str) -> str:
    """A path or target of a manifest, which may be no UTF-8."""
    return str(entry[key]) if key in entry else os.fsdecode(bytes.fromhex(entry[f"{key}_hex"]))


def folders_of(entries: Iterable[tuple[str, Mapping[str, Any]]]) -> dict[str, int]:
    """Every folder of a tree, with its mode; a manifest lists those that are empty or have one of their own."""
    folders: dict[str, int] = {}
    for path, entry in entries:
        if entry["kind"] == "dir":
            folders[path] = entry["mode"]
        for parent in _parents(path):
            folders.setdefault(parent, _FOLDER_MODE)
    return folders


def _parents(path: str) -> Iterator[str]:
    parts = path.split("/")
    return ("/".join(parts[:end]) for end in range(1, len(parts)))


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _is_as_before(path: str, entry: Mapping[str, Any], since_ns: int) -> bool:
    try:
        found = os.lstat(path)
    except OSError:
        return False
    if entry["kind"] == "link":
        return stat.S_ISLNK(found.st_mode) and found.st_ctime_ns < since_ns
    if entry["kind"] == "dir":
        return stat.S_ISDIR(found.st_mode) and stat.S_IMODE(found.st_mode) & 0o777 == entry["mode"]
    return stat.S_ISREG(found.st_mode) and found.st_size == entry["size"] and found.st_ctime_ns < since_ns


def _put_right(repair: _Repair, path: str, entry: Mapping[str, Any]) -> None:
    target = repair.code / path
    _make_parents(repair, path)
    if entry["kind"] == "link":
        wanted = text_of(entry, "target")
        if not (target.is_symlink() and os.readlink(target) == wanted):  # noqa: PTH115 - Path() would tidy it
            _set_aside(repair, path)
            os.symlink(wanted, target)  # noqa: PTH211 - the same
            repair.restored.append(path)
        return
    if entry["kind"] == "dir":
        if not _is_folder(target):
            _set_aside(repair, path)
            target.mkdir()
        target.chmod(entry["mode"])
        repair.restored.append(path)
        return
    if not _holds(target, entry):
        _restore(repair, path, entry)
        repair.restored.append(path)
    elif stat.S_IMODE(target.stat().st_mode) != entry["mode"]:
        target.chmod(entry["mode"])
        repair.restored.append(path)


def _make_parents(repair: _Repair, path: str) -> None:
    """Folders above a path that are folders, and can be written; a link in their place would lead out of the tree."""
    for parent in _parents(path):
        folder = repair.code / parent
        if _is_folder(folder):
            if not os.access(folder, os.W_OK | os.X_OK):
                folder.chmod(stat.S_IRWXU)  # its own mode comes back last
            continue
        _set_aside(repair, parent)
        folder.mkdir()


def _set_aside(repair: _Repair, path: str) -> None:
    """Keep what the run has made of a path, where there is anything."""
    found = repair.code / path
    if not os.path.lexists(found):
        return
    kept = repair.aside / path
    kept.parent.mkdir(parents=True, exist_ok=True)
    found.rename(kept)
    repair.is_kept = True


def _holds(path: Path, entry: Mapping[str, Any]) -> bool:
    import hashlib  # noqa: PLC0415 - costs memory, and is hardly ever needed

    try:
        found = os.lstat(path)
    except OSError:
        return False
    if not stat.S_ISREG(found.st_mode) or found.st_size != entry["size"]:
        return False
    sha = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            sha.update(block)
    return bool(sha.hexdigest() == entry["digest"])


def _restore(repair: _Repair, path: str, entry: Mapping[str, Any]) -> None:
    """A file from the store, under a private name first.

    Raises:
        OSError: the store has no such content, or another one under its name; the file is as it was.
    """
    digest, target = entry["digest"], repair.code / path
    temporary = target.with_name(f".{os.urandom(6).hex()}.tmp")
    try:
        with (repair.objects / digest[:2] / digest[2:]).open("rb") as source, temporary.open("xb") as sink:
            while block := source.read(_BLOCK_BYTES):
                sink.write(block)
        temporary.chmod(entry["mode"])
        _check(temporary, entry)
        _set_aside(repair, path)
        temporary.rename(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _check(path: Path, entry: Mapping[str, Any]) -> None:
    if not _holds(path, entry):
        raise OSError("its content in the store is damaged")
