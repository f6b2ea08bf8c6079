"""The description of one source tree: what is in it, by content, and where it came from.

Paths are text relative to the root, with `/` between their parts. Bytes that are not UTF-8 are carried as surrogate
escapes in memory, and in hex under a key of its own in JSON, so that every manifest is plain UTF-8 wherever it travels.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from gangline.domain.errors import SnapshotRefused

__all__ = [
    "FOLDER_MODE",
    "MANIFEST_VERSION",
    "CodeInfo",
    "Excluded",
    "FileEntry",
    "Kind",
    "Manifest",
    "is_digest",
    "printable",
]

MANIFEST_VERSION = 1
FOLDER_MODE = 0o755
"""Of a folder that is not listed."""
Kind = Literal["file", "link", "dir"]
_KINDS = frozenset(get_args(Kind))
_DIGEST = re.compile(r"[0-9a-f]{64}")
_MAX_HOPS = 40
_MAX_MODE = 0o777


def is_digest(text: object) -> bool:
    """Whether `text` is a SHA-256 digest in lower-case hex."""
    return isinstance(text, str) and _DIGEST.fullmatch(text) is not None


def printable(path: str) -> str:
    """The path as text that any terminal, database and JSON reader takes; bytes that are not UTF-8 are escaped."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """One thing in the tree. Folders appear only where they are empty, or their mode is not `FOLDER_MODE`."""

    path: str
    kind: Kind
    mode: int = 0o644
    """Permission bits; 0 for links."""
    size: int = 0
    digest: str | None = None
    """SHA-256 of a file's content."""
    target: str | None = None
    """What a link points to: relative and inside the tree, or absolute."""

    def to_dict(self) -> dict[str, Any]:
        """JSON form; keys that do not apply to the kind are left out."""
        raw: dict[str, Any] = {**_text("path", self.path), "kind": self.kind}
        if self.kind == "link":
            return {**raw, **_text("target", self.target or "")}
        raw["mode"] = self.mode
        return raw if self.kind == "dir" else {**raw, "size": self.size, "digest": self.digest}

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> FileEntry:
        """From its JSON form.

        Raises:
            SnapshotRefused: a key is missing or of the wrong type.
        """
        try:
            kind = raw["kind"]
            return cls(
                path=_text_of(raw, "path"),
                kind=kind,
                mode=0 if kind == "link" else int(raw["mode"]),
                size=int(raw["size"]) if kind == "file" else 0,
                digest=raw["digest"] if kind == "file" else None,
                target=_text_of(raw, "target") if kind == "link" else None,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise SnapshotRefused("A manifest holds an entry that cannot be read", why=repr(error)) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Excluded:
    """What one rule left out."""

    path: str
    """The file or folder (ending in `/`), or the folder that all of them lie in. Printable."""
    rule: str
    num_files: int | None
    """None: too many to count in passing."""
    size_bytes: int | None
    examples: tuple[str, ...] = ()
    """The first few, printable."""

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "path": self.path,
            "rule": self.rule,
            "num_files": self.num_files,
            "size_bytes": self.size_bytes,
            "examples": list(self.examples),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeInfo:
    """Where a tree came from. Not part of its digest."""

    root: str = ""
    commit: str | None = None
    branch: str | None = None
    """None without git and on a detached head."""
    remote: str | None = None
    dirty: bool = False
    diff: str | None = None
    """`git diff HEAD` of tracked files; None without git."""
    untracked: tuple[str, ...] = ()
    excluded: tuple[Excluded, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """JSON form: the fields of `wire.views.CodeView` of the same names."""
        return {
            "root": self.root,
            "commit": self.commit,
            "branch": self.branch,
            "remote": self.remote,
            "dirty": self.dirty,
            "diff": self.diff,
            "untracked": list(self.untracked),
            "excluded": [item.to_dict() for item in self.excluded],
        }

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> CodeInfo:
        """From its JSON form; absent keys take their defaults."""
        fields = {key: raw[key] for key in ("root", "commit", "branch", "remote", "dirty", "diff") if key in raw}
        excluded = tuple(Excluded(**{**item, "examples": tuple(item["examples"])}) for item in raw.get("excluded", ()))
        return cls(**fields, untracked=tuple(raw.get("untracked", ())), excluded=excluded)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A whole tree. It cannot be built with paths that leave the tree or contradict each other.

    Raises:
        SnapshotRefused: a path, link or digest is not legal.
    """

    files: tuple[FileEntry, ...]
    """Sorted by the bytes of their paths."""
    code: CodeInfo = CodeInfo()
    digest: str = field(init=False, compare=False)
    """SHA-256 of the canonical form of `files`: equal trees have equal digests, wherever they were packed."""

    def __post_init__(self) -> None:
        files = tuple(sorted(self.files, key=lambda entry: os.fsencode(entry.path)))
        _check_entries(files)
        object.__setattr__(self, "files", files)
        object.__setattr__(self, "digest", _digest(files))

    @property
    def num_files(self) -> int:
        return sum(entry.kind == "file" for entry in self.files)

    @property
    def size_bytes(self) -> int:
        return sum(entry.size for entry in self.files)

    def digests(self) -> frozenset[str]:
        """The contents that the tree needs."""
        return frozenset(entry.digest for entry in self.files if entry.digest is not None)

    def find(self, path: str) -> FileEntry | None:
        """The entry of that path, if there is one."""
        return next((entry for entry in self.files if entry.path == path), None)

    def to_dict(self) -> dict[str, Any]:
        """JSON form, plain UTF-8."""
        files = [entry.to_dict() for entry in self.files]
        return {"version": MANIFEST_VERSION, "digest": self.digest, "files": files, "code": self.code.to_dict()}

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Manifest:
        """From its JSON form.

        Raises:
            SnapshotRefused: it cannot be read, or is not what its digest says.
        """
        try:
            entries, code = tuple(map(FileEntry.from_dict, raw["files"])), CodeInfo.from_dict(raw.get("code", {}))
        except (KeyError, TypeError, AttributeError) as error:
            raise SnapshotRefused("The manifest cannot be read", why=repr(error)) from error
        manifest = cls(files=entries, code=code)
        if raw.get("digest", manifest.digest) != manifest.digest:
            raise SnapshotRefused("The manifest is not what its digest says", fix="Submit again.")
        return manifest


def _text(key: str, value: str) -> dict[str, str]:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return {f"{key}_hex": os.fsencode(value).hex()}
    return {key: value}


def _text_of(raw: Mapping[str, Any], key: str) -> str:
    if key in raw:
        value = raw[key]
        value.encode("utf-8")  # a lone surrogate would not survive the trip to the file system
        return str(value)
    return os.fsdecode(bytes.fromhex(raw[f"{key}_hex"]))


def _digest(files: Iterable[FileEntry]) -> str:
    canonical = json.dumps([entry.to_dict() for entry in files], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def _check_entries(files: tuple[FileEntry, ...]) -> None:
    kinds: dict[str, str] = {}
    for entry in files:
        _check_entry(entry)
        if entry.path in kinds:
            raise _refused(entry.path, "it is listed twice")
        kinds[entry.path] = entry.kind
    parents = {parent for entry in files if (parent := entry.path.rpartition("/")[0])}
    for path in sorted(parents):
        if any(kinds.get(part, "dir") != "dir" for part in _prefixes(path)):
            raise _refused(path, "something is listed below it, but it is not a plain folder")
    links = {entry.path: entry.target for entry in files if entry.target is not None}
    for path, target in links.items():
        if not target.startswith("/") and not _stays_inside(path, links):
            raise _refused(path, "it is a link that leads out of the tree")


def _check_entry(entry: FileEntry) -> None:
    path = entry.path
    if not path or "\0" in path or any(part in {"", ".", ".."} for part in path.split("/")):
        raise _refused(path, "it is not a plain relative path")
    if entry.kind not in _KINDS or not 0 <= entry.mode <= _MAX_MODE or entry.size < 0:
        raise _refused(path, "its kind, mode or size is not legal")
    if entry.kind == "file" and not is_digest(entry.digest):
        raise _refused(path, "its digest is not a SHA-256 in hex")
    if entry.kind == "link" and (not entry.target or "\0" in entry.target):
        raise _refused(path, "it is a link without a target")


def _prefixes(path: str) -> Iterable[str]:
    parts = path.split("/")
    return ("/".join(parts[: end + 1]) for end in range(len(parts)))


def _stays_inside(path: str, links: Mapping[str, str]) -> bool:
    """Follow a link part by part, as the file system would, through the other links of the tree."""
    at: list[str] = path.split("/")[:-1]
    todo = links[path].split("/")[::-1]
    hops = 0
    while todo:
        part = todo.pop()
        if part in {"", "."}:
            continue
        if part == "..":
            if not at:
                return False
            at.pop()
            continue
        target = links.get("/".join([*at, part]))
        if target is None:
            at.append(part)
            continue
        hops += 1
        if target.startswith("/") or hops > _MAX_HOPS:
            return True  # it leaves by an absolute link, which says so itself, or it is a loop, which leads nowhere
        todo.extend(target.split("/")[::-1])
    return True


def _refused(path: str, why: str) -> SnapshotRefused:
    return SnapshotRefused(f"The tree cannot hold {printable(path)!r}", why=f"{why[0].upper()}{why[1:]}")
