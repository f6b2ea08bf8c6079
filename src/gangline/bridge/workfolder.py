"""The work folder of a pool: files written by rename, journals that grow, contents by digest; all below one root.

Standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import secrets
import time
from collections.abc import Sequence
from typing import Any

from gangline.domain.errors import InvalidRequest
from gangline.rundir.confined import UnsafePath, open_parent, open_regular
from gangline.rundir.mirror import apply

__all__ = ["EMPTY_DIGEST", "WorkFolder", "is_digest", "upload_path"]

EMPTY_DIGEST = hashlib.sha256(b"").hexdigest()
_DIGEST = re.compile(r"[0-9a-f]{64}")
_BLOCK_BYTES = 1 << 20
_DATED_S = 86_400.0
"""How far the date of a content that is used may lie back; no more is written for it."""
_PROBE_BYTES = b"gangline"


def is_digest(text: object) -> bool:
    """Whether it is a SHA-256 in hex."""
    return isinstance(text, str) and _DIGEST.fullmatch(text) is not None


def upload_path(digest: str) -> str:
    """Where a large content is put together before it counts."""
    return f"uploads/{digest}"


class WorkFolder:
    """Files below the work folder.

    Args:
        root: its absolute path; it is there.
    """

    def __init__(self, root: str) -> None:
        self.root = root

    def inside(self, path: str) -> str:
        """A path relative to the work folder; absolute ones have to lie in it.

        Raises:
            UnsafePath: it does not.
        """
        if not path.startswith("/"):
            return path
        below = path.removeprefix(self.root.rstrip("/") + "/")
        if below == path:
            raise UnsafePath(f"`{path}` is not below the work folder `{self.root}`")
        return below

    def write(self, path: str, data: bytes, mode: int) -> None:
        """Replace a file by rename; folders above it are made."""
        with open_parent(self.root, self.inside(path)) as (folder, name):
            _write_renamed(folder, name, data, mode)

    def append(self, path: str, offset: int, data: bytes) -> int:
        """Add to a file that only grows; see `rundir.mirror.apply`."""
        return apply(self.root, self.inside(path), offset, data)

    def read(self, run: str, path: str, offset: int, num_bytes: int) -> bytes | None:
        """Bytes of a file of a run; None where they cannot be had."""
        if "/" in run:
            raise UnsafePath(f"`{run}` is no run")
        try:
            with open_parent(self.root, f"runs/{run}/{path}", create=False) as (folder, name):
                descriptor = open_regular(name, os.O_RDONLY, folder, path)
                try:
                    return _read_at(descriptor, offset, num_bytes)
                finally:
                    os.close(descriptor)
        except (OSError, UnsafePath):
            return None

    def missing(self, digests: Sequence[str]) -> list[str]:
        """Those that are not in the store; an empty file under the name of another content does not count.

        What is asked for counts as used: it is dated anew, so that nobody tidies it away under a submit.
        """
        return [digest for digest in dict.fromkeys(digests) if not self._has(digest)]

    def store(self, digest: str, data: bytes) -> None:
        """Keep a content.

        Raises:
            InvalidRequest: the bytes are others.
        """
        _check_digest(digest, hashlib.sha256(data).hexdigest())
        with open_parent(self.root, _object_path(digest)) as (folder, name):
            _write_renamed(folder, name, data, 0o644)

    def adopt(self, digest: str) -> None:
        """Keep a content that was put together under `upload_path`.

        Raises:
            InvalidRequest: the bytes are others; they are removed, so that they can be sent again.
        """
        _check_digest(digest, digest)
        with open_parent(self.root, upload_path(digest)) as (source, part):
            try:
                _check_digest(digest, _hash(source, part))
            except FileNotFoundError:
                if not self._has(digest):  # else somebody else has sent it at the same time
                    raise
                return
            except InvalidRequest:
                os.unlink(part, dir_fd=source)
                raise
            with open_parent(self.root, _object_path(digest)) as (folder, name):
                os.chmod(part, 0o644, dir_fd=source)
                os.rename(part, name, src_dir_fd=source, dst_dir_fd=folder)

    def _has(self, digest: str) -> bool:
        _check_digest(digest, digest)
        path = f"{self.root}/{_object_path(digest)}"
        try:
            found = os.lstat(path)
        except FileNotFoundError:
            return False
        if time.time() - found.st_mtime > _DATED_S:
            with contextlib.suppress(OSError):  # it may be another user's
                os.utime(path, follow_symlinks=False)
        return found.st_size > 0 or digest == EMPTY_DIGEST


def probe(folder: str) -> dict[str, Any]:
    """Make a folder, write into it, look at its space."""
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        path = f"{folder}/.gangline-probe.{secrets.token_hex(6)}"
        try:
            _create(path, _PROBE_BYTES)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        why_not = ""
    except OSError as error:
        why_not = f"{error.filename or folder}: {error.strerror}"
    exists = os.path.isdir(folder)
    return {"exists": exists, "writable": not why_not, "why_not": why_not, "free_bytes": _free_bytes(folder)}


def _free_bytes(folder: str) -> int:
    try:
        found = os.statvfs(folder)
    except OSError:
        return 0
    return found.f_bavail * found.f_frsize


def _create(path: str, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        _write_all(descriptor, data)
        os.fsync(descriptor)  # a quota or a full disk may show only now
    finally:
        os.close(descriptor)


def _object_path(digest: str) -> str:
    return f"objects/{digest[:2]}/{digest[2:]}"


def _check_digest(digest: str, found: str) -> None:
    if not is_digest(digest):
        raise InvalidRequest(f"{digest!r:.80} is no digest", why="A digest is 64 characters of lower-case hex")
    if found != digest:
        raise InvalidRequest(f"The bytes sent as {digest[:12]} are others", fix="Send them again")


def _write_renamed(folder: int, name: str, data: bytes, mode: int) -> None:
    temporary = f".{name[:64]}.{secrets.token_hex(6)}.tmp"
    try:
        descriptor = os.open(
            temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=folder
        )
        try:
            _write_all(descriptor, data)
        finally:
            os.close(descriptor)
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=folder)
        raise


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _read_at(descriptor: int, offset: int, num_bytes: int) -> bytes:
    parts = []
    while num_bytes > 0 and (data := os.pread(descriptor, num_bytes, offset)):
        parts.append(data)
        offset, num_bytes = offset + len(data), num_bytes - len(data)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _hash(folder: int, name: str) -> str:
    sha = hashlib.sha256()
    try:
        descriptor = open_regular(name, os.O_RDONLY, folder, name)
    except OSError as error:
        if error.errno == errno.ENOENT:
            raise FileNotFoundError(errno.ENOENT, "the upload is not there", name) from None
        raise
    with os.fdopen(descriptor, "rb") as file:
        while block := file.read(_BLOCK_BYTES):
            sha.update(block)
    return sha.hexdigest()
