"""The first program on the login node: gets the zipapp there, once, and becomes the bridge.

Sent as text and run by any Python >= 3.10, so it imports nothing of Gangline before the zipapp is there. Its stdin is
one line of JSON (`work`, `bundle`, `digest`, `size`, `packed`), then the zipapp, packed by zlib, if it says `want`,
then frames.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import zlib
from typing import BinaryIO


def boot(source: BinaryIO, sink: int) -> None:
    """Be the bridge; does not return, unless the work folder cannot be used."""
    asked = json.loads(source.readline())
    work, size = asked["work"], asked["size"]
    path = f"{work}/agents/{asked['bundle']}"
    try:
        os.makedirs(work, mode=0o700, exist_ok=True)
        os.makedirs(f"{work}/agents", exist_ok=True)
        if not is_whole(path, size, asked["digest"]):
            say(sink, {"id": 0, "ok": True, "want": True, "bytes": 0})
            keep(path, zlib.decompress(source.read(asked["packed"])))
        os.makedirs(f"{work}/runs", exist_ok=True)
    except OSError as error:
        say(sink, {"id": 0, "ok": False, "bytes": 0, "error": f"{error.filename or path}: {error.strerror or error}"})
        return
    sys.path.insert(0, path)
    from gangline.bridge.serve import serve  # noqa: PLC0415 - it is there from now on

    say(sink, {"id": 0, "ok": True, "want": False, "bytes": 0})
    serve(work, source.read1)  # type: ignore[attr-defined]


def is_whole(path: str, size: int, digest: str) -> bool:
    """Whether the zipapp is there: one that a loss of power has torn does not count."""
    try:
        with open(path, "rb") as file:
            data = file.read(size + 1)
    except FileNotFoundError:
        return False
    return len(data) == size and hashlib.sha256(data).hexdigest() == digest


def keep(path: str, data: bytes) -> None:
    """Write the zipapp by rename: several servers may do so at the same time."""
    temporary = f"{path}.{os.getpid()}.{os.urandom(4).hex()}.tmp"
    try:
        with open(temporary, "xb") as file:
            file.write(data)
        os.rename(temporary, path)
    except BaseException:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise


def say(sink: int, header: dict[str, object]) -> None:
    """Write one frame."""
    os.write(sink, json.dumps(header, separators=(",", ":")).encode() + b"\n")


if __name__ == "__main__":
    boot(sys.stdin.buffer, 1)
