"""`gangline resume`: start an ended run again."""

from __future__ import annotations

import click

from gangline.cli import connection
from gangline.cli.follow import Following, follow_run
from gangline.cli.options import echo_json, json_option, run_argument
from gangline.cli.terminal import say

__all__ = ["command"]


@click.command("resume")
@run_argument
@click.option("-F", "--follow", is_flag=True, help="Follow the output; exit with the run's code.")
@json_option()
def command(*, run: str, follow: bool, as_json: bool) -> int:
    """Start an ended run again from its newest checkpoint.

    The run keeps its id, its code and its history; it gets a new attempt. Runs that failed or were stopped can be
    resumed.
    """
    client = connection.connect()
    before = client.run(run)
    next_attempt = 0 if before["attempt"] is None else before["attempt"] + 1
    seen = max((event["seq"] for event in before["events"]), default=-1)
    resumed = client.resume(before["id"])
    run_id = resumed["id"]
    if follow:
        say(f"{run_id} is {resumed['phase']} again.", err=as_json)
        return follow_run(client, run_id, Following(attempt=next_attempt, after=seen, as_json=as_json))
    if as_json:
        echo_json(resumed)
    else:
        say(f"{run_id} is {resumed['phase']} again; `gangline watch {run_id}` shows it live.")
    return 0
