"""The lines of a log around the places where a search has matched, each bounded in size."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gangline.rundir.dropped import read_dropped
from gangline.rundir.layout import AttemptDir
from gangline.rundir.logindex import IndexReader
from gangline.wire.views import LogHit

__all__ = ["Place", "read_hits"]

_LINE_BYTES = 4000
_BEFORE_BYTES = 1000
"""Of a line that is longer, so much is shown before the match."""
_USUAL_BYTES = 1 << 10
"""Most lines end within so many bytes after the match."""
_CONTEXT_BYTES = 1 << 16
"""Lines around a hit are looked for within so many bytes."""


@dataclass(frozen=True, slots=True)
class Place:
    """A line that matches."""

    begin: int
    """Offset of the line."""
    start: int
    """Offset of the match in it."""


@dataclass(frozen=True, slots=True)
class _Line:
    offset: int
    """Where `text` begins."""
    end: int
    """Of the line, after its line feed; of a line without an end that is near, 0."""
    text: str
    cut: bool


def read_hits(attempt: AttemptDir, rank: int, places: Sequence[Place], *, context: int) -> list[LogHit]:
    """The hits of one log, with the lines around them; a line is told once."""
    try:
        descriptor = os.open(attempt.log(rank), os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return []
    try:
        found = list(_read_all(descriptor, places, context))
    finally:
        os.close(descriptor)
    dropped = read_dropped(attempt.log(rank))  # after the bytes, as always
    times = IndexReader(attempt.index(rank)).times_at([place.start for place in places])
    return [
        {
            "rank": rank,
            "attempt": attempt.number,
            "offset": line.offset,
            "text": line.text,
            "cut": line.cut,
            "time": time,
            "before": [one.text for one in before if not dropped.holds(one.offset)],
            "after": [one.text for one in after if not dropped.holds(one.offset)],
        }
        for place, time, (before, line, after) in zip(places, times, found, strict=True)
        if not dropped.holds(place.start)
    ]


def _read_all(
    descriptor: int, places: Sequence[Place], context: int
) -> Iterator[tuple[list[_Line], _Line, list[_Line]]]:
    """Each line that matches, between those before and after it."""
    told = 0
    for number, place in enumerate(places):
        line = _read_line(descriptor, place)
        limit = places[number + 1].begin if number + 1 < len(places) else None
        before = _read_before(descriptor, place.begin, context, floor=told)
        after = _read_after(descriptor, line.end, context, ceiling=limit)
        told = after[-1].end if after else line.end
        yield before, line, after


def _read_line(descriptor: int, place: Place) -> _Line:
    begin = max(place.begin, place.start - _BEFORE_BYTES)
    at = place.start - begin
    data = os.pread(descriptor, at + _USUAL_BYTES, begin)
    end = data.find(b"\n", at)
    if end < 0:
        data = os.pread(descriptor, _CONTEXT_BYTES, begin)
        end = data.find(b"\n", at)
    whole = data if end < 0 else data[:end]
    drawn = whole.rfind(b"\r", 0, at) + 1
    redrawn = whole.find(b"\r", at + 1)
    state = whole[drawn:] if redrawn < 0 else whole[drawn:redrawn]
    cut = len(state) > _LINE_BYTES or (not drawn and begin > place.begin) or (end < 0 and len(data) == _CONTEXT_BYTES)
    text = state[:_LINE_BYTES].decode("utf-8", "replace").rstrip("\r")
    return _Line(begin + drawn, begin + end + 1 if end >= 0 else 0, text, cut)


def _read_before(descriptor: int, end: int, count: int, *, floor: int) -> list[_Line]:
    """Up to `count` whole lines before the one that begins at `end`, none from before `floor`."""
    floor = max(floor, end - _CONTEXT_BYTES)
    if not count or floor >= end:
        return []
    data = os.pread(descriptor, end - floor, floor)
    lines = _split(data, floor)
    if floor and os.pread(descriptor, 1, floor - 1) != b"\n":
        lines = lines[1:]
    return lines[-count:]


def _read_after(descriptor: int, begin: int, count: int, *, ceiling: int | None) -> list[_Line]:
    """Up to `count` lines from `begin` on, none that begins at `ceiling` or later."""
    if not count or not begin or (ceiling is not None and begin >= ceiling):
        return []
    size = _CONTEXT_BYTES if ceiling is None else min(_CONTEXT_BYTES, ceiling - begin)
    return _split(os.pread(descriptor, size, begin), begin)[:count]


def _split(data: bytes, offset: int) -> list[_Line]:
    found = []
    lines = data.split(b"\n")
    for line in lines if lines[-1] else lines[:-1]:
        state = line.rstrip(b"\r").rpartition(b"\r")[2]
        text = state[:_LINE_BYTES].decode("utf-8", "replace")
        found.append(_Line(offset, offset + len(line) + 1, text, len(state) > _LINE_BYTES))
        offset += len(line) + 1
    return found
