"""Reading a rank's log: its last lines, a piece from an offset, what is new; as bytes, or as plain text for people.

The log is whatever the rank wrote: any bytes, progress bars that only send carriage returns, colours, ten megabytes
without a line end. Every function here holds a bounded number of bytes in memory.

Standard library only.
"""

from __future__ import annotations

import codecs
import os
import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Chunk", "LogFollower", "PlainText", "read_chunk", "read_tail", "render_plain"]

_BLOCK_BYTES = 1 << 16
_CHUNK_BYTES = 1 << 18
_TAIL_BYTES = 1 << 20
_LINE_CHARS = 4000
_LONGEST_CHARACTER = 4
"""Bytes, in UTF-8."""
_ESCAPE_CHARS = 512
"""A control sequence that is longer than this is none."""

_CONTROL = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor moves
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)"  # OSC, DCS and other strings: titles, links
    r"|\x1b[ -/]*[0-Z\\^-~]"  # two or three characters
    r"|\x1b"
    r"|[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f]"
)
_OPEN_CONTROL = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b]*\x1b?|[ -/]*)\Z")
"""A control sequence whose end has not come yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A piece of a log."""

    offset: int
    data: bytes
    size: int
    """Bytes of the whole log when it was read."""
    cut: bool = False
    """There was more before it that belonged to what was asked for (the lines were longer than the limit)."""

    @property
    def next_offset(self) -> int:
        """Where to read on."""
        return self.offset + len(self.data)

    @property
    def text(self) -> str:
        """The bytes as UTF-8, invalid ones replaced."""
        return self.data.decode("utf-8", "replace")


def read_chunk(path: str | os.PathLike[str], offset: int, *, limit_bytes: int = _CHUNK_BYTES) -> Chunk:
    """The bytes from an offset on, at most `limit_bytes`, ending between two characters where the bytes are UTF-8.

    Args:
        path: a missing log is an empty one.
        offset: in bytes; one past the end gives an empty piece at the end.
        limit_bytes: at least 4, the length of the longest character.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return Chunk(offset=0, data=b"", size=0)
    try:
        size = os.fstat(descriptor).st_size
        start = min(max(offset, 0), size)
        data = os.pread(descriptor, max(limit_bytes, _LONGEST_CHARACTER), start)
    finally:
        os.close(descriptor)
    return Chunk(offset=start, data=data[: _whole_characters(data)], size=max(size, start + len(data)))


def read_tail(path: str | os.PathLike[str], lines: int, *, limit_bytes: int = _TAIL_BYTES) -> Chunk:
    """The last lines of a log, found by seeking from its end.

    Args:
        path: a missing log is an empty one.
        lines: how many; a last line without its line feed counts as one.
        limit_bytes: most that is returned. Longer lines lose their beginning (`cut`), at a whole character.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return Chunk(offset=0, data=b"", size=0)
    try:
        size = os.fstat(descriptor).st_size
        floor = max(0, size - limit_bytes)
        start = _start_of_lines(descriptor, size, floor, lines)
        at = floor if start is None else start
        data = os.pread(descriptor, size - at, at)
    finally:
        os.close(descriptor)
    cut = start is None and floor > 0
    skip = _partial_character(data) if cut else 0
    return Chunk(offset=at + skip, data=data[skip:], size=size, cut=cut)


class LogFollower:
    """Reads what a log gains.

    Args:
        path: need not exist yet.
        offset: where to begin.
    """

    def __init__(self, path: str | os.PathLike[str], offset: int = 0) -> None:
        self.path = Path(path)
        self.offset = offset

    def read(self, *, limit_bytes: int = _CHUNK_BYTES) -> bytes:
        """What is new, at most `limit_bytes` at once; b"" where there is nothing. A half-written character waits."""
        chunk = read_chunk(self.path, self.offset, limit_bytes=limit_bytes)
        if chunk.offset != self.offset:  # shorter than it was: a mirror that is being filled again
            return b""
        self.offset = chunk.next_offset
        return chunk.data

    def read_rest(self, *, limit_bytes: int = _CHUNK_BYTES) -> bytes:
        """The same once the rank has ended: a half-written character comes too."""
        data = self.read(limit_bytes=limit_bytes)
        if data:
            return data
        try:
            with self.path.open("rb") as file:
                file.seek(self.offset)
                rest = file.read(_LONGEST_CHARACTER)
        except (FileNotFoundError, NotADirectoryError):
            return b""
        self.offset += len(rest)
        return rest


