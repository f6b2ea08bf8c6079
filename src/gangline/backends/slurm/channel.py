"""One started bridge: requests of many threads go out, answers come back in any order.

It notices by itself that nobody answers any more: pings go out when it is quiet, and one that stays without an answer
ends the connection.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from typing import IO, Any

from gangline.bridge.frames import BrokenFrame, Frame, FrameReader, FrameWriter
from gangline.domain.errors import Transient

__all__ = ["Channel", "Started"]

PING_EVERY_S = 10.0
PING_PATIENCE_S = 20.0
_LOOK_S = 1.0
_CLOSE_PATIENCE_S = 3.0
_MOST_SAID_BYTES = 1 << 14


class Started:
    """A process that carries a bridge: `ssh`, or the bridge itself.

    Args:
        process: with pipes for stdin and stdout, unbuffered, in a session of its own.
        said: what its stderr goes to.
    """

    def __init__(self, process: subprocess.Popen[bytes], said: IO[bytes]) -> None:
        assert process.stdin is not None  # noqa: S101 - for the type checker
        assert process.stdout is not None  # noqa: S101
        self._process, self._said = process, said
        self._in, self._out = process.stdin, process.stdout
        self.pid = process.pid

    def read(self, num_bytes: int, patience_s: float) -> bytes | None:
        """Some bytes of the far side, b"" at its end; None: nothing within the patience."""
        ready, _, _ = select.select([self._out], [], [], max(0.0, patience_s))
        return os.read(self._out.fileno(), num_bytes) if ready else None

    def write(self, data: bytes | memoryview) -> int:
        """Send some of the bytes; how many."""
        return os.write(self._in.fileno(), data)

    def write_all(self, data: bytes) -> None:
        """Send all of the bytes."""
        rest = memoryview(data)
        while rest:
            rest = rest[self.write(rest) :]

    def said(self) -> str:
        """The end of what it has written to stderr."""
        size = self._said.seek(0, os.SEEK_END)
        self._said.seek(max(0, size - _MOST_SAID_BYTES))
        return self._said.read().decode(errors="replace")

    def wait(self, patience_s: float) -> int | None:
        """Its exit code; None: it goes on."""
        try:
            return self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            return None

    def end(self, patience_s: float = _CLOSE_PATIENCE_S) -> None:
        """Close its stdin, by which a bridge ends; after the patience kill it."""
        with contextlib.suppress(OSError):
            self._in.close()
        if self.wait(patience_s) is None:
            self.kill()
            self._process.wait()

    def kill(self) -> None:
        """End it at once, with what it has started itself (jump hosts)."""
        if self._process.returncode is None:
            with contextlib.suppress(OSError):
                os.killpg(self.pid, signal.SIGKILL)

    def release(self) -> None:
        """Give back its descriptors, once nobody reads or writes any more."""
        for stream in (self._in, self._out, self._said):
            with contextlib.suppress(OSError):
                stream.close()


class _Waiting:
    """A request that has no answer yet."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.frame: Frame | None = None


