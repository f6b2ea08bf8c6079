"""Where one process writes its records: one JSON line and one `write` each.

A line is in the page cache when the call returns, so that a kill -9 of the rank loses nothing. Trouble with the disk
never reaches training: lines wait in memory, are tried again every second, and what could not be kept is counted.

Standard library only.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import fcntl
import json
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import SupportsFloat

from gangline.rundir.layout import RunDir
from gangline.training.context import Context

__all__ = ["RecordWriter", "encode", "say"]

_WAITING_BYTES = 4 << 20
_RETRY_S = 1.0
_MOST_WARNINGS = 100
_LARGEST_INT = 2**63
_HIGH_DESCRIPTOR = 512
"""Code that closes descriptors and opens others gets low numbers: a high one fails then, and is nobody else's file."""
_PLAIN = frozenset({int, float})
_REFUSALS = (TypeError, ValueError, RuntimeError, OverflowError, AttributeError, ArithmeticError)
encode = json.JSONEncoder(check_circular=False, separators=(",", ":")).encode
_time = time.time


def say(text: str) -> None:
    """One line for people, in the rank's log. A closed stderr is no reason to stop training."""
    try:
        sys.stderr.write(f"gangline: {text}\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        return


class RecordWriter:
    """Appends records to `metrics/rank-NNNNN.jsonl`. Never raises; safe for threads.

    Args:
        path: None: there is no run directory, and only warnings are said.
        attempt: noted on each line.
    """

    def __init__(self, path: Path | None, *, attempt: int) -> None:
        self.path = path
        self.lost = 0
        """Records that could not be kept."""
        self._prefix = f',"a":{attempt},"t":'
        self._descriptor = -1
        self._direct = False  # lines go straight to the descriptor; otherwise through `_waiting`
        self._torn = False
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._retry_at = 0.0
        self._told: set[str] = set()
        self._lock = threading.RLock()
        if path is not None:
            atexit.register(self.close)

    @classmethod
    def for_context(cls, context: Context) -> RecordWriter:
        """The writer of one rank."""
        path = RunDir(context.run_dir).metrics(context.rank) if context.run_dir is not None else None
        return cls(path, attempt=context.attempt)

    def metrics(self, metrics: Mapping[str, SupportsFloat], step: int | None) -> None:
        """Record one `m` line."""
        try:
            plain = _PLAIN.issuperset(map(type, metrics.values()))
            values = encode(metrics if plain else self._plain_values(metrics))
        except _REFUSALS:
            values = encode(self._plain_values(metrics))
        number = step if type(step) is int else self.whole(step, "step")
        self._write(f'{{"k":"m"{self._prefix}{_time()},"s":{number},"v":{values}}}\n'.encode())

    def add(self, kind: str, body: str) -> None:
        """Record one line of another kind; `body` is JSON without its braces."""
        self._write(f'{{"k":"{kind}"{self._prefix}{_time()},{body}}}\n'.encode())

    def add_keys(self, kind: str, **keys: object) -> None:
        """The same from values."""
        self.add(kind, encode(keys)[1:-1])

    def whole(self, value: object, name: str) -> str:
        """A whole number as JSON; `null` for None and, with a warning, for what is none."""
        if value is None:
            return "null"
        number = _plain_number(value)
        if number is None or number != number or abs(number) >= _LARGEST_INT or number != int(number):  # noqa: PLR0124 - NaN
            self.warn(f"`{name}` has to be a whole number, not {type(value).__name__}; it was left out")
            return "null"
        return str(int(number))

    def warn(self, text: str) -> None:
        """Say and record a warning, once per text."""
        if text in self._told or len(self._told) >= _MOST_WARNINGS:
            return
        self._told.add(text)
        say(text)
        self.add_keys("w", text=text)

    def close(self) -> None:
        """Try a last time to write what waits, and let go of the file; a later call opens it again."""
        with self._lock:
            if self._waiting:
                self._retry_at = 0.0
                self._write_waiting()
            self._direct = False
            self._let_go()

    def abandon(self) -> None:
        """In a forked child: let go without writing what the parent will write, whoever holds the lock."""
        self._waiting = deque()
        self._lock = threading.RLock()
        self._direct = False
        self._let_go()

    def _write(self, line: bytes) -> None:
        if not self._direct:
            self._keep(line)
            return
        try:
            written = os.write(self._descriptor, line)
        except OSError as error:
            self._stumble(error)
            self._keep(line)
        else:
            if written != len(line):
                self._torn = True
                self._stumble(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
                self._keep(line)

    def _keep(self, line: bytes) -> None:
        """Queue a line, and write the queue where it is time to try."""
        if self.path is None:
            return
        with self._lock:
            self._waiting.append(line)
            self._waiting_bytes += len(line)
            while self._waiting_bytes > _WAITING_BYTES:
                self._waiting_bytes -= len(self._waiting.popleft())
                self.lost += 1
            if time.monotonic() >= self._retry_at:
                self._write_waiting()

    def _write_waiting(self) -> None:
        try:
            if self._descriptor < 0:
                self._open()
            while self._waiting:
                self._write_first()
        except OSError as error:
            self._stumble(error)
            return
        self._direct = True
        if self.lost:
            lost, self.lost = self.lost, 0
            self.add_keys("w", text=f"{lost} records were lost while the run directory could not be written")

    def _write_first(self) -> None:
        line = b"\n" + self._waiting[0] if self._torn else self._waiting[0]
        written = os.write(self._descriptor, line)
        self._torn = written < len(line)
        if self._torn:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._waiting_bytes -= len(self._waiting.popleft())

    def _open(self) -> None:
        assert self.path is not None  # noqa: S101 - `_keep` has looked
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        with contextlib.suppress(OSError):  # not that many descriptors are allowed here
            low, self._descriptor = (
                self._descriptor,
                fcntl.fcntl(self._descriptor, fcntl.F_DUPFD_CLOEXEC, _HIGH_DESCRIPTOR),
            )
            os.close(low)
        size = os.fstat(self._descriptor).st_size
        self._torn = size > 0 and os.pread(self._descriptor, 1, size - 1) != b"\n"

    def _stumble(self, error: OSError) -> None:
        """Writing failed: wait a while, and open the file anew then."""
        with self._lock:
            self._direct = False
            self._retry_at = time.monotonic() + _RETRY_S
            if error.errno == errno.EBADF:  # somebody closed it; the number may be theirs by now
                self._descriptor = -1
            self._let_go()
        text = f"cannot write {self.path} ({error.strerror}); training goes on, records wait in memory"
        if text not in self._told:
            self._told.add(text)
            say(text)

    def _let_go(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1

    def _plain_values(self, metrics: Mapping[str, SupportsFloat]) -> dict[str, int | float]:
        try:
            items = list(metrics.items())
        except _REFUSALS:
            self.warn(
                f"gangline.log takes a mapping of names to numbers, not {type(metrics).__name__}; it was left out"
            )
            return {}
        values: dict[str, int | float] = {}
        for name, value in items:
            number = _plain_number(value)
            if number is None:
                kind = type(value).__name__
                self.warn(f"gangline.log left out `{name}`: {kind} is not a number (one with `.item()` would do)")
            else:
                values[str(name)] = number
        return values


def _plain_number(value: object) -> int | float | None:
    """A Python number, or None where the value stands for none."""
    if isinstance(value, str | bytes | bytearray):
        return None
    try:
        item = getattr(value, "item", None)
        if item is not None:
            value = item()
        if isinstance(value, int):
            return int(value) if abs(value) < _LARGEST_INT else float(value)
        return float(value) if isinstance(value, SupportsFloat) else None
    except _REFUSALS:
        return None
