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
from gangline.wire.views import CheckpointView, EventView

__all__ = ["command"]


@click.command("checkpoints")
@run_argument
@click.option("-a", "--all", "show_all", is_flag=True, help="Also those that retention has removed.")
@json_option()
def command(*, run: str, show_all: bool, as_json: bool) -> None:
    """List the checkpoints of a run.

    Newest first, as they lie in the checkpoint folder now. `latest` is the one that a restart would begin from,
    `complete` ones were written by all ranks and committed. Of those that are `damaged`, or `incomplete` because a
    save was cut off or still goes on, the reason is given below; a restart passes over them.
    """
    detail = connection.connect().run(run)
    ordered = sorted(detail["checkpoints"], key=lambda item: (item["step"], item["attempt"]), reverse=True)
    found = [item for item in ordered if item["state"] != "removed" or show_all]
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
    echo_lines(_reasons(found))
    echo_lines(_passed_over(detail["events"], frozenset(item["path"] for item in found)))


def _reasons(found: Sequence[CheckpointView]) -> list[str]:
    return [f"Step {item['step']}, attempt {item['attempt']}: {visible(item['why'])}." for item in found if item["why"]]


def _passed_over(events: Sequence[EventView], listed: frozenset[str]) -> list[str]:
    """What starts have passed over and why, and is not there any more; once each, however often it was."""
    told = (
        visible(event["message"]) for event in events if event["kind"] == "warning" and PASSED_OVER in event["message"]
    )
    return [line for line in dict.fromkeys(told) if not any(f" {path} " in line for path in listed)]
