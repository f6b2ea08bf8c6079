"""Read logs of ranks by offset: pieces, last lines, and several ranks followed at once over attempts.

Everything is read from the run directory when it is asked for; nothing is kept but offsets.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gangline.rundir.layout import AttemptDir, RunDir
from gangline.rundir.tail import LogFollower, read_tail
from gangline.wire.views import LogChunk

__all__ = ["GangLogFollower", "find_attempt", "find_tail", "is_attempt_over", "parse_offsets", "read_piece"]

_PIECE_BYTES = 1 << 16
_POLL_BYTES = 1 << 20


def read_piece(attempt: AttemptDir, rank: int, *, offset: int, limit_bytes: int, over: bool) -> LogChunk:
    """A piece of a rank's log, cut between characters; empty where there is nothing (yet).

    Args:
        over: nothing more will be written; has to be known before the log is read.
    """
    follower = LogFollower(attempt.log(rank), offset)
    data = follower.read_rest(limit_bytes=limit_bytes) if over else follower.read(limit_bytes=limit_bytes)
    size = _size(attempt.log(rank))
    return {
        "rank": rank,
        "attempt": attempt.number,
        "offset": offset,
        "next_offset": follower.offset,
        "size": size,
        "text": data.decode("utf-8", "replace"),
        "complete": over and follower.offset >= size,
    }


def find_tail(path: Path, lines: int) -> int:
    """Offset of the last `lines` lines; of lines that are longer than a megabyte, of their last megabyte."""
    return read_tail(path, lines).offset


def find_attempt(run_dir: RunDir, attempt: int | None) -> AttemptDir:
    """That attempt, or the newest; attempt 0 of a run that has not started."""
    if attempt is not None:
        return run_dir.attempt(attempt)
    begun = run_dir.attempts()
    return begun[-1] if begun else run_dir.attempt(0)


def is_attempt_over(attempt: AttemptDir) -> bool:
    """Whether the leader has written how it ended."""
    return attempt.result.exists()


@dataclass(slots=True, kw_only=True)
class GangLogFollower:
    """New output of some ranks of a run, from one attempt on into the following ones."""

    run_dir: RunDir
    ranks: Sequence[int]
    attempt: int | None
    """The one that is read now; None: the newest, once there is any."""
    offsets: dict[int, int] = field(default_factory=dict)
    tail: int | None = None
    """Ranks without an offset begin at the last that many lines; in the first attempt only."""
    _turn: int = 0

    def poll(self, *, run_over: bool, up_to: float = math.inf) -> tuple[list[LogChunk], bool]:
        """What was written since the last call, at most about 1 MiB.

        Args:
            run_over: the run has ended; has to be known before the logs are read.
            up_to: the newest attempt whose beginning has been told; later ones wait for their turn.
        Returns:
            The pieces, and whether all that there is has been read.
        """
        begun = [attempt.number for attempt in self.run_dir.attempts() if attempt.number <= up_to]
        if self.attempt is None and begun:
            self.attempt = begun[-1]
        if self.attempt is None or self.attempt > up_to:
            return [], True
        following = [number for number in begun if number > self.attempt]
        pieces = self._read_ranks(self.run_dir.attempt(self.attempt), over=run_over or bool(following))
        if pieces or not following:
            return pieces, not pieces
        self.attempt, self.offsets, self.tail = following[0], {}, None
        return [], False

    def _read_ranks(self, attempt: AttemptDir, *, over: bool) -> list[LogChunk]:
        """One piece of each rank that has more; who is first changes, so that nobody starves."""
        pieces: list[LogChunk] = []
        room = _POLL_BYTES
        over = over or is_attempt_over(attempt)
        for step in range(len(self.ranks)):
            rank = self.ranks[(self._turn + step) % len(self.ranks)]
            if room <= 0:
                self._turn += step
                break
            offset = self._offset(attempt, rank)
            if _size(attempt.log(rank)) <= offset:
                continue
            piece = read_piece(attempt, rank, offset=offset, limit_bytes=_PIECE_BYTES, over=over)
            if piece["next_offset"] > offset:
                self.offsets[rank] = piece["next_offset"]
                room -= piece["next_offset"] - offset
                pieces.append(piece)
        return pieces

    def _offset(self, attempt: AttemptDir, rank: int) -> int:
        if rank not in self.offsets:
            self.offsets[rank] = 0 if self.tail is None else find_tail(attempt.log(rank), self.tail)
        return self.offsets[rank]


def parse_offsets(text: str) -> Mapping[int, int]:
    """`0:17,3:0`: the next byte of rank 0 is 17, of rank 3 it is 0.

    Raises:
        ValueError
    """
    pairs = [pair.partition(":") for pair in text.split(",") if pair]
    return {int(rank): max(0, int(offset)) for rank, _, offset in pairs}


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        return 0
