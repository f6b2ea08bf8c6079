"""The store of file contents and manifests on the server's disk. Everything in it is named by its SHA-256.

A content appears by rename after it was verified, so whoever is killed half-way leaves at most a temporary file.
Contents are not synced one by one: after a loss of power a torn one can be there, which `restore` notices and removes,
so that the next submit uploads it again.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from gangline.domain.errors import NotFound, SnapshotRefused
from gangline.snapshot.manifest import Manifest, is_digest

__all__ = ["CHUNK_BYTES", "EMPTY_DIGEST", "ObjectStore", "read_chunks"]

CHUNK_BYTES = 1 << 20
_RENEWED_S = 600.0
EMPTY_DIGEST = hashlib.sha256(b"").hexdigest()


def read_chunks(source: BinaryIO) -> Iterator[bytes]:
    """The rest of a file in pieces of `CHUNK_BYTES`."""
    while chunk := source.read(CHUNK_BYTES):
        yield chunk


class ObjectStore:
    """Contents under `<root>/objects/ab/cd…` and manifests under `<root>/snapshots/<digest>.json`.

    Args:
        root: the server's state folder.
    """

    def __init__(self, root: Path) -> None:
        self._objects = root / "objects"
        self._snapshots = root / "snapshots"

    def has(self, digest: str) -> bool:
        """Whether that content is here; an empty file under the name of another content does not count."""
        try:
            size = self._path(digest).stat().st_size
        except FileNotFoundError:
            return False
        return size > 0 or digest == EMPTY_DIGEST

    def missing(self, digests: Iterable[str]) -> list[str]:
        """Those that are not here, each once, in the order given; those that are count as used from now on."""
        return [digest for digest in dict.fromkeys(digests) if not self._renew(digest)]

    def put_file(self, digest: str, path: Path) -> bool:
        """Store the content of a file; see `put_bytes`."""
        if self.has(digest):
            return False
        with path.open("rb") as source:
            return self.put_bytes(digest, read_chunks(source))

    def put_bytes(self, digest: str, chunks: Iterable[bytes]) -> bool:
        """Store a content.

        Returns:
            False if it was here already (`chunks` is then not read).
        Raises:
            SnapshotRefused: the bytes are not those that the digest names; nothing was stored.
        """
        if self.has(digest):
            return False
        path = self._path(digest)
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(path, chunks, digest)
        return True

    def open(self, digest: str) -> BinaryIO:
        """The content, to read; the caller closes it.

        Raises:
            NotFound: it is not here.
        """
        try:
            return self._path(digest).open("rb")
        except FileNotFoundError:
            raise NotFound(f"Content {digest[:12]} is not in the store", fix="Submit again.") from None

    def discard(self, digest: str) -> None:
        """Remove a content that turned out to be damaged, so that `missing` names it again."""
        self._path(digest).unlink(missing_ok=True)

    def put_manifest(self, manifest: Manifest) -> str:
        """Store a manifest and return its digest. Of two with equal trees the last one's `code` counts."""
        self._snapshots.mkdir(parents=True, exist_ok=True)
        _write(self._snapshot(manifest.digest), [json.dumps(manifest.to_dict()).encode()])
        return manifest.digest

    def get_manifest(self, digest: str) -> Manifest:
        """The manifest of a tree.

        Raises:
            NotFound: it is not here.
        """
        try:
            raw = self._snapshot(digest).read_bytes()
        except FileNotFoundError:
            raise NotFound(f"There is no snapshot {digest[:12]}", fix="Submit again.") from None
        return Manifest.from_dict(json.loads(raw))

    def object_files(self) -> Iterator[tuple[Path, str]]:
        """Every content with its digest; leftovers of interrupted uploads bear none ("")."""
        for folder in sorted(self._objects.iterdir()):
            for path in folder.iterdir():
                digest = folder.name + path.name
                yield path, digest if is_digest(digest) else ""

    def snapshot_files(self) -> list[Path]:
        """Every manifest; the stem of its name is its digest."""
        return sorted(path for path in self._snapshots.glob("*.json") if is_digest(path.stem))

    def _renew(self, digest: str) -> bool:
        """Whether a content is here; its time is set, at most once in a while, so that `sweep` spares it."""
        try:
            found = self._path(digest).stat()
            if time.time() - found.st_mtime > _RENEWED_S:
                os.utime(self._path(digest))
        except FileNotFoundError:
            return False
        return found.st_size > 0 or digest == EMPTY_DIGEST

    def _path(self, digest: str) -> Path:
        _check(digest)
        return self._objects / digest[:2] / digest[2:]

    def _snapshot(self, digest: str) -> Path:
        _check(digest)
        return self._snapshots / f"{digest}.json"


def _check(digest: str) -> None:
    if not is_digest(digest):
        raise SnapshotRefused(f"{digest[:80]!r} is not a digest", why="A digest is 64 characters of lower-case hex")


def _write(path: Path, chunks: Iterable[bytes], digest: str | None = None) -> None:
    """Write a file under a private name, verify it if a digest is given, and rename it."""
    private = path.with_name(f".{path.name[:16]}.{secrets.token_hex(6)}")
    sha = hashlib.sha256()
    try:
        with os.fdopen(os.open(private, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as sink:
            for chunk in chunks:
                sha.update(chunk)
                sink.write(chunk)
        if digest is not None and sha.hexdigest() != digest:
            raise SnapshotRefused(
                f"The bytes sent as {digest[:12]} are others",
                why="The file was changed after it had been packed, or the transfer was damaged",
                fix="Submit again.",
            )
        private.replace(path)
    finally:
        private.unlink(missing_ok=True)
