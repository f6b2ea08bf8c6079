"""The bridge of one pool, kept up: opened when it is needed, opened again when it was lost, one at a time.

Trouble with the connection is told to whoever asks, as `Transient` or `AuthFailed`, and decides nothing.
"""

from __future__ import annotations

import os
import random
import secrets
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gangline.agent.bundle import render_bundle
from gangline.backends.slurm.bootstrap import Bootstrap, render_command
from gangline.backends.slurm.channel import Channel, Started
from gangline.backends.slurm.link import Changes, Hello, Probed, Ran
from gangline.backends.slurm.ssh import classify, make_socket_folder, reach_of, render_environ
from gangline.backends.slurm.sshconfig import fetch_config, takes_any_key
from gangline.bridge.frames import BrokenFrame, Frame, FrameReader
from gangline.bridge.workfolder import upload_path
from gangline.domain.errors import AuthFailed, BackendError, HostKeyChanged, InvalidRequest, SpecInvalid, Transient
from gangline.domain.gang import Cleared
from gangline.domain.pool import PoolState, PoolStatus, SlurmPool
from gangline.rundir.confined import UnsafePath
from gangline.rundir.mirror import Gap

__all__ = ["Session"]

CONNECT_PATIENCE_S = 60.0
_FILES_PATIENCE_S = 120.0
_RUN_EXTRA_S = 30.0
_PIECE_BYTES = 1 << 19
_MOST_UNANSWERED = 4
_DIGESTS_AT_ONCE = 5000
_OWN_EXIT = 255
"""ssh's own exit code, where it was not the far command's."""


@dataclass(slots=True)
class _Backoff:
    """When to try again: after 1, 2, 4 … 60 s; where somebody has to log in, 30 … 600 s. With jitter."""

    tries: int = 0
    since: float = 0.0
    """Wall clock of the first error in a row."""
    not_before: float = 0.0
    error: BackendError | None = None
    socket_mark: object = None

    def note(self, error: BackendError, socket_mark: object) -> None:
        first_s, most_s = (30.0, 600.0) if isinstance(error, AuthFailed) else (1.0, 60.0)
        if type(error) is not type(self.error):
            self.tries = 0
        if self.error is None:
            self.since = time.time()
        delay_s = min(most_s, first_s * 2**self.tries) * random.uniform(0.5, 1.0)  # noqa: S311
        self.tries += 1
        self.not_before = time.monotonic() + delay_s
        self.error, self.socket_mark = error, socket_mark


