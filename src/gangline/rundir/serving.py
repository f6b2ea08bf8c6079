"""The files by which a server and its clients find each other in the state folder: lock, address, token.

A server holds `server.lock` for its whole life, so whoever finds it free knows that `server.json` is a leftover.
Standard library only.
"""

from __future__ import annotations

import fcntl
import getpass
import os
import secrets
import time
from contextlib import suppress
from dataclasses import asdict, dataclass

from gangline.rundir.files import Unreadable, read_json, write_bytes, write_json
from gangline.rundir.home import Home

__all__ = [
    "ServerInfo",
    "ensure_token",
    "is_ending",
    "is_served",
    "mark_ending",
    "owner_name",
    "read_live_server",
    "read_server",
    "read_token",
    "server_pid",
    "still_holds",
    "take_lock",
    "write_server",
]

_OTHERS = 0o077
_TOKEN_BYTES = 32
_LOCK_RETRY_S = 0.01
_ENDING = "ending"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerInfo:
    """Where the server of a state folder listens."""

    pid: int
    port: int
    version: str
    started: float
    code: str = ""
    """`version.digest_code()` of the server: two of one version may still be of different code."""


def read_server(home: Home) -> ServerInfo | None:
    """The address that a server left, or None; what cannot be read counts as none."""
    try:
        raw = read_json(home.server)
        if raw is None:
            return None
        return ServerInfo(**{name: raw[name] for name in ServerInfo.__slots__ if name in raw})
    except (Unreadable, KeyError, TypeError):
        return None


def read_live_server(home: Home) -> ServerInfo | None:
    """The same, if its process lives.

    The lock alone does not tell: a server that has just taken it has not yet removed what a killed one left, and
    somebody else may listen on that port by now.
    """
    info = read_server(home)
    return info if info is not None and _is_alive(info.pid) else None


def write_server(home: Home, info: ServerInfo) -> None:
    """Say where the server listens; the file appears whole."""
    write_json(home.server, asdict(info), mode=0o600)


def read_token(home: Home) -> str | None:
    """The secret that every call carries, or None before the first server. Access for others is taken away.

    Raises:
        OSError: it is there, but not for us.
    """
    try:
        if home.token.stat().st_mode & _OTHERS:
            home.token.chmod(0o600)
        return home.token.read_text(encoding="ascii").strip() or None
    except FileNotFoundError:
        return None


def ensure_token(home: Home) -> str:
    """The secret, made where there is none and replaced where others could have read it.

    For the holder of the lock alone.
    """
    exposed = home.token.exists() and home.token.stat().st_mode & _OTHERS
    token = None if exposed else read_token(home)
    if token is None:
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        write_bytes(home.token, token.encode() + b"\n", mode=0o600, durable=True)
    return token


def owner_name() -> str:
    """Who runs this process, by name where the system knows one."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a uid without a name, in a container
        return f"uid-{os.getuid()}"


def take_lock(home: Home, *, patience_s: float = 0.0) -> int | None:
    """Become the one server of the folder: a descriptor to keep open, or None where another one lives.

    Args:
        patience_s: how long to try; a client that looks whether the lock is free holds it for a moment.
    """
    descriptor = os.open(home.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # noqa: PERF203 - a few tries, with pauses
            if time.monotonic() >= deadline:
                os.close(descriptor)
                return None
            time.sleep(_LOCK_RETRY_S)
        else:
            _sign(descriptor)
            return descriptor


def _sign(descriptor: int) -> None:
    """Write into the lock who holds it; a disk that is full costs no more than this note."""
    with suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)


def server_pid(home: Home) -> int | None:
    """Who holds the lock, whether or not it answers; None: nobody, or it has not said who it is."""
    try:
        return int(home.lock.read_text(encoding="ascii").split()[0]) if is_served(home) else None
    except (OSError, ValueError, IndexError):
        return None


def mark_ending(home: Home) -> None:
    """Note in the lock that its holder, this process, is ending; it may take a moment until the lock is free."""
    own = str(os.getpid()).encode()
    with suppress(OSError), home.lock.open("r+b", buffering=0) as file:
        if file.read().split()[:1] == [own]:  # not that of another server, where the folder was removed and made anew
            os.pwrite(file.fileno(), own + f" {_ENDING}\n".encode(), 0)


def is_ending(home: Home) -> bool:
    """Whether the holder of the lock has begun to end."""
    try:
        return home.lock.read_text(encoding="ascii").split()[1:] == [_ENDING] and is_served(home)
    except (OSError, ValueError):
        return False


def still_holds(home: Home, descriptor: int) -> bool:
    """Whether the lock that is held is still that of the folder: neither it nor the folder was removed."""
    try:
        return os.path.samestat(os.fstat(descriptor), home.lock.stat())
    except OSError:
        return False


def is_served(home: Home) -> bool:
    """Whether a server lives (or is starting) for this folder."""
    try:
        descriptor = os.open(home.lock, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's process
        return True
    return True
