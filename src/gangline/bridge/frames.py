"""Frames between the server and its bridge: a line of JSON, then as many raw bytes as its `bytes` says.

Payloads carry their CRC: what a background process of the login shell prints between them must not be taken for bytes
of a file. Standard library only.
"""

from __future__ import annotations

import json
import threading
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["MARKER", "MAX_PAYLOAD_BYTES", "BrokenFrame", "Frame", "FrameReader", "FrameWriter", "render_frame"]

MARKER = "GANGLINE-BRIDGE"
"""With a token behind it, on a line of its own: from here on there are frames."""
MAX_PAYLOAD_BYTES = 64 << 20
_MAX_LINE_BYTES = 64 << 20
_READ_BYTES = 1 << 18
_BEGINNING = b'{"id":'


class BrokenFrame(Exception):
    """The stream holds something that is no frame; nothing behind it can be trusted."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One message."""

    header: Mapping[str, Any]
    payload: bytes = b""

    @property
    def id(self) -> int:
        return int(self.header["id"])


def render_frame(header: Mapping[str, Any], payload: bytes = b"") -> bytes:
    """The line of a frame; the payload follows it as it is."""
    checked = {"crc": zlib.crc32(payload)} if payload else {}
    whole = {"id": header["id"], **header, "bytes": len(payload), **checked}
    return json.dumps(whole, separators=(",", ":")).encode() + b"\n"


class FrameReader:
    """Frames of a stream.

    Args:
        read: gives some bytes as soon as there are any, at most so many; b"" at the end.
        tolerant: lines that are no frame are passed over (a login shell may have left something behind that prints).
    """

    def __init__(self, read: Callable[[int], bytes], *, tolerant: bool = False) -> None:
        self._read = read
        self._tolerant = tolerant
        self._buffer = bytearray()
        self._at = 0
        """What stands before it was taken."""

    def next(self) -> Frame | None:
        """The next frame; None when the stream is at its end.

        Raises:
            BrokenFrame: the stream ends within a frame, or holds something else.
        """
        header = self._header()
        if header is None:
            return None
        size = header.get("bytes")
        if not isinstance(size, int) or not 0 <= size <= MAX_PAYLOAD_BYTES:
            raise BrokenFrame(f"a frame says that it has {size!r} bytes")
        payload = self._take(size)
        if payload and zlib.crc32(payload) != header.get("crc"):
            raise BrokenFrame("something else was printed into a frame")
        return Frame(header, payload)

    def line(self) -> bytes | None:
        """The next line without its end; None when the stream is at its end (what is left of a line is not given)."""
        searched = self._at
        while (end := self._buffer.find(b"\n", searched)) < 0:
            searched = len(self._buffer)
            if searched - self._at > _MAX_LINE_BYTES:
                raise BrokenFrame("a line does not end")
            searched -= self._drop_taken()
            if not self._fill():
                return None
        found = bytes(self._buffer[self._at : end])
        self._at = end + 1
        return found

    def _header(self) -> dict[str, Any] | None:
        while (line := self.line()) is not None:
            begin = line.rfind(_BEGINNING) if self._tolerant else 0
            try:
                header = json.loads(line[begin:]) if begin >= 0 else None
            except ValueError:
                header = None
            if isinstance(header, dict) and isinstance(header.get("id"), int):
                return header
            if not self._tolerant:
                raise BrokenFrame(f"a line is no frame: {line[:80]!r}")
        return None

    def _take(self, size: int) -> bytes:
        self._drop_taken()
        while len(self._buffer) < size:
            if not self._fill():
                raise BrokenFrame("the stream ended within a frame")
        self._at = size
        return bytes(self._buffer[:size])

    def _drop_taken(self) -> int:
        taken, self._at = self._at, 0
        del self._buffer[:taken]
        return taken

    def _fill(self) -> bool:
        data = self._read(_READ_BYTES)
        self._buffer += data
        return bool(data)


class FrameWriter:
    """Frames into a stream, from any thread.

    Args:
        write: takes some of the bytes that it is given, and says how many.
    """

    def __init__(self, write: Callable[[memoryview], int | None]) -> None:
        self._write = write
        self._lock = threading.Lock()

    def send(self, header: Mapping[str, Any], payload: bytes = b"") -> None:
        """Write one frame whole.

        Raises:
            OSError: the stream is closed.
        """
        line = render_frame(header, payload)
        with self._lock:
            self._all(line)
            self._all(payload)

    def _all(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[self._write(rest) or 0 :]
