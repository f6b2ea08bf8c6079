"""`gangline checkpoints`: what a run has saved."""

from __future__ import annotations

from collections.abc import Sequence

import click

from gangline.cli import connection
from gangline.cli.options import echo_json, echo_lines, json_option, run_argument
from gangline.cli.summary import render_checkpoints
from gangline.cli.terminal import Terminal, say
from gangline.cli.text import render_count, visible
from gangline.rundir.checkpoints import PASSED_OVER
from gangline.wire.views import EventView

__all__ = ["command"]


@click.command("checkpoints")
@run_argument
@click.option("-a", "--all", "show_all", is_flag=True, help="Also those that retention has removed.")
@json_option()
def command(*, run: str, show_all: bool, as_json: bool) -> None:
    """List the checkpoints of a run.

    Newest first. Only complete checkpoints are listed: each was written by all ranks and then committed. `latest` is
    the one that a restart begins from. Checkpoints that a start has passed over, because a save was cut off or a file
    is damaged, are named below, with the reason.
    """
    detail = connection.connect().run(run)
    ordered = sorted(detail["checkpoints"], key=lambda item: (item["step"], item["attempt"]), reverse=True)
    found = [item for item in ordered if item["kept"] or show_all]
    if as_json:
        echo_json(found)
        return
    removed = len(ordered) - len(found)
    if found:
        echo_lines(render_checkpoints(found, Terminal.from_stream()))
    elif removed:
        say("No checkpoint is left.")
    else:
        say("No checkpoints. Training code saves one with `with gangline.checkpoint(step) as folder:`.")
    if removed:
        say(f"Retention has removed {render_count(removed, 'more', 'more')}; `--all` lists them.", err=True)
    echo_lines(_passed_over(detail["events"]))


def _passed_over(events: Sequence[EventView]) -> list[str]:
    """What starts have passed over and why; once each, however often it was."""
    told = (visible(event["message"]) for event in events if event["kind"] == "warning")
    return list(dict.fromkeys(line for line in told if PASSED_OVER in line))
