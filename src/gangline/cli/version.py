"""`gangline version`: what is installed, and what the server runs."""

from __future__ import annotations

import platform

import click

from gangline.cli import connection
from gangline.cli.options import echo_json, json_option
from gangline.cli.terminal import say
from gangline.domain.errors import GanglineError
from gangline.domain.version import VERSION

__all__ = ["command"]


@click.command("version")
@json_option()
def command(*, as_json: bool) -> None:
    """Print the versions of command line and server.

    Starts no server; without one, its version is null.
    """
    server = _server_version()
    found = {"gangline": VERSION, "server": server, "python": platform.python_version()}
    if as_json:
        echo_json(found)
        return
    say(f"gangline {found['gangline']}, Python {found['python']}")
    say(f"server   {server or 'not running'}")


def _server_version() -> str | None:
    """The version of the server that runs, whatever it is; None without one."""
    try:
        return connection.connect(start=False).health()["version"]
    except GanglineError:
        return None
