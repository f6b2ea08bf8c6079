"""Copies are brought up to date with their sources in batches: many files of many runs with each question.

Each file is copied by a generator that asks for reads; what they ask for is put together into batches, so that a
distant source costs one round trip for all of them, and a large log does not hold up small ones.
Standard library only.
"""

from __future__ import annotations

import os
import stat
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gangline.domain.errors import Conflict, InvalidRequest
from gangline.rundir.dropped import NOTHING, dropped_path, read_dropped
from gangline.rundir.mirror import FileState, Piece, apply, apply_dropped, apply_whole, grows, is_log

__all__ = ["LARGEST_WHOLE_BYTES", "Copied", "Read", "Wanted", "pull"]

LARGEST_WHOLE_BYTES = 48 << 20
"""Of a file that is sent whole."""
_PIECE_BYTES = 1 << 18
_BATCH_BYTES = 4 << 20
_MOST_READS = 1000
_JOURNAL_BYTES = 512
_SLACK_BYTES = 64
_SETTLED_NS = 10_000_000_000

Read = tuple[str, str, int, int]
"""Run, path, offset, most bytes."""
_Copying = Generator[list[tuple[str, int, int]], list[bytes | None], int]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A file of which a copy is to be brought up to date."""

    run: str
    state: FileState
    dest: Path
    """The copy of the run directory; it is there."""


@dataclass(frozen=True, slots=True)
class Copied:
    """How one file went."""

    wanted: Wanted
    num_bytes: int = 0
    error: Exception | None = None
    """FileNotFoundError: the source cannot be read. InvalidRequest: it can not be copied. Conflict: it has changed
    meanwhile. Any other OSError: the copy could not be written."""


def pull(
    read: Callable[[Sequence[Read]], list[bytes | None]],
    wanted: Iterable[Wanted],
    *,
    piece_bytes: int = _PIECE_BYTES,
    batch_bytes: Callable[[], int] = lambda: _BATCH_BYTES,
    is_enough: Callable[[], bool] = lambda: False,
) -> Iterator[Copied]:
    """Bring copies up to date, as far as their states say; what is written meanwhile comes with the next pull.

    Yields each file when it is done, and can be left at any moment: the copies say themselves how far they are.

    Args:
        read: reads at the source, in the order given; None: not there, or not readable. What it raises is passed on.
        piece_bytes: most that is read of a growing file at a time.
        batch_bytes: about how much to ask for at a time; memory holds no more than that (or one file that is sent
            whole, where that is larger).
        is_enough: asked after each batch; True leaves the rest for another time.
    """
    waiting = iter(wanted)
    active: deque[_Active] = deque()
    is_drained = False
    while active or not is_drained:
        while not is_drained and len(active) < _MOST_READS:
            one = next(waiting, None)
            if one is None:
                is_drained = True
            else:
                yield from _begin(_Active(one, _copy(one, piece_bytes), []), active)
        yield from _go_on(read, active, batch_bytes())
        if is_enough():
            return


@dataclass(slots=True)
class _Active:
    """A file that is being copied."""

    wanted: Wanted
    copying: _Copying
    asked: list[tuple[str, int, int]]


def _begin(one: _Active, active: deque[_Active]) -> Iterator[Copied]:
    yield from _step(one, None, active)


def _go_on(
    read: Callable[[Sequence[Read]], list[bytes | None]], active: deque[_Active], batch_bytes: int
) -> Iterator[Copied]:
    """One batch: those that have waited longest, as many as fit."""
    batch: list[_Active] = []
    left = batch_bytes
    while active and (not batch or left >= sum(num_bytes for _, _, num_bytes in active[0].asked)):
        one = active.popleft()
        left -= sum(num_bytes for _, _, num_bytes in one.asked)
        batch.append(one)
    if not batch:
        return
    answers = iter(read([(one.wanted.run, *asked) for one in batch for asked in one.asked]))
    for one in batch:
        yield from _step(one, [next(answers) for _ in one.asked], active)


def _step(one: _Active, answers: list[bytes | None] | None, active: deque[_Active]) -> Iterator[Copied]:
    try:
        one.asked = next(one.copying) if answers is None else one.copying.send(answers)
    except StopIteration as end:
        yield Copied(one.wanted, num_bytes=end.value)
    except (OSError, InvalidRequest, Conflict) as error:
        yield Copied(one.wanted, error=error)
    else:
        active.append(one)


def _copy(wanted: Wanted, piece_bytes: int) -> _Copying:
    if not grows(wanted.state.path):
        return _copy_whole(wanted.dest, wanted.state)
    if is_log(wanted.state.path):
        return _copy_log(wanted.dest, wanted.state, piece_bytes)
    return _copy_growing(wanted.dest, wanted.state, piece_bytes)


def _copy_whole(dest: Path, state: FileState) -> _Copying:
    if _is_same(dest / state.path, state):
        return 0
    if state.size > LARGEST_WHOLE_BYTES:
        limit = f"{LARGEST_WHOLE_BYTES >> 20} MiB"
        raise InvalidRequest(f"`{state.path}` has {state.size:,} bytes; files sent whole have at most {limit}")
    (data,) = yield [(state.path, 0, state.size + _SLACK_BYTES)]
    data = _there(data, state.path)
    if len(data) > state.size:  # it was replaced meanwhile, and may be cut
        raise Conflict(f"`{state.path}` has just been replaced")
    return len(data) if apply_whole(dest, Piece(state.path, 0, data, state.mtime_ns)) else 0


def _copy_growing(dest: Path, state: FileState, piece_bytes: int) -> _Copying:
    begin = offset = _begin_at(dest, state.path)
    while offset < state.size:
        (data,) = yield [(state.path, offset, min(piece_bytes, state.size - offset))]
        if not _there(data, state.path):
            break
        offset = apply(dest, state.path, offset, data or b"")
    return offset - begin


def _copy_log(dest: Path, state: FileState, piece_bytes: int) -> _Copying:
    """As for every file that grows, but for what is dropped from it, also while it is read.

    The journal of what was dropped is read after the bytes, which may be zeros by then; the copy has the journal before
    it has bytes that lie behind a gap.
    """
    offset, num_bytes, punched = _begin_at(dest, state.path), 0, NOTHING
    journal = dropped_path(state.path).as_posix()
    noted = _size(dest / journal)
    while True:
        room = max(0, min(piece_bytes, state.size - offset))
        data, note = yield [(state.path, offset, room), (journal, noted, _JOURNAL_BYTES)]
        while note:
            noted = apply(dest, journal, noted, note)
            (note,) = yield [(journal, noted, _JOURNAL_BYTES)]
        dropped = read_dropped(dest / state.path)
        if dropped != punched and dropped.start <= offset:
            punched = dropped
            apply_dropped(dest, state.path, dropped.start, dropped.end)
            if dropped.holds(offset):
                offset = dropped.end
                continue
        data = _there(data, state.path)
        if dropped.num_bytes and offset < dropped.start:
            data = data[: dropped.start - offset]
        if not data:
            return num_bytes
        offset, num_bytes = apply(dest, state.path, offset, data), num_bytes + len(data)
        if offset >= state.size:
            return num_bytes


def _there(data: bytes | None, path: str) -> bytes:
    if data is None:
        raise FileNotFoundError(2, "is not there, or cannot be read", path)
    return data


def _is_same(path: Path, state: FileState) -> bool:
    """Whether the copy is up to date, without a look at the bytes.

    Not where it was made so early that the source may have been replaced after it within the same tick of its clock.
    """
    try:
        found = path.lstat()
    except OSError:
        return False
    is_settled = found.st_ctime_ns - state.mtime_ns > _SETTLED_NS
    return is_settled and found.st_mtime_ns == state.mtime_ns and found.st_size == state.size


def _begin_at(dest: Path, path: str) -> int:
    """How much the copy has; it is made if it is missing."""
    try:
        found = os.lstat(dest / path)
    except OSError:
        return apply(dest, path, 0, b"")
    return found.st_size if stat.S_ISREG(found.st_mode) else apply(dest, path, 0, b"")


def _size(path: Path) -> int:
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0
