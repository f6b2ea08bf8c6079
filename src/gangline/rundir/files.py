"""Files that appear whole or not at all: written under a private name in the same folder, then renamed.

Standard library only.
"""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

from gangline.domain.errors import GanglineError

__all__ = [
    "TEMPORARY_SUFFIX",
    "Unreadable",
    "is_temporary",
    "read_json",
    "render_json",
    "sync_folder",
    "write_bytes",
    "write_json",
    "write_text",
]

TEMPORARY_SUFFIX = ".tmp"
"""How private names end; whoever lists a folder may leave them out."""


class Unreadable(GanglineError):
    """A file of the run directory holds something else than it should."""

    code = "unreadable"


def write_json(path: str | os.PathLike[str], obj: object, *, mode: int = 0o644, durable: bool = False) -> None:
    """Write an object as `render_json` makes it; see `write_bytes`."""
    write_bytes(path, render_json(obj), mode=mode, durable=durable)


def render_json(obj: object) -> bytes:
    """UTF-8 JSON with a newline at its end.

    Halves of surrogate pairs, as names of files hold that are no UTF-8, are written as JSON escapes them.
    """
    return (json.dumps(obj, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")


def write_text(path: str | os.PathLike[str], text: str, *, mode: int = 0o644, durable: bool = False) -> None:
    """Write UTF-8 text; see `write_bytes`."""
    write_bytes(path, text.encode("utf-8", "surrogateescape"), mode=mode, durable=durable)


def write_bytes(path: str | os.PathLike[str], data: bytes, *, mode: int = 0o644, durable: bool = False) -> None:
    """Replace a file by rename; its folder is made if it is missing.

    Args:
        mode: permissions of the file from its first moment on, whatever the umask says beyond them.
        durable: also wait until the bytes and the name are on the disk (fsync), which survives a power cut.
    Raises:
        OSError: nothing was changed, and no temporary file is left.
    """
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{os.urandom(6).hex()}{TEMPORARY_SUFFIX}")
    try:
        descriptor = _create(temporary, mode)
        try:
            _write_all(descriptor, data)
            if durable:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(target.parent)


def read_json(path: str | os.PathLike[str]) -> dict[str, Any] | None:
    """The object in a JSON file, or None where there is no such file.

    Raises:
        Unreadable: the file is not UTF-8 JSON, or not an object.
        OSError: the file is there but cannot be read.
    """
    try:
        raw = Path(path).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        found = json.loads(raw.decode("utf-8"))
    except ValueError as error:
        raise _unreadable(path, f"{error}; it has {len(raw)} bytes") from error
    except RecursionError as error:
        raise _unreadable(path, "it is nested too deeply") from error
    if not isinstance(found, dict):
        raise _unreadable(path, f"it holds a JSON {type(found).__name__}, not an object")
    return found


def is_temporary(name: str) -> bool:
    """Whether a file's name is a private one of `write_bytes`."""
    return name.startswith(".") and name.endswith(TEMPORARY_SUFFIX)


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Wait until the names in a folder are on the disk; where the file system knows no such thing, nothing happens."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in {errno.EINVAL, errno.ENOTSUP}:
            raise
    finally:
        os.close(descriptor)


def _create(temporary: Path, mode: int) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        return os.open(temporary, flags, mode)
    except FileNotFoundError:
        temporary.parent.mkdir(parents=True, exist_ok=True)
        return os.open(temporary, flags, mode)


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _unreadable(path: str | os.PathLike[str], why: str) -> Unreadable:
    return Unreadable(
        f"`{os.fspath(path)}` is not the JSON object that it should be",
        why=why,
        fix="Gangline writes it in one piece, so something else changed it: restore it, or remove it",
    )
