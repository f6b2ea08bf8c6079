"""Commands that run on the login node: argument vectors, no shell, bounded in time and in what they print.

Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gangline.bridge.environ import extend_by_login, fetch_login_environ

__all__ = ["Commands", "Ended"]

NOT_FOUND, NOT_EXECUTABLE = 127, 126
_MOST_PRINTED_BYTES = 30 << 20
_BLOCK_BYTES = 1 << 16
_LOOK_S = 0.2
_LINGER_S = 1.0
"""How long output of a command is waited for after it has ended: what it left behind may hold the pipes."""
_MOST_AT_ONCE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a command ended."""

    rc: int | None
    """None: it took longer than it may, and was killed. 127: there is no such command."""
    out: bytes = b""
    err: bytes = b""


class Commands:
    """Runs commands, several at a time.

    Args:
        environ: what they get.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = dict(environ)
        self._extended = False
        self._lock = threading.RLock()  # a signal may come while it is held
        self._login_lock = threading.Lock()
        self._places = threading.BoundedSemaphore(_MOST_AT_ONCE)
        self._live: set[subprocess.Popen[bytes]] = set()
        self._is_closed = False

    def run(
        self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 60.0, env: Mapping[str, str] | None = None
    ) -> Ended:
        """Run a command to its end. A command that is not on the path is also looked for where a login shell does."""
        with self._places:
            environ = self._environ
            ended = self._run_once(argv, stdin, timeout_s, {**environ, **(env or {})})
            if ended.rc == NOT_FOUND and "/" not in argv[0] and (extended := self._extend()) is not environ:
                ended = self._run_once(argv, stdin, timeout_s, {**extended, **(env or {})})
            return ended

    def close(self) -> None:
        """End what runs, and start nothing more."""
        with self._lock:
            self._is_closed = True
            live = list(self._live)
        for process in live:
            _signal(process, signal.SIGTERM)
        deadline = time.monotonic() + _LINGER_S
        for process in live:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
            _signal(process, signal.SIGKILL)

    def find(self, name: str) -> str | None:
        """The path of a command; None: it is nowhere that commands are looked for."""
        for environ in (self._environ, self._extend()):
            with contextlib.suppress(FileNotFoundError):
                return _found([name], environ)[0]
        return None

    def _extend(self) -> dict[str, str]:
        """The environment with the places of a login shell, which is asked once."""
        with self._login_lock:
            if not self._extended:
                self._environ = extend_by_login(self._environ, fetch_login_environ())
                self._extended = True
            return self._environ

    def _run_once(self, argv: Sequence[str], stdin: bytes, timeout_s: float, environ: Mapping[str, str]) -> Ended:
        try:
            process = self._start(argv, environ)
        except FileNotFoundError as error:
            return Ended(rc=NOT_FOUND, err=f"{argv[0]}: command not found: {error.strerror}\n".encode())
        except (OSError, ValueError) as error:
            return Ended(rc=NOT_EXECUTABLE, err=f"{argv[0]}: {error}\n".encode())
        try:
            return _Talk(process, stdin, time.monotonic() + timeout_s).finish()
        finally:
            if process.poll() is None:
                _signal(process, signal.SIGKILL)
            process.wait()
            with self._lock:
                self._live.discard(process)

    def _start(self, argv: Sequence[str], environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._is_closed:
                raise OSError("the bridge is ending")
            pipe = subprocess.PIPE
            process = subprocess.Popen(
                _found(argv, environ), stdin=pipe, stdout=pipe, stderr=pipe, env=environ, start_new_session=True
            )
            self._live.add(process)
            return process


def _found(argv: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """With the path of the command: Popen would look along the path of this process."""
    if "/" in argv[0]:
        return list(argv)
    for folder in environ.get("PATH", "").split(":"):
        path = f"{folder or '.'}/{argv[0]}"
        if os.access(path, os.X_OK) and not os.path.isdir(path):
            return [path, *argv[1:]]
    raise FileNotFoundError(2, f"it is in no folder of {environ.get('PATH', '')}")


@dataclass(slots=True)
class _Talk:
    """Feeds one process and hears it out."""

    process: subprocess.Popen[bytes]
    stdin: bytes
    deadline: float
    heard: dict[int, bytearray] = field(default_factory=dict)

    def finish(self) -> Ended:
        streams = (self.process.stdin, self.process.stdout, self.process.stderr)
        stdin, out, err = (stream.fileno() for stream in streams if stream is not None)
        self.heard = {out: bytearray(), err: bytearray()}
        with selectors.DefaultSelector() as selector, contextlib.ExitStack() as closing:
            for stream in streams:
                if stream is not None:
                    closing.callback(_close, stream)
            os.set_blocking(stdin, False)
            selector.register(stdin, selectors.EVENT_WRITE)
            selector.register(out, selectors.EVENT_READ)
            selector.register(err, selectors.EVENT_READ)
            in_time = self._listen(selector, stdin)
        printed = {"out": bytes(self.heard[out]), "err": bytes(self.heard[err])}
        return Ended(rc=self._wait() if in_time else None, **printed)

    def _listen(self, selector: selectors.BaseSelector, stdin: int) -> bool:
        """Until both outputs are closed, or nobody is left who would; False: the time is up."""
        rest = memoryview(self.stdin)
        linger_until: float | None = None
        while selector.get_map():
            now = time.monotonic()
            if now >= self.deadline:
                return False
            if linger_until is None and self.process.poll() is not None:
                linger_until = now + _LINGER_S
            if linger_until is not None and now >= linger_until:
                return True
            for key, _ in selector.select(min(_LOOK_S, self.deadline - now)):
                if key.fd == stdin:
                    rest = _feed(stdin, rest)
                    if not rest:
                        selector.unregister(stdin)
                        _close(self.process.stdin)
                elif not self._hear(key.fd):
                    selector.unregister(key.fd)
        return True

    def _hear(self, descriptor: int) -> bool:
        data = os.read(descriptor, _BLOCK_BYTES)
        heard = self.heard[descriptor]
        if len(heard) + len(data) > _MOST_PRINTED_BYTES:
            raise OverflowError(f"the command printed more than {_MOST_PRINTED_BYTES >> 20} MiB")
        heard += data
        return bool(data)

    def _wait(self) -> int | None:
        try:
            return self.process.wait(max(0.0, self.deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return None


def _feed(descriptor: int, rest: memoryview) -> memoryview:
    try:
        return rest[os.write(descriptor, rest[:_BLOCK_BYTES]) :] if rest else rest
    except BlockingIOError:
        return rest
    except BrokenPipeError:  # it does not read what it is given
        return rest[:0]


def _close(stream: object) -> None:
    with contextlib.suppress(OSError):
        stream.close()  # type: ignore[attr-defined]


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    """To all of the group: it is the session that the command leads."""
    if process.returncode is None:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, number)
