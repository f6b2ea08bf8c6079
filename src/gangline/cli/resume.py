"""`gangline resume`: start an ended run again."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from gangline.cli import connection
from gangline.cli.follow import Following, follow_run
from gangline.cli.options import echo_json, json_option, run_argument
from gangline.cli.specoptions import ChangeCommand, changes_of, make_spec_options, rest_of
from gangline.cli.terminal import say
from gangline.cli.text import visible
from gangline.domain.errors import InvalidRequest, StillEnding

__all__ = ["command"]

_QUIET_S = 2.0
"""Time in which a run may still end without a word about it."""


class _ResumeCommand(ChangeCommand):
    advice = (
        "The run goes on as it was; `gangline resume --help` lists what may change. "
        "`gangline rerun RUN` makes a new run with other values."
    )


@click.command("resume", cls=_ResumeCommand)
@run_argument
@click.option(
    "--checkpoint",
    metavar="STEP|DIR|latest|RUN:STEP",
    help="Go on from this checkpoint instead of the newest; restarts then take what is saved from there on.",
)
@click.option("-F", "--follow", is_flag=True, help="Follow the output; exit with the run's code.")
@json_option()
@click.pass_context
def command(ctx: click.Context, /, *, run: str, checkpoint: str | None, follow: bool, **options: Any) -> int:  # noqa: ANN401 - options of the spec
    """Start an ended run again from its newest checkpoint.

    The run keeps its id, its code and its history; it gets a new attempt. Runs that failed or were stopped can be
    resumed, on other sizes, with other limits and from another checkpoint, too: the history says what was changed.
    """
    from gangline.client.again import absolute_checkpoint  # noqa: PLC0415 - once there is something to send

    _refuse_arguments(run, rest_of(ctx))
    as_json, changes = options["as_json"], changes_of(options)
    client = connection.connect()
    before = client.run(run)
    next_attempt = 0 if before["attempt"] is None else before["attempt"] + 1
    seen = max((event["seq"] for event in before["events"]), default=-1)
    chosen = absolute_checkpoint(checkpoint, cwd=Path.cwd())
    try:
        resumed = client.resume(before["id"], checkpoint=chosen, changes=changes, patience_s=_QUIET_S)
    except StillEnding as ending:
        _say_waits(ending, client.health()["warnings"])
        resumed = client.resume(before["id"], checkpoint=chosen, changes=changes)
    run_id = resumed["id"]
    if follow:
        say(f"{run_id} is {resumed['phase']} again.", err=as_json)
        return follow_run(client, run_id, Following(attempt=next_attempt, after=seen, as_json=as_json))
    if as_json:
        echo_json(resumed)
        return 0
    say(f"{run_id} is {resumed['phase']} again; `gangline watch {run_id}` shows it live.")
    if resumed["revision"] != before["revision"]:
        told = [event["message"] for event in client.events(run_id, after=seen) if event["kind"] == "revised"]
        say("\n".join(map(visible, told)))
    return 0


def _say_waits(ending: StillEnding, warnings: Sequence[str]) -> None:
    say(f"{visible(ending.what)}; this waits for it. Ctrl-C ends the waiting.", err=True)
    for text in warnings:
        say(f"Warning: {visible(text)}", err=True)


def _refuse_arguments(run: str, rest: Sequence[str] | None) -> None:
    if rest:
        raise InvalidRequest(
            f"`gangline resume` takes no arguments for the script, and `{shlex.join(rest)}` stands behind `--`",
            why="A run that goes on keeps its arguments.",
            fix=f"gangline rerun {run} -- {shlex.join(rest)}  starts a new run with them; "
            "--from-checkpoint latest lets it begin at the newest checkpoint.",
        )


command.params += make_spec_options(only_resumable=True)
