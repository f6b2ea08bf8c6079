"""`gangline wait`: return when runs are over, with the run's own outcome."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import click

from gangline.cli import connection
from gangline.cli.describe import exit_code_of, is_over
from gangline.cli.follow import say_end
from gangline.cli.options import echo_json, json_option
from gangline.cli.terminal import Terminal, say
from gangline.wire.units import parse_duration
from gangline.wire.views import RunSummary

if TYPE_CHECKING:
    from gangline.client.client import Client

__all__ = ["EXIT_TIMEOUT", "command", "wait_until_over"]

EXIT_TIMEOUT = 124
"""As timeout(1)."""
_POLL_S = 20.0
"""The server answers a wait as soon as something changes; after this time it is asked again."""


@click.command("wait")
@click.argument("runs", metavar="RUN...", nargs=-1, required=True)
@click.option("--timeout", metavar="TIME", help=f"Give up after this time, e.g. 90m, with exit code {EXIT_TIMEOUT}.")
@json_option()
def command(*, runs: Sequence[str], timeout: str | None, as_json: bool) -> int:
    """Wait until a run is over and exit with its code.

    With several runs: until all are over, with the first code that is not 0, in the order given.
    """
    deadline = None if timeout is None else time.monotonic() + parse_duration(timeout)
    client = connection.connect()
    ended = [wait_until_over(client, run, deadline=deadline) for run in runs]
    over = [run for run in ended if run is not None]
    if as_json:
        echo_json(over)
    else:
        for run in over:
            say(say_end(run, Terminal.from_stream()))
    if len(over) < len(ended):
        say(f"not over after {timeout}", err=True)
        return EXIT_TIMEOUT
    return next((code for code in map(exit_code_of, over) if code), 0)


def wait_until_over(
    client: Client, run: str, *, deadline: float | None = None, clock: Callable[[], float] = time.monotonic
) -> RunSummary | None:
    """The run once it is over; None when the deadline comes first.

    Args:
        deadline: on `clock`.
    """
    version: int | None = None
    while True:
        left = _POLL_S if deadline is None else min(_POLL_S, deadline - clock())
        seen = client.wait(run, timeout_s=max(0.0, left), version=version)
        if is_over(seen):
            return seen
        if deadline is not None and clock() >= deadline:
            return None
        version = seen["version"]
