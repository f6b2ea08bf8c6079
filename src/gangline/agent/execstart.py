"""Exec start: any program, as a fresh process. Standard library only.

The child is forked here rather than by `subprocess`: what goes wrong before the program runs is written to the rank's
own log, where people look, and ends the rank as a shell would (126, 127).
"""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

from gangline.agent.commandline import render_argv
from gangline.agent.processes import die_with_parent
from gangline.agent.starter import RankExit, RankStart

__all__ = ["ExecStarter", "exit_of"]

_NOT_FOUND = 127
_NOT_EXECUTABLE = 126
_LOG_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND
_RSS_UNIT_BYTES = 1024


class ExecStarter:
    """Forks and executes; learns of ends by SIGCHLD, whose handler writes into a pipe that the loop watches."""

    mode = "exec"

    def __init__(self) -> None:
        self._pids: set[int] = set()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._old_handler = signal.signal(signal.SIGCHLD, self._on_child)

    def fileno(self) -> int:
        return self._wake_read

    def ready(self) -> bool:
        return True

    def own_pids(self) -> frozenset[int]:
        return frozenset()

    def start(self, rank: RankStart) -> int:
        argv = render_argv(rank, exists=lambda name: Path(rank.cwd, name).is_file())
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            _become(rank, argv, parent)
        self._pids.add(pid)
        return pid

    def exits(self) -> list[RankExit]:
        with suppress(BlockingIOError):
            while os.read(self._wake_read, 4096):
                pass
        ended = [found for pid in sorted(self._pids) if (found := _wait(pid)) is not None]
        self._pids.difference_update(one.pid for one in ended)
        return ended

    def close(self) -> None:
        signal.signal(signal.SIGCHLD, self._old_handler)
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _on_child(self, _number: int, _frame: FrameType | None) -> None:
        with suppress(BlockingIOError):
            os.write(self._wake_write, b"x")


def exit_of(pid: int, status: int, *, peak_rss_bytes: int | None) -> RankExit:
    """From a wait status, now."""
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
    code = None if number is not None else os.WEXITSTATUS(status)
    return RankExit(pid=pid, exit_code=code, signal=number, time=time.time(), peak_rss_bytes=peak_rss_bytes)


def _wait(pid: int) -> RankExit | None:
    try:
        found, status, usage = os.wait4(pid, os.WNOHANG)
    except ChildProcessError:  # somebody else waited for it; all that is certain is that it is gone
        return RankExit(pid=pid, exit_code=None, signal=int(signal.SIGKILL), time=time.time())
    if found == 0:
        return None
    return exit_of(pid, status, peak_rss_bytes=usage.ru_maxrss * _RSS_UNIT_BYTES)


def _become(rank: RankStart, argv: Sequence[str], parent: int) -> NoReturn:
    """In the child: turn into the rank's program. Whatever happens, this never returns into the agent's code."""
    status = _NOT_EXECUTABLE
    try:
        os.setsid()
        die_with_parent(parent)
        _reset_signals()
        _open_streams(rank.log_path)
        os.chdir(rank.cwd)
        _execute(argv, rank.env)
    except OSError as error:
        status = _NOT_FOUND if error.errno == errno.ENOENT else _NOT_EXECUTABLE
        _say(f"gangline: cannot start `{argv[0]}` in {rank.cwd}: {error.strerror or error}\n")
    except ValueError as error:  # a NUL byte in an argument or a variable
        _say(f"gangline: cannot start `{argv[0]}`: {error}\n")
    finally:
        os._exit(status)


def _execute(argv: Sequence[str], env: Mapping[str, str]) -> None:
    try:
        os.execvpe(argv[0], list(argv), env)  # noqa: S606 - what this is for
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise
    # A script without a first line that names its interpreter: as shells do.
    os.execvpe("sh", ["sh", *argv], env)  # noqa: S606


def _reset_signals() -> None:
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _open_streams(log_path: str) -> None:
    """Stdin is empty, stdout and stderr are the log file itself."""
    log = os.open(log_path, _LOG_FLAGS, 0o644)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # what the agent itself was started with is not for ranks


def _say(text: str) -> None:
    with suppress(OSError):
        os.write(2, text.encode("utf-8", "surrogateescape"))
