"""Search the logs of a run for lines that match a regular expression.

The work is ripgrep's, in a process of its own: its expressions take linear time whatever they are, and what takes long
can be ended. Where it is not installed, `server/scan.py` does the same, slower. It tells where lines match; they are
read here, with what was dropped from a log left out.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from gangline.domain.errors import InvalidRequest
from gangline.rundir.dropped import Dropped, read_dropped
from gangline.rundir.layout import AttemptDir
from gangline.server.hits import Place, read_hits
from gangline.server.ranklogs import Begin, find_begin, find_end
from gangline.wire.views import LogHit, SearchEnd

__all__ = ["LogSearch", "SearchQuery", "find_program"]

_BATCH_BYTES = 1 << 30
_BATCH_LOGS = 256
_BLOCK_BYTES = 1 << 18
_FLAGS = (
    *("--no-config", "--color=never", "--no-messages", "--text", "--encoding=none", "--mmap"),
    *("--null", "--with-filename", "--byte-offset", "--column", "--no-line-number"),
    "--max-columns=1",  # where the line is, not what it says
)
_WENT_WRONG = 2
"""Exit code of grep and its kin."""
_MOST_AT_ONCE = threading.BoundedSemaphore(2)
"""Searches that run at the same time; others wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchQuery:
    """What is looked for."""

    pattern: str
    """In ripgrep's syntax: no look-around, no back references."""
    ignore_case: bool = False
    fixed: bool = False
    """The pattern is plain text."""
    context: int = 0
    """Lines shown before and after each hit."""
    since: float | None = None
    until: float | None = None
    limit: int = 1000
    """Most hits."""
    timeout_s: float = 120.0


@dataclass(slots=True, kw_only=True)
class _Log:
    attempt: AttemptDir
    rank: int
    begin: int
    end: int
    dropped: Dropped
    places: list[Place] = field(default_factory=list)

    @property
    def path(self) -> Path:
        return self.attempt.log(self.rank)


