"""The logs of all ranks as the log of one task: whole lines, each with its rank, as soon as they are there."""

from __future__ import annotations

import fcntl
import struct
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .compat import decorate_line

__all__ = ["ContainerLog", "TaskLog"]

_SAVE_S = 0.5
_SAVE_SHARE = 0.1
"""Most of the time that storing the log, which is stored as a whole, may take."""
_MOST_BYTES = 64 << 20
_CLOSE_PATIENCE_S = 60.0
"""With a store that does not answer; the run's own folder has the logs, too."""
_LONGEST_LINE = 64 << 10
_MOST_AT_ONCE = 2000
"""Lines of one piece that are printed; all are stored."""
_READER_PATIENCE_S = 1.0
_READER_LOOK_S = 0.0005


class _Lines:
    """Makes whole lines of the pieces of each rank's log."""

    def __init__(self) -> None:
        self._pending: dict[int, str] = {}

    def cut(self, rank: int, text: str) -> list[str]:
        """The lines that have become whole."""
        *lines, rest = (self._pending.pop(rank, "") + text).replace("\r\n", "\n").replace("\r", "\n").split("\n")
        if len(rest) > _LONGEST_LINE:
            lines.append(rest)
        elif rest:
            self._pending[rank] = rest
        return [f"[rank {rank}] {line}" for line in lines]

    def rest(self) -> list[str]:
        """What has no line end."""
        pending, self._pending = self._pending, {}
        return [f"[rank {rank}] {rest}" for rank, rest in sorted(pending.items())]


class ContainerLog:
    """Prints lines, in a container whose output becomes the log of the task: Metaflow's own commands see to that."""

    def __init__(self) -> None:
        self._lines = _Lines()

    def take(self, rank: int, text: str) -> None:
        """A piece of a rank's log."""
        self._print(self._lines.cut(rank, text))

    def say(self, text: str) -> None:
        """A line of Gangline's own."""
        self._print([f"[gangline] {line}" for line in text.splitlines()])

    def close(self) -> None:
        """Print what has no line end."""
        self._print(self._lines.rest())

    def _print(self, lines: Sequence[str]) -> None:
        if lines:
            sys.stdout.write("".join(f"{line}\n" for line in lines))
            sys.stdout.flush()


class TaskLog:
    """Passes lines on to Metaflow's runtime, and stores them with the task.

    Args:
        save: stores the whole of standard output, which is given as a path.
        where: says where the whole log is, should this one become too long.
    """

    def __init__(self, save: Callable[[Path], None], *, where: str) -> None:
        self._save = save
        self._where = where
        self._file = tempfile.NamedTemporaryFile(prefix="gangline-task-", suffix=".log")  # noqa: SIM115 - until close
        self._size = 0
        self._unwritten: list[bytes] = []
        """For the thread that stores: a store that hangs holds up nobody else."""
        self._is_over = False
        self._lines = _Lines()
        self._changed = threading.Event()
        self._left = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._store, name="task-log", daemon=True)
        self._thread.start()

    def take(self, rank: int, text: str) -> None:
        """A piece of a rank's log."""
        lines = self._lines.cut(rank, text)
        left_out = max(0, len(lines) - _MOST_AT_ONCE)
        told = [(line, number >= left_out) for number, line in enumerate(lines)]
        if left_out:
            note = f"[gangline] {left_out} lines of rank {rank} are left out here; {self._where}"
            told.insert(left_out, (note, True))
        self._pass_on(told)

    def say(self, text: str) -> None:
        """A line of Gangline's own."""
        self._pass_on([(f"[gangline] {line}", True) for line in text.splitlines()])

    def close(self) -> None:
        """Pass on what has no line end, and store all."""
        self._is_over = True
        self._pass_on([(rest, True) for rest in self._lines.rest()])
        self._left.set()
        self._changed.set()
        self._thread.join(_CLOSE_PATIENCE_S)
        if self._thread.is_alive():
            self._complain(f"its store has not answered for {_CLOSE_PATIENCE_S:g} s")
        else:
            self._file.close()

    def _pass_on(self, lines: Sequence[tuple[str, bool]]) -> None:
        """Store the lines, and print those that are to be printed."""
        decorated = [(decorate_line(line) + b"\n", is_shown) for line, is_shown in lines]
        self._keep([data for data, _ in decorated])
        for data, is_shown in decorated:
            if is_shown:
                if not self._is_over:
                    _await_reader()
                sys.stdout.buffer.write(data)
                sys.stdout.buffer.flush()

    def _keep(self, lines: Sequence[bytes]) -> None:
        if self._size > _MOST_BYTES or not lines:
            return
        data = b"".join(lines)
        self._size += len(data)
        if self._size > _MOST_BYTES:
            data += decorate_line(f"[gangline] The log goes on where this one ends: {self._where}") + b"\n"
        with self._lock:
            self._unwritten.append(data)
        self._changed.set()

    def _store(self) -> None:
        is_last = False
        while not is_last:
            self._changed.wait()
            is_last = self._left.is_set()
            self._changed.clear()
            began = time.monotonic()
            self._try_save()
            pause_s = max(_SAVE_S, (time.monotonic() - began) / _SAVE_SHARE)
            if not is_last:
                self._left.wait(pause_s)
                if self._left.is_set():
                    self._changed.set()

    def _try_save(self) -> None:
        with self._lock:
            data, self._unwritten = b"".join(self._unwritten), []
        try:
            self._file.write(data)
            self._file.flush()
            self._save(Path(self._file.name))
        except Exception as error:  # noqa: BLE001 - whatever a store raises: a log never decides how a task ends
            self._complain(error)

    def _complain(self, error: Any) -> None:
        sys.stderr.write(f"The log of this task could not be stored ({error}); {self._where} has it.\n")


def _await_reader() -> None:
    """Let Metaflow's runtime read what was written before.

    It takes one line whenever the pipe has something to read, and keeps the rest of what it got in a buffer that it
    does not look into again: of two lines that come together, it would show the second when a third one comes.
    """
    deadline = time.monotonic() + _READER_PATIENCE_S
    try:
        while struct.unpack("i", fcntl.ioctl(sys.stdout.fileno(), termios.FIONREAD, b"\0\0\0\0"))[0]:
            if time.monotonic() > deadline:
                return
            time.sleep(_READER_LOOK_S)
    except OSError:  # no pipe
        return