class PlainText:
    """Turns a log's bytes into text for people, piece by piece: whatever was fed comes out at once, memory stays small.

    A carriage return ends a line as a line feed does, empty refreshes are left out, control sequences are stripped,
    bytes that are not UTF-8 are replaced, and a line of more than `line_chars` characters is cut with a note.
    """

    def __init__(self, *, line_chars: int = _LINE_CHARS) -> None:
        self.line_chars = line_chars
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._open = ""
        self._column = 0
        self._returned = False
        """The last character was a carriage return, which has ended its line already."""

    def feed(self, data: bytes) -> str:
        """The text of the next bytes; what may turn out to be the beginning of a control sequence waits."""
        return self._render(self._decoder.decode(data), final=False)

    def finish(self) -> str:
        """What still waited, at the end of the log."""
        return self._render(self._decoder.decode(b"", final=True), final=True)

    def _render(self, text: str, *, final: bool) -> str:
        text = self._open + text
        self._open = ""
        if not final:
            waiting = _OPEN_CONTROL.search(text, max(0, len(text) - _ESCAPE_CHARS))
            if waiting is not None:
                text, self._open = text[: waiting.start()], waiting.group()
        return "".join(self._lines(_CONTROL.sub("", text)))

    def _lines(self, text: str) -> list[str]:
        pieces = []
        for piece in re.findall(r"[^\r\n]+|\r|\n", text):
            if piece == "\n":
                pieces += [] if self._returned else ["\n"]
                self._column, self._returned = 0, False
            elif piece == "\r":
                pieces += ["\n"] if self._column else []
                self._returned = self._returned or self._column > 0
                self._column = 0
            else:
                pieces.append(self._cut(piece))
                self._returned = False
        return pieces

    def _cut(self, piece: str) -> str:
        room = self.line_chars - self._column
        self._column += len(piece)
        if len(piece) <= room:
            return piece
        if room < 0:
            return ""
        return f"{piece[:room]} … [line longer than {self.line_chars:,} characters; the raw log has all of it]"


def render_plain(data: bytes, *, line_chars: int = _LINE_CHARS) -> str:
    """The plain text of a whole piece; see `PlainText`."""
    plain = PlainText(line_chars=line_chars)
    return plain.feed(data) + plain.finish()


def _start_of_lines(descriptor: int, size: int, floor: int, lines: int) -> int | None:
    """Offset of the n-th last line, or None where it lies before `floor` (or, with `floor` 0, is the beginning)."""
    if lines <= 0:
        return size
    end, missing = size, lines
    while end > floor:
        start = max(floor, end - _BLOCK_BYTES)
        block = os.pread(descriptor, end - start, start)
        place = len(block) - (1 if end == size and block.endswith(b"\n") else 0)
        while (place := block.rfind(b"\n", 0, place)) >= 0:
            missing -= 1
            if missing == 0:
                return start + place + 1
        end = start
    return 0 if floor == 0 else None


def _whole_characters(data: bytes) -> int:
    """Length of `data` without a character that is cut at its end; bytes that are not UTF-8 count as whole."""
    for back in range(1, min(_LONGEST_CHARACTER - 1, len(data)) + 1):
        byte = data[-back]
        if not _continues(byte):
            return len(data) - back if _character_bytes(byte) > back else len(data)
    return len(data)


def _partial_character(data: bytes) -> int:
    """How many bytes at the beginning belong to a character that began before; at most 3."""
    count = 0
    while count < min(_LONGEST_CHARACTER - 1, len(data)) and _continues(data[count]):
        count += 1
    return count


def _continues(byte: int) -> bool:
    return byte & 0b1100_0000 == 0b1000_0000  # noqa: PLR2004 - UTF-8


def _character_bytes(byte: int) -> int:
    """How many bytes the character has that begins with this one; 1 where no character does."""
    for count, mask, value in (
        (2, 0b1110_0000, 0b1100_0000),
        (3, 0b1111_0000, 0b1110_0000),
        (4, 0b1111_1000, 0b1111_0000),
    ):
        if byte & mask == value:
            return count
    return 1
