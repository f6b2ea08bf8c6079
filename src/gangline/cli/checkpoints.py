"""`gangline checkpoints`: what a run has saved."""

from __future__ import annotations

import click

from gangline.cli import connection
from gangline.cli.options import echo_json, echo_lines, json_option, run_argument
from gangline.cli.summary import render_checkpoints
from gangline.cli.terminal import Terminal, say

__all__ = ["command"]


@click.command("checkpoints")
@run_argument
@click.option("--kept", is_flag=True, help="Only those that retention has not removed.")
@json_option()
def command(*, run: str, kept: bool, as_json: bool) -> None:
    """List the checkpoints of a run.

    Only complete checkpoints are listed: each was written by all ranks and then committed. `latest` is the one that
    a restart begins from.
    """
    found = [item for item in connection.connect().checkpoints(run) if item["kept"] or not kept]
    if as_json:
        echo_json(found)
    elif found:
        echo_lines(render_checkpoints(found, Terminal.from_stream()))
    else:
        say("No checkpoints. Training code saves one with `with gangline.checkpoint(step) as folder:`.")
