"""`gangline stop`: end runs; their ranks get time to save."""

from __future__ import annotations

from collections.abc import Sequence

import click

from gangline.cli import connection
from gangline.cli.describe import describe_phase, is_over
from gangline.cli.options import echo_json, json_option
from gangline.cli.terminal import say
from gangline.cli.wait import wait_until_over
from gangline.wire.units import parse_duration
from gangline.wire.views import RunSummary

__all__ = ["command"]


@click.command("stop")
@click.argument("runs", metavar="RUN...", nargs=-1, required=True)
@click.option("--grace", metavar="TIME", help="Time from the stop signal until processes are killed, e.g. 30s or 0.")
@click.option("--wait", "wait", is_flag=True, help="Return when the runs are over.")
@json_option()
def command(*, runs: Sequence[str], grace: str | None, wait: bool, as_json: bool) -> None:
    """End a run; its ranks get time to save.

    The stop signal reaches every rank; training code sees it with `gangline.should_stop()` and may save a checkpoint
    until the grace time is over. What is left then is killed.
    """
    grace_s = None if grace is None else parse_duration(grace)
    client = connection.connect()
    stopped = [client.stop(run, grace_s=grace_s) for run in runs]
    if wait:
        stopped = [wait_until_over(client, run["id"]) or run for run in stopped]
    if as_json:
        echo_json(stopped)
        return
    for run in stopped:
        say(_say(run))


def _say(run: RunSummary) -> str:
    if is_over(run):
        return f"{run['id']} is over: {describe_phase(run)}."
    return f"{run['id']} is {run['phase']}; `gangline wait {run['id']}` returns when it is over."