class Session:
    """Implements `link.Link` for one pool.

    Args:
        pool: which says how it is reached.
        home: the server's state folder; the socket lies below it where its path is short enough.
        environ: of the processes that are started.
        bundle: the agents' zipapp; None: it is built.
        ping_every_s, ping_patience_s: see `Channel`.
    """

    def __init__(
        self,
        pool: SlurmPool,
        home: Path,
        *,
        environ: Mapping[str, str] = os.environ,
        bundle: bytes | None = None,
        ping_every_s: float = 10.0,
        ping_patience_s: float = 20.0,
    ) -> None:
        self.pool = pool
        self.reach = reach_of(pool, home)
        self._environ = environ
        self._bundle = bundle
        self._pings = {"ping_every_s": ping_every_s, "ping_patience_s": ping_patience_s}
        self._lock = threading.Lock()
        self._channel: Channel | None = None
        self._hello: Hello | None = None
        self._backoff = _Backoff()
        self._is_closed = False
        self._starting: Started | None = None

    @property
    def where(self) -> str:
        """For messages."""
        return f"pool `{self.pool.name}`" + (f" (`{self.reach.host}`)" if self.reach else "")

    def hello(self) -> Hello:
        """See `Link`."""
        self._open()
        assert self._hello is not None  # noqa: S101 - `_open` has set it
        return self._hello

    def state(self) -> PoolState:
        """See `Link`."""
        channel, backoff = self._channel, self._backoff
        if channel is not None and channel.is_open:
            return PoolState(status=PoolStatus.READY)
        if backoff.error is None:
            return PoolState(status=PoolStatus.UNTRIED)
        status = _status_of(backoff.error)
        return PoolState(
            status=status,
            text=str(backoff.error),
            brief=backoff.error.for_run,
            command=f"gangline pools login {self.pool.name}" if status is PoolStatus.LOGIN_NEEDED else "",
            since=backoff.since,
        )

    def retry(self) -> None:
        """Somebody asks by hand: the next call connects at once, whatever came before."""
        with self._lock:
            self._backoff = _Backoff()

    def close(self) -> None:
        """End the bridge; the session can not be used again."""
        self._is_closed = True
        starting = self._starting
        if starting is not None:
            starting.kill()
        with self._lock:
            channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 60.0) -> Ran:
        """See `Link`."""
        frame = self._ask(
            "run", {"argv": list(argv), "timeout_s": timeout_s}, stdin, patience_s=timeout_s + _RUN_EXTRA_S
        )
        cut = frame.header["out"]
        out, err = frame.payload[:cut], frame.payload[cut:]
        return Ran(rc=frame.header["rc"], out=out.decode(errors="replace"), err=err.decode(errors="replace"))

    def missing(self, digests: Sequence[str]) -> list[str]:
        """See `Link`."""
        found: list[str] = []
        for begin in range(0, len(digests), _DIGESTS_AT_ONCE):
            some = list(digests[begin : begin + _DIGESTS_AT_ONCE])
            found += self._ask("missing", {"digests": some}).header["digests"]
        return found

    def store(self, objects: Iterable[tuple[str, bytes]]) -> None:
        """See `Link`. Large ones go in pieces, and go on where they were broken off."""
        channel = self._open()
        unanswered: deque[int] = deque()
        try:
            for do, asked, payload in self._parcels(objects):
                unanswered.append(channel.send(do, asked, payload))
                if len(unanswered) >= _MOST_UNANSWERED:
                    self._heed(channel.collect(unanswered.popleft(), _FILES_PATIENCE_S))
            while unanswered:
                self._heed(channel.collect(unanswered.popleft(), _FILES_PATIENCE_S))
        finally:
            for number in unanswered:
                channel.forget(number)

    def write(self, path: str, data: bytes, *, mode: int = 0o600) -> None:
        """See `Link`."""
        self._ask("write", {"path": path, "mode": mode}, data)

    def append(self, path: str, offset: int, data: bytes) -> int:
        """See `Link`."""
        try:
            return int(self._ask("append", {"path": path, "offset": offset}, data).header["size"])
        except Gap as gap:
            raise Gap(path, offset, gap.size) from None

    def changes(self, runs: Sequence[str], since: object) -> Changes:
        """See `Link`."""
        header = self._ask("changes", {"runs": list(runs), "since": since}).header
        files = {
            run: [(path, size, mtime_ns, inode) for path, size, mtime_ns, inode in found]
            for run, found in header["files"].items()
        }
        alive = {run: (launch, at_ns) for run, (launch, at_ns) in header["alive"].items()}
        gone = frozenset(header["gone"])
        return Changes(since=header["since"], files=files, alive=alive, gone=gone, took_s=header["took_s"])

    def read(self, reads: Sequence[tuple[str, str, int, int]]) -> list[bytes | None]:
        """See `Link`."""
        frame = self._ask("read", {"reads": [list(one) for one in reads]})
        return list(_cut(frame.header["sizes"], frame.payload))

    def probe(self, folder: str) -> Probed:
        """See `Link`."""
        header = self._ask("probe", {"folder": folder}).header
        return Probed(**{key: header[key] for key in ("exists", "writable", "free_bytes", "why_not")})

    def checkpoints(self, folder: str) -> list[dict[str, Any]]:
        """See `Link`."""
        return list(self._ask("checkpoints", {"folder": folder}).header["checkpoints"])

    def clear(self, run: str, *, keep_checkpoints: bool) -> Cleared:
        """See `Link.clear`."""
        asked = {"run": run, "keep_checkpoints": keep_checkpoints}
        header = self._ask("clear", asked, patience_s=_FILES_PATIENCE_S).header
        return Cleared(kept=header["kept"], freed_bytes=int(header["freed_bytes"]), left=str(header["left"]))

    def tidy(self, agent: str, *, age_s: float) -> tuple[int, int]:
        """See `Link.tidy`."""
        header = self._ask("tidy", {"agent": agent, "age_s": age_s}, patience_s=_FILES_PATIENCE_S).header
        return int(header["files"]), int(header["freed_bytes"])

    def python(self, path: str | None) -> tuple[str, str]:
        """See `Link`."""
        header = self._ask("python", {"path": path}, patience_s=_FILES_PATIENCE_S).header
        return header["path"], header["version"]

    def _ask(
        self, do: str, asked: Mapping[str, Any], payload: bytes = b"", *, patience_s: float = _FILES_PATIENCE_S
    ) -> Frame:
        return self._heed(self._open().ask(do, asked, payload, patience_s))

    def _heed(self, frame: Frame) -> Frame:
        """The answer, or what went wrong there as an exception."""
        if frame.header.get("ok"):
            return frame
        raise _error_of(frame.header.get("error") or {}, self.where)

    def _parcels(self, objects: Iterable[tuple[str, bytes]]) -> Iterator[tuple[str, dict[str, Any], bytes]]:
        """Requests of about a piece each: several small contents, or a part of a large one."""
        batch: list[tuple[str, bytes]] = []
        size = 0
        for digest, data in objects:
            if len(data) > _PIECE_BYTES:
                yield from self._parts(digest, data)
                continue
            if size + len(data) > _PIECE_BYTES and batch:
                yield _store_request(batch)
                batch, size = [], 0
            batch.append((digest, data))
            size += len(data)
        if batch:
            yield _store_request(batch)

    def _parts(self, digest: str, data: bytes) -> Iterator[tuple[str, dict[str, Any], bytes]]:
        path = upload_path(digest)
        offset = min(self.append(path, 0, b""), len(data))
        while offset < len(data):
            part = data[offset : offset + _PIECE_BYTES]
            self.append(path, offset, part)
            offset += len(part)
        yield "adopt", {"digest": digest}, b""

    def _open(self) -> Channel:
        """The channel, opened if need be; of several threads one opens it, the others wait for what comes of it.

        Raises:
            Transient, AuthFailed: see `Link`.
        """
        channel = self._channel
        if channel is not None and channel.is_open:
            return channel
        with self._lock:
            if self._channel is not None and self._channel.is_open:
                return self._channel
            if self._is_closed:
                raise Transient(f"The bridge of {self.where} is closed")
            self._respect_backoff()
            if self._channel is not None:
                self._channel.close()
                self._channel = None
            try:
                self._channel = self._connect()
            except BackendError as error:
                error.brief = error.brief or _brief_of(error, self.pool.name)
                self._backoff.note(error, self._socket_mark())
                raise
            self._backoff = _Backoff()
            return self._channel

    def _respect_backoff(self) -> None:
        """Not too often; but at once where somebody has just logged in."""
        error = self._backoff.error
        if error is None or time.monotonic() >= self._backoff.not_before:
            return
        mark = self._socket_mark()
        if mark is not None and mark != self._backoff.socket_mark:
            return
        raise type(error)(error.what, why=error.why, fix=error.fix, brief=error.brief)

    def _socket_mark(self) -> object:
        if self.reach is None:
            return None
        try:
            found = self.reach.socket.lstat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns

    def _connect(self) -> Channel:
        token = secrets.token_hex(12)
        if self._bundle is None:
            self._bundle = render_bundle()
        started = self._start(render_command(token, self.pool.python))
        deadline = time.monotonic() + CONNECT_PATIENCE_S
        source = _Source(lambda num_bytes: _read_until(started, num_bytes, deadline))
        frames = FrameReader(source.read, tolerant=True)
        host = self.reach.host if self.reach else "this machine"
        try:
            is_there = Bootstrap(token, self.pool.work, self._bundle, host).run(frames, started.write_all)
            if not is_there:
                raise self._why_not(started)
            channel = Channel(started, source.hand_over(frames), name=self.where, **self._pings)
        except (BrokenFrame, OSError) as error:
            failure = self._why_not(started) if started.wait(1.0) is not None else self._unanswered(str(error))
            _dispose(started)
            raise failure from error
        except BackendError:
            _dispose(started)
            raise
        try:
            self._hello = self._greet(channel)
        except BaseException:
            channel.close()
            raise
        finally:
            self._starting = None
        return channel

    def _start(self, command: str) -> Started:
        arguments = self._ssh_arguments(command) if self.reach else ["sh", "-c", command]
        said = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the process
        pipe = subprocess.PIPE
        try:
            process = subprocess.Popen(
                arguments,
                stdin=pipe,
                stdout=pipe,
                stderr=said,
                bufsize=0,
                start_new_session=True,
                env=render_environ(self._environ),
            )
        except OSError as error:
            said.close()
            raise Transient(
                f"`{arguments[0]}` cannot be started", why=str(error), fix="Install OpenSSH's client."
            ) from error
        self._starting = Started(process, said)
        return self._starting

    def _ssh_arguments(self, command: str) -> list[str]:
        assert self.reach is not None  # noqa: S101
        make_socket_folder(self.reach)
        # A user's `no` would take a changed key; what it is meant for is unknown keys.
        is_lax = takes_any_key(fetch_config(self.reach, self._environ))
        return self.reach.bridge_command(command, extra=("StrictHostKeyChecking=accept-new",) if is_lax else ())

    def _greet(self, channel: Channel) -> Hello:
        began = time.time()
        said = self._heed(channel.ask("hello", {"work": self.pool.work}, b"", CONNECT_PATIENCE_S)).header
        offset_s = float(said["time"]) - (began + time.time()) / 2
        texts = {key: str(said[key]) for key in ("host", "user", "home", "python", "python_version")}
        return Hello(clock_offset_s=offset_s, **texts)

    def _why_not(self, started: Started) -> BackendError:
        """Why a stream ended before the bridge was there."""
        code, said = started.wait(5.0), started.said()
        if self.reach is not None and code == _OWN_EXIT:
            return classify(said, self.reach, fetch_config(self.reach, self._environ))
        last = said.strip().rpartition("\n")[2][:500]
        return Transient(
            f"The login shell of {self.where} ended with {code} before the bridge was started",
            why=last,
            fix="Look at what its start-up files (.bashrc, .cshrc) do when no terminal is there.",
        )

    def _unanswered(self, why: str) -> Transient:
        return Transient(
            f"The bridge of {self.where} could not be started", why=why, fix="It is tried again by itself."
        )


