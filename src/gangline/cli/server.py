"""`gangline server`: the server of this machine."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import click

from gangline.cli import connection
from gangline.cli.options import Whole, echo_json, json_option
from gangline.cli.terminal import Terminal, say
from gangline.cli.text import render_count, render_duration, render_size, visible
from gangline.client.embedded import mute
from gangline.domain.errors import NotFound, ServerUnreachable
from gangline.rundir.home import Home
from gangline.rundir.serving import server_pid
from gangline.wire.views import HealthView

__all__ = ["command"]

_FOLLOW_S = 0.3
_END_S = 6.0
_GONE_S = 15.0
"""Longer than a server takes to end, its last look at the gangs included."""
_LOOK_S = 0.05


@click.group("server")
def command() -> None:
    """Look at the server of this machine, start or stop it.

    The first command that needs a server starts one; it listens on this machine alone and keeps its state in
    GANGLINE_HOME (default: ~/.gangline). Runs never need it: they train on while it is away, and it finds them again
    when it returns.
    """


@command.command("status")
@json_option()
def status(*, as_json: bool) -> int:
    """Say whether a server runs, which, and what it has to do.

    Starts none; exit code 69 when none runs.
    """
    try:
        health = connection.connect(start=False).health()
    except ServerUnreachable:
        home = Home.from_env()
        silent = mute(home)
        if as_json:
            echo_json(None)
        elif silent is not None:
            say(str(silent))
        else:
            say(f"No server runs (state folder {home.path}). The next command that needs one starts it.")
        return ServerUnreachable.exit_code
    if as_json:
        echo_json(health)
    else:
        say("\n".join(_render_health(health, Terminal().now)))
    return 0


@command.command("start")
@json_option()
def start(*, as_json: bool) -> None:
    """Start the server, if none runs."""
    health = connection.connect(start=True).health()
    if as_json:
        echo_json(health)
    else:
        say(f"The server runs: pid {health['pid']}, version {health['version']}, state in {visible(health['home'])}.")


@command.command("stop")
@click.option("--force", is_flag=True, help="End one that does not answer, too: SIGTERM, then SIGKILL.")
@json_option()
def stop(*, force: bool, as_json: bool) -> None:
    """Stop the server; gangs that run go on without it."""
    try:
        client = connection.connect(start=False)
        health = client.health()
    except ServerUnreachable:
        silent = mute(Home.from_env())
        if silent is not None and not force:
            raise silent from None
        if silent is not None:
            _end_by_force(Home.from_env())
        if as_json:
            echo_json(None)
        else:
            say("No server runs." if silent is None else "The server was ended by force; gangs go on without it.")
        return
    client.stop_server()
    _wait_until_gone(Home.from_env(), health["pid"])
    if as_json:
        echo_json(health)
    else:
        say(_say_stopped(health))


@command.command("logs")
@click.option("-f", "-F", "--follow", is_flag=True, help="Go on until Ctrl-C.")
@click.option("-n", "--tail", type=Whole(), default=100, help="Only the last N lines.  [default: 100]")
@json_option('Print `{"line": …}`, one object a line; errors are JSON on stderr.')
def logs(*, follow: bool, tail: int, as_json: bool) -> None:
    """Print the server's own log."""
    path = Home.from_env().server_log
    if not path.is_file():
        raise NotFound(f"There is no server log at {path}", fix="`gangline server start` starts a server.")
    write = _print_objects if as_json else _print_bytes
    position = _print_tail(path, tail, write)
    while follow:
        time.sleep(_FOLLOW_S)
        position = _print_new(path, position, write)


def _wait_until_gone(home: Home, pid: int) -> None:
    """Until the lock is free, so that whoever looks next finds no server.

    Raises:
        ServerUnreachable: it takes too long.
    """
    deadline = time.monotonic() + _GONE_S
    while server_pid(home) == pid:
        if time.monotonic() > deadline:
            raise ServerUnreachable(
                f"The server (pid {pid}) was told to stop and has not ended within {_GONE_S:.0f} s",
                why="It still answers a request, or looks at a gang.",
                fix="`gangline server status` says when it is gone; `gangline server stop --force` ends it at once.",
            )
        time.sleep(_LOOK_S)


def _end_by_force(home: Home) -> None:
    """SIGTERM to whoever holds the lock, and SIGKILL if that does not help."""
    pid = server_pid(home)
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + _END_S
        while pid is not None and server_pid(home) == pid and time.monotonic() < deadline:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
            time.sleep(_LOOK_S)


def _say_stopped(health: HealthView) -> str:
    live = health["runs_live"]
    if not live:
        return "The server is stopped."
    gangs = f"{render_count(live, 'gang goes', 'gangs go')} on without it"
    return f"The server is stopped. {gangs}; the next command starts a server that finds them again."


def _render_health(health: HealthView, now: float) -> list[str]:
    up, memory = render_duration(now - health["started"]), render_size(health["rss_bytes"])
    return [
        f"version  {health['version']}",
        f"pid      {health['pid']}, up {up}, memory {memory}",
        f"state    {visible(health['home'])}",
        f"runs     {health['runs_live']} live, {health['runs_queued']} queued",
        *(f"warning  {visible(text)}" for text in health["warnings"]),
    ]


def _print_tail(path: Path, tail: int, write: Callable[[bytes], None]) -> int:
    """Print the last lines; returns the size of what was seen."""
    with path.open("rb") as file:
        lines = deque(file, maxlen=tail)
        position = file.tell()
    for line in lines:
        write(line)
    return position


def _print_new(path: Path, position: int, write: Callable[[bytes], None]) -> int:
    """Print what was added since `position`; from the start where the file has become shorter."""
    size = path.stat().st_size if path.exists() else 0
    if size == position:
        return position
    with path.open("rb") as file:
        file.seek(position if size > position else 0)
        added = file.read()
    complete = added[: added.rfind(b"\n") + 1]
    write(complete)
    return size - len(added) + len(complete)


def _print_objects(data: bytes) -> None:
    for line in data.splitlines():
        say(json.dumps({"line": line.decode("utf-8", "replace")}))


def _print_bytes(data: bytes) -> None:
    say(visible(data.decode("utf-8", "replace"), multiline=True), end="")
