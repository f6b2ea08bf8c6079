"""Start an embedded server and wait until it answers. Two that start at once make one: the server's lock decides.

Standard library only; the caller says how a live server is recognised.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from gangline.domain.errors import GanglineError, ServerUnreachable, StorageFull
from gangline.rundir.home import Home
from gangline.rundir.serving import is_ending, is_served, server_pid

__all__ = ["mute", "server_environment", "start_server"]

_T = TypeVar("_T")
_POLL_S = 0.01
_PATIENCE_S = 30.0
_OTHER_PATIENCE_S = 8.0
"""For a server that is there and does not answer: longer than one takes to begin, or to end."""
_MAX_LOG_BYTES = 5_000_000
_SHOWN_LINES = 15
_KEPT = frozenset(
    {
        "HOME",
        "KRB5CCNAME",
        "KRB5_CONFIG",
        "KUBECONFIG",
        "LANG",
        "LANGUAGE",
        "LD_LIBRARY_PATH",
        "LOGNAME",
        "PATH",
        "PYTHONDONTWRITEBYTECODE",
        "PYTHONHOME",
        "PYTHONPATH",
        "PYTHONPYCACHEPREFIX",
        "PYTHONUTF8",
        "SHELL",
        "SSH_AUTH_SOCK",
        "TEMP",
        "TMP",
        "TMPDIR",
        "TZ",
        "USER",
    }
)


_MOST_KILLS = 2
"""How often a server that is killed while it starts is followed by another."""


def start_server(home: Home, find: Callable[[], _T | None]) -> _T:
    """Start the server of a state folder and wait for it.

    Args:
        find: what a live server is reached by, or None while there is none.
    Raises:
        ServerUnreachable: it ended at once, or did not answer in time; the end of its log is in the error.
        StorageFull: there was no room for it.
    """
    deadline = time.monotonic() + _PATIENCE_S
    begin = _prepare_log(home)
    starting = _spawn(home)
    other, since = None, time.monotonic()
    kills = 0
    try:
        while time.monotonic() < deadline:
            time.sleep(_POLL_S)
            exit_code = starting.poll()
            found = find()
            if found is not None:
                return found
            if exit_code and (exit_code > 0 or kills == _MOST_KILLS):
                raise _ended(home, exit_code, begin)
            if exit_code:  # somebody killed it while it began: that says nothing of another one
                starting, kills = _spawn(home), kills + 1
            if (pid := server_pid(home)) != other:
                other, since = pid, time.monotonic()
            elif pid not in {None, starting.pid} and time.monotonic() - since > _OTHER_PATIENCE_S:
                raise mute(home) or ServerUnreachable("The server did not start", why="Another one held its place.")
            if exit_code == 0 and not is_served(home):  # it gave way to another one, and that one is gone
                starting = _spawn(home)
        raise _failed(home, f"It did not answer within {_PATIENCE_S:.0f} s.", begin)
    finally:
        starting.returncode = starting.returncode or 0  # it lives on after us, which Popen would warn about


def mute(home: Home) -> ServerUnreachable | None:
    """The error for a server that lives and cannot be reached; None: none lives, as far as its lock tells."""
    pid = server_pid(home)
    if pid is None:
        return None
    if is_ending(home):
        return ServerUnreachable(
            f"The server of {home.path} (pid {pid}) is ending",
            fix="Wait a moment; the next command starts another one. `gangline server stop --force` ends it at once.",
        )
    return ServerUnreachable(
        f"pid {pid} holds the lock of {home.path} but does not answer",
        why="It is frozen, beginning or ending, or `server.json` or `token` was removed or changed.",
        fix="`gangline server stop --force` ends it; runs go on, and the next command starts another one.",
    )


def server_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What a server keeps of the shell that happened to start it.

    Little: runs inherit from the server, and must not depend on which shell came first. What a run is to have of its
    own shell travels with the run.
    """
    return {
        name: value
        for name, value in environ.items()
        if name in _KEPT or name.startswith(("LC_", "GANGLINE_SERVER_", "COV_"))
    }


def _spawn(home: Home) -> subprocess.Popen[bytes]:
    """A server in a session of its own, with the state folder as its working folder and the log as its output."""
    env = {**server_environment(os.environ), "GANGLINE_HOME": str(home.path)}
    with home.server_log.open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "gangline.server"],
            cwd=home.path,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _prepare_log(home: Home) -> int:
    """Begin a new log where the old one has grown large; the byte at which what comes next will stand."""
    size = home.server_log.stat().st_size if home.server_log.exists() else 0
    if size <= _MAX_LOG_BYTES:
        return size
    home.server_log.replace(home.server_log.with_suffix(".log.1"))
    return 0


def _ended(home: Home, exit_code: int, begin: int) -> GanglineError:
    if exit_code == StorageFull.exit_code:
        return StorageFull.of_home(home.path, "A server was begun and found no room")
    return _failed(home, f"It ended with exit code {exit_code}.", begin)


def _failed(home: Home, why: str, begin: int) -> ServerUnreachable:
    """The error of a start; of the log it shows what this start wrote, from the byte `begin` on."""
    try:
        written = home.server_log.read_bytes()[begin:]
    except OSError:
        written = b""
    lines = written.decode("utf-8", "replace").splitlines()[-_SHOWN_LINES:]
    said = "\n".join(["The end of its log:", *lines]) if lines else "It wrote nothing to its log."
    return ServerUnreachable("The server did not start", why=why, fix=f"{said}\nThe whole log: {home.server_log}")
