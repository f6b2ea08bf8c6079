"""The logs of some ranks of one attempt, read together in order of time.

What orders them is the index that the agent keeps of each log: slices of a fifth of a second. Who follows live sees
finer: what one poll finds new is newer than all that the polls before it found.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from gangline.rundir.layout import AttemptDir
from gangline.rundir.logindex import IndexReader
from gangline.rundir.tail import find_line_start, find_tail, read_chunk

if TYPE_CHECKING:
    from gangline.wire.views import LogChunk

__all__ = ["Begin", "RankLogs", "find_begin", "find_end", "read_piece"]

_PIECE_BYTES = 1 << 16
_READ_BYTES = 1 << 20
_FRESH_S = 0.3
"""What came since a look that is no older than this needs no finer order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """Where to begin in a log of which no offset is known."""

    tail: int | None = None
    """At the last that many lines."""
    since: float | None = None
    """At what was written from this time on (wall clock), to a fifth of a second."""


def read_piece(attempt: AttemptDir, rank: int, *, offset: int, limit_bytes: int, over: bool) -> LogChunk:
    """A piece of a rank's log, cut between characters; empty where there is nothing (yet).

    Args:
        over: nothing more will be written; has to be known before the log is read.
    """
    chunk = read_chunk(attempt.log(rank), offset, limit_bytes=limit_bytes, final=over)
    shorter = chunk.offset != offset  # than it was: a mirror that is being filled again
    next_offset = offset if shorter else chunk.next_offset
    return {
        "rank": rank,
        "attempt": attempt.number,
        "offset": offset,
        "next_offset": next_offset,
        "size": chunk.size,
        "text": "" if shorter else chunk.text,
        "dropped_bytes": 0 if shorter else chunk.dropped_bytes,
        "complete": over and next_offset >= chunk.size,
    }


def find_begin(attempt: AttemptDir, rank: int, begin: Begin) -> int:
    """The offset of a whole line that `begin` means; the later one where it says both."""
    log = attempt.log(rank)
    places = [0]
    if begin.tail is not None:
        places.append(find_tail(log, begin.tail))
    if begin.since is not None:
        places.append(find_line_start(log, IndexReader(attempt.index(rank)).offset_at(begin.since)))
    return max(places)


def find_end(attempt: AttemptDir, rank: int, until: float | None) -> int:
    """Where a reading ends that goes up to a time; None: at what there is now."""
    size = _size(attempt.log(rank))
    found = None if until is None else IndexReader(attempt.index(rank)).offset_after(until)
    return size if found is None else min(size, found)


@dataclass(slots=True, kw_only=True)
class RankLogs:
    """A reader's place in each log."""

    attempt: AttemptDir
    ranks: Sequence[int]
    offsets: dict[int, int] = field(default_factory=dict)
    begin: Begin = Begin()
    """For ranks without an offset."""
    ends: Mapping[int, int] | None = None
    """Where to end in each log; None: read whatever comes."""
    clock: Callable[[], float] = time.monotonic
    _caught_up: float = -math.inf
    """When everything had been read last."""
    is_behind: bool = False
    """The last `read` has left something for the next."""
    _turns: dict[int, int] = field(default_factory=dict)

    def read(self, *, over: bool) -> list[LogChunk]:
        """What is new, at most about 1 MiB; what is left over comes first the next time.

        Args:
            over: nothing more will be written.
        """
        now, self.is_behind = self.clock(), True
        ends = {rank: end for rank in self.ranks if (end := self._end(rank)) > self._offset(rank)}
        room = _READ_BYTES
        few = sum(end - self.offsets[rank] for rank, end in ends.items()) <= room
        fresh = few and now - self._caught_up < _FRESH_S
        found: list[LogChunk] = []
        for rank, upto in iter(ends.items()) if fresh or len(ends) == 1 else self._slices(ends):
            for piece in self._pieces(rank, upto, over=over):
                found.append(piece)
                room -= piece["next_offset"] - piece["offset"] if not piece["dropped_bytes"] else len(piece["text"])
                if room <= 0:
                    return found
        self._caught_up, self.is_behind = now, False
        self._turns.clear()
        return found

    def _pieces(self, rank: int, upto: int, *, over: bool) -> Iterator[LogChunk]:
        while (offset := self.offsets[rank]) < upto:
            limit_bytes = min(_PIECE_BYTES, upto - offset)
            piece = read_piece(self.attempt, rank, offset=offset, limit_bytes=limit_bytes, over=over)
            if piece["next_offset"] <= offset:
                return
            self.offsets[rank] = piece["next_offset"]
            yield piece

    def _slices(self, ends: Mapping[int, int]) -> Iterator[tuple[int, int]]:
        """Rank and offset up to which its log is read next; at last, in turns, what no index has noted yet."""
        records = {rank: IndexReader(self.attempt.index(rank)).records_after(self.offsets[rank]) for rank in ends}
        heap = [self._slice(rank, records[rank], ends[rank]) for rank in ends]
        heapq.heapify(heap)
        while heap:
            _, _, upto, rank = heap[0]
            yield rank, upto
            if upto >= ends[rank]:
                heapq.heappop(heap)
            else:
                heapq.heapreplace(heap, self._slice(rank, records[rank], ends[rank]))

    def _slice(self, rank: int, records: Iterator[tuple[float, int]], end: int) -> tuple[float, int, int, int]:
        moment, upto = next(records, (math.inf, self.offsets[rank] + _PIECE_BYTES))
        turn = 0
        if moment == math.inf:
            turn = self._turns[rank] = self._turns.get(rank, 0) + 1
        return moment, turn, min(upto, end), rank

    def _offset(self, rank: int) -> int:
        if rank not in self.offsets:
            self.offsets[rank] = find_begin(self.attempt, rank, self.begin)
        return self.offsets[rank]

    def _end(self, rank: int) -> int:
        return _size(self.attempt.log(rank)) if self.ends is None else self.ends[rank]


def _size(path: Path) -> int:
    """Bytes of a log; 0 where there is none."""
    try:
        return path.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        return 0