def _status_of(error: BackendError) -> PoolStatus:
    if isinstance(error, HostKeyChanged):
        return PoolStatus.HOST_KEY_CHANGED
    return PoolStatus.LOGIN_NEEDED if isinstance(error, AuthFailed) else PoolStatus.UNREACHABLE


def _brief_of(error: BackendError, pool: str) -> str:
    """For each run; `gangline pools` has the whole, once."""
    if isinstance(error, HostKeyChanged):
        return f"The host key of pool `{pool}` has changed: `gangline pools` says what to do, nothing goes there."
    if isinstance(error, AuthFailed):
        return f"Pool `{pool}` needs a login: `gangline pools login {pool}`."
    return f"Pool `{pool}` cannot be reached now; it is tried again by itself, and `gangline pools` says why."


class _Source:
    """Where a reader reads from, which changes once the channel watches over the stream."""

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read

    def read(self, num_bytes: int) -> bytes:
        return self._read(num_bytes)

    def hand_over(self, frames: FrameReader) -> Callable[[Callable[[int], bytes]], FrameReader]:
        def take(read: Callable[[int], bytes]) -> FrameReader:
            self._read = read
            return frames

        return take


def _read_until(started: Started, num_bytes: int, deadline: float) -> bytes:
    data = started.read(num_bytes, deadline - time.monotonic())
    if data is None:
        raise TimeoutError(f"nothing came within {CONNECT_PATIENCE_S:.0f} s")
    return data


def _dispose(started: Started) -> None:
    started.end(0.5)
    started.release()


def _store_request(batch: Sequence[tuple[str, bytes]]) -> tuple[str, dict[str, Any], bytes]:
    return "store", {"objects": [[digest, len(data)] for digest, data in batch]}, b"".join(data for _, data in batch)


def _cut(sizes: Sequence[int | None], payload: bytes) -> Iterator[bytes | None]:
    offset = 0
    for size in sizes:
        yield None if size is None else payload[offset : offset + size]
        offset += size or 0


def _error_of(error: Mapping[str, Any], where: str) -> Exception:
    kind, text = error.get("kind"), str(error.get("text"))
    match kind:
        case "gap":
            return Gap("", 0, int(error["size"]))
        case "unsafe_path":
            return UnsafePath(text)
        case "invalid":
            return InvalidRequest(text)
        case "no_python":
            return SpecInvalid(
                f"There is no Python >= 3.10 for the agents of {where}",
                why=text,
                fix="Name one in the pool's `python:` in pools.yaml.",
            )
        case "full":
            return Transient(f"The disk of {where} is full", why=text, fix="Make room there; it goes on by itself.")
    return Transient(f"The bridge of {where} could not do it", why=text)