class LogSearch:
    """One search; `batches` gives hits by attempt, rank and offset, and last what was searched.

    Args:
        logs: attempt and rank of each log, in the order of the answer.
    """

    def __init__(self, logs: Sequence[tuple[AttemptDir, int]], query: SearchQuery) -> None:
        self._query = query
        self._logs = [_open(attempt, rank, query) for attempt, rank in logs]
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._deadline = time.monotonic() + query.timeout_s
        self._closed = False
        self._cut = False

    def check(self) -> None:
        """Try the pattern on nothing.

        Raises:
            InvalidRequest: it is no regular expression.
        """
        list(self._run(["-"], feed=None))

    def batches(self) -> Iterator[list[LogHit | SearchEnd]]:
        """Hits as they are found, at most `limit`; the last item says what was searched."""
        began, count, more = time.monotonic(), 0, False
        num_bytes = 0
        for batch in _batches([log for log in self._logs if log.end > log.begin]):
            with _MOST_AT_ONCE:
                self._find(batch)
            for log in batch:
                num_bytes += log.end - log.begin - max(0, log.dropped.num_bytes)
                room = self._query.limit - count
                hits = read_hits(log.attempt, log.rank, log.places[:room], context=self._query.context)
                more = more or len(log.places) > room
                count += len(hits)
                if hits:
                    yield list(hits)
            if more or self._cut:
                break
        took_s = time.monotonic() - began
        end: SearchEnd = {
            "hits": count,
            "more": more,
            "timed_out": self._cut,
            "logs": len(self._logs),
            "bytes": num_bytes,
            "seconds": round(took_s, 3),
        }
        yield [end]

    def close(self) -> None:
        """End what still runs; from any thread."""
        self._closed = True
        for process in list(self._processes):
            process.kill()

    def _find(self, batch: Sequence[_Log]) -> None:
        whole = {str(log.path): log for log in batch if not log.dropped.num_bytes}
        if whole:
            self._note(whole, self._run(list(whole), feed=None))
        for log in batch:
            if log.dropped.num_bytes:
                self._note({"<stdin>": log}, self._run(["-"], feed=log))
            log.dropped = read_dropped(log.path)  # whatever was dropped meanwhile is gone
            log.places = [place for place in log.places if not log.dropped.holds(place.start)]

    def _note(self, logs: dict[str, _Log], found: Iterator[tuple[str, int, int]]) -> None:
        for name, column, offset in found:
            log = logs[name]
            start = _real_offset(log, offset + column - 1) if name == "<stdin>" else offset + column - 1
            begin = _real_offset(log, offset) if name == "<stdin>" else offset
            if log.begin <= start < log.end and len(log.places) <= self._query.limit:
                log.places.append(Place(begin, start))

    def _run(self, names: list[str], *, feed: _Log | None) -> Iterator[tuple[str, int, int]]:
        """File, column and offset of each line that matches."""
        if self._closed:
            return
        source = subprocess.PIPE if feed is not None else subprocess.DEVNULL
        process = subprocess.Popen(
            [*_command(self._query), *names], stdin=source, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self._processes.add(process)
        timer = threading.Timer(max(0.0, self._deadline - time.monotonic()), self._expire, [process])
        timer.start()
        feeder = threading.Thread(target=_feed, args=(feed, process.stdin))
        try:
            if feed is not None:
                feeder.start()
            assert process.stdout is not None  # noqa: S101 - asked for above
            yield from map(_parse, process.stdout)
            said = _rest(process)
            if process.returncode == _WENT_WRONG:
                self._refuse(said.decode("utf-8", "replace"))
        finally:
            timer.cancel()
            process.kill()
            if feed is not None:
                feeder.join()
            process.wait()
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
            self._processes.discard(process)

    def _expire(self, process: subprocess.Popen[bytes]) -> None:
        self._cut = True
        process.kill()

    def _refuse(self, said: str) -> None:
        """What the program complains of; a log that went away while it was searched is no complaint.

        Raises:
            InvalidRequest
        """
        if "regex" in said or "pattern" in said or "look-" in said:
            reason = said.rpartition("error:")[2].strip().partition("\n")[0]
            raise InvalidRequest(
                f"`{self._query.pattern[:200]}` cannot be searched for",
                why=reason,
                fix="Write an expression without look-around and back references, or search for plain text (--fixed).",
            )


def find_program() -> list[str]:
    """Ripgrep beside this interpreter, or on the path; else our own."""
    beside = Path(sys.executable).with_name("rg")
    found = str(beside) if beside.is_file() else shutil.which("rg")
    if found is None:
        return [sys.executable, "-I", str(Path(__file__).with_name("scan.py"))]
    return [found, *_FLAGS, f"--threads={_threads()}"]


def _threads() -> int:
    return min(8, os.cpu_count() or 1)


def _command(query: SearchQuery) -> list[str]:
    flags = ["-i"] * query.ignore_case + ["-F"] * query.fixed
    bounded = query.since is None and query.until is None
    most = query.limit + 1 if bounded else 1 << 30
    return [*find_program(), *flags, "-m", str(most), "-e", query.pattern, "--"]


def _open(attempt: AttemptDir, rank: int, query: SearchQuery) -> _Log:
    end = find_end(attempt, rank, query.until)
    begin = find_begin(attempt, rank, Begin(since=query.since))
    return _Log(attempt=attempt, rank=rank, begin=begin, end=end, dropped=read_dropped(attempt.log(rank)))


def _batches(logs: Sequence[_Log]) -> Iterator[list[_Log]]:
    batch: list[_Log] = []
    size = 0
    for log in logs:
        if batch and (size + log.end > _BATCH_BYTES or len(batch) >= _BATCH_LOGS):
            yield batch
            batch, size = [], 0
        batch.append(log)
        size += log.end - log.dropped.num_bytes
    if batch:
        yield batch


def _feed(log: _Log, pipe: IO[bytes]) -> None:
    """The two parts of a log whose middle is gone, with a line end between them."""
    with suppress(BrokenPipeError, OSError), pipe, log.path.open("rb") as file:
        _copy(file, pipe, log.dropped.start)
        pipe.write(b"\n")
        file.seek(log.dropped.end)
        _copy(file, pipe, log.end - log.dropped.end)


def _copy(file: IO[bytes], pipe: IO[bytes], num_bytes: int) -> None:
    while num_bytes > 0 and (data := file.read(min(_BLOCK_BYTES, num_bytes))):
        pipe.write(data)
        num_bytes -= len(data)


def _real_offset(log: _Log, place: int) -> int:
    """From an offset in what `_feed` writes to the offset in the log."""
    return place if place <= log.dropped.start else place - log.dropped.start - 1 + log.dropped.end


def _parse(line: bytes) -> tuple[str, int, int]:
    name, _, rest = line.partition(b"\0")
    column, offset, _ = rest.split(b":", 2)
    return name.decode("utf-8", "surrogateescape"), int(column), int(offset)


def _rest(process: subprocess.Popen[bytes]) -> bytes:
    said = process.stderr.read() if process.stderr is not None else b""
    process.wait()
    return said