class Channel:
    """Requests and answers over a started bridge.

    Args:
        started: whose bootstrap is over.
        reader: which may have read on already.
        name: for messages.
        ping_every_s, ping_patience_s: together, how long a dead connection stays unnoticed.
    """

    def __init__(
        self,
        started: Started,
        reader: Callable[[Callable[[int], bytes]], FrameReader],
        *,
        name: str,
        ping_every_s: float = PING_EVERY_S,
        ping_patience_s: float = PING_PATIENCE_S,
    ) -> None:
        self._started = started
        self._name = name
        self._ping_every_s, self._ping_patience_s = ping_every_s, ping_patience_s
        self._frames = reader(self._read)
        self._writer = FrameWriter(started.write)
        self._lock = threading.Lock()
        self._waiting: dict[int, _Waiting] = {}
        self._next_id = 1
        self._heard_at = time.monotonic()
        self._unanswered_since: float | None = None
        self._ended = threading.Event()
        self._why = ""
        self._threads = [
            threading.Thread(target=work, name=f"bridge-{name}-{work.__name__.strip('_')}", daemon=True)
            for work in (self._listen, self._ping)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def is_open(self) -> bool:
        return not self._ended.is_set()

    def ask(self, do: str, asked: Mapping[str, Any], payload: bytes, patience_s: float) -> Frame:
        """The answer to one request.

        Raises:
            Transient: the connection was lost, or the answer does not come within the patience.
        """
        return self.collect(self.send(do, asked, payload), patience_s)

    def send(self, do: str, asked: Mapping[str, Any], payload: bytes = b"") -> int:
        """Send a request; its number, for `collect`.

        Raises:
            Transient: the connection was lost.
        """
        with self._lock:
            if self._ended.is_set():
                raise self._lost(self._why)
            number, self._next_id = self._next_id, self._next_id + 1
            self._waiting[number] = _Waiting()
        try:
            self._writer.send({"id": number, "do": do, **asked}, payload)
        except (OSError, ValueError) as error:
            self.forget(number)
            self._end(str(error))
            raise self._lost(self._why) from error
        return number

    def collect(self, number: int, patience_s: float) -> Frame:
        """Wait for the answer to a request that was sent; see `ask`."""
        waiting = self._waiting[number]
        in_time = waiting.done.wait(patience_s)
        self.forget(number)
        if waiting.frame is not None:
            return waiting.frame
        if in_time or self._ended.is_set():
            raise self._lost(self._why)
        raise Transient(
            f"The bridge of {self._name} gave no answer in {patience_s:.0f} s",
            why="Something hangs there: a file system, or Slurm",
            fix="It is tried again by itself.",
        )

    def forget(self, number: int) -> None:
        """The answer to this request is waited for no more."""
        with self._lock:
            self._waiting.pop(number, None)

    def close(self) -> None:
        """End the bridge, and what it runs."""
        self._end("it was closed")
        self._started.end()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(_CLOSE_PATIENCE_S)
        if not any(thread.is_alive() for thread in self._threads):
            self._started.release()

    def _lost(self, why: str) -> Transient:
        return Transient(f"The connection to {self._name} was lost", why=why, fix="It is opened again by itself.")

    def _listen(self) -> None:
        why = "the bridge there has ended"
        try:
            while (frame := self._frames.next()) is not None:
                with self._lock:
                    waiting = self._waiting.get(frame.id)
                if waiting is not None:
                    waiting.frame = frame
                    waiting.done.set()
        except (BrokenFrame, OSError, ValueError, TimeoutError) as error:
            why = str(error)
        said = "" if self._ended.is_set() else self._started.said().strip().rpartition("\n")[2][:300]
        self._end(f"{why}: {said}" if said else why)
        self._started.kill()

    def _read(self, num_bytes: int) -> bytes:
        """For the reader: waits as long as the other side is known to live."""
        while True:
            data = self._started.read(num_bytes, _LOOK_S)
            if data is not None:
                self._heard_at, self._unanswered_since = time.monotonic(), None
                return data
            if self._ended.is_set():
                return b""
            since = self._unanswered_since
            if since is not None and time.monotonic() - since > self._ping_patience_s:
                raise TimeoutError(f"nothing was heard for {time.monotonic() - self._heard_at:.0f} s")

    def _ping(self) -> None:
        """May hang in the write, when nobody reads there any more; `_read` notices."""
        while not self._ended.wait(min(_LOOK_S, self._ping_every_s)):
            if time.monotonic() - self._heard_at < self._ping_every_s or self._unanswered_since is not None:
                continue
            self._unanswered_since = time.monotonic()
            try:
                self._writer.send({"id": 0, "do": "ping"})
            except (OSError, ValueError):
                return

    def _end(self, why: str) -> None:
        with self._lock:
            if not self._ended.is_set():
                self._why = why
                self._ended.set()
            for waiting in self._waiting.values():
                waiting.done.set()
