"""`gangline rm`: remove ended runs."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

import click

from gangline.cli import connection
from gangline.cli.options import OneOf, echo_json, json_option
from gangline.cli.terminal import say
from gangline.cli.text import render_size, visible
from gangline.client import Client
from gangline.domain.errors import Conflict, GanglineError, InvalidRequest, NotFound
from gangline.domain.phase import TERMINAL, Phase
from gangline.wire.removed import RemovedView, RunSizeView
from gangline.wire.units import parse_duration
from gangline.wire.views import RunSummary

__all__ = ["command"]

_ENDED = sorted(phase.value for phase in TERMINAL)
_MOST_LISTED = 20
_PATIENCE_S = 60.0
"""For machines that an ended run still holds."""


@click.command("rm")
@click.argument("runs", metavar="[RUN...]", nargs=-1)
@click.option("--older-than", metavar="TIME", help="Runs that ended longer ago than this, e.g. 30d.")
@click.option(
    "--phase",
    "phases",
    multiple=True,
    metavar="PHASE",
    type=OneOf("phase", _ENDED),
    help=f"Runs that ended like this: {', '.join(_ENDED)}; may be repeated.",
)
@click.option("--keep-checkpoints", is_flag=True, help="Keep the checkpoints in their folders, and say where.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@json_option()
def command(
    *,
    runs: Sequence[str],
    older_than: str | None,
    phases: Sequence[str],
    keep_checkpoints: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Remove ended runs, with their folders.

    With a run go its logs, metrics, history, and the checkpoints in its folder; those in a folder of your own
    (--checkpoint-path) stay. Code that no other run uses is freed. It says how much that is, and asks. Name the runs,
    or choose ended ones with --older-than and --phase.
    """
    if bool(runs) == bool(older_than or phases):
        raise InvalidRequest(
            "It is not said which runs are to be removed" if not runs else "Runs are both named and chosen",
            fix="Name runs, or choose them: gangline rm --older-than 30d --phase failed.",
        )
    age_s = None if older_than is None else parse_duration(older_than)
    client = connection.connect()
    if runs:
        chosen, unknown = _named(client, runs)
    else:
        chosen, unknown = _chosen(client, phases, age_s), None
    sizes = [client.measure(run["id"]) for run in chosen]
    if sizes and not yes:
        _ask(sizes, keep_checkpoints=keep_checkpoints)
    removed, trouble = _remove(client, sizes, keep_checkpoints=keep_checkpoints)
    freed = client.free_objects() if removed else {"num_objects": 0, "num_snapshots": 0, "freed_bytes": 0}
    if as_json:
        echo_json({"removed": removed, "freed": freed})
    else:
        _say(removed, freed["freed_bytes"])
    if (error := trouble or unknown) is not None:
        raise error


def _named(client: Client, words: Sequence[str]) -> tuple[list[RunSummary], GanglineError | None]:
    """The runs that were named, each once, and what is to be said of those that there are not.

    Raises:
        Conflict: one of them is not over: nothing is removed.
    """
    found: dict[str, RunSummary] = {}
    unknown: GanglineError | None = None
    for word in words:
        try:
            run = client.run(word)
        except NotFound as error:
            unknown = unknown or error
            continue
        found[run["id"]] = run
    live = [run for run in found.values() if Phase(run["phase"]) not in TERMINAL]
    if live:
        what = f"Run `{live[0]['id']}` is {live[0]['phase']}"
        fix = f"Stop it first: gangline stop {' '.join(run['id'] for run in live)} --wait."
        raise Conflict(what, why="Only what is over can be removed; nothing was", fix=fix)
    return list(found.values()), unknown


def _chosen(client: Client, phases: Sequence[str], age_s: float | None) -> list[RunSummary]:
    before = time.time() - (age_s or 0.0)
    runs = client.list_runs(phases=phases or _ENDED, limit=None)
    return [run for run in runs if (run["ended"] or run["created"]) <= before]


def _ask(sizes: Sequence[RunSizeView], *, keep_checkpoints: bool) -> None:
    """Say what would go, and go on only if a person wants that.

    Raises:
        InvalidRequest: there is nobody to ask.
        click.Abort: they do not.
    """
    for size in sizes[:_MOST_LISTED]:
        say(f"  {_describe(size, keep_checkpoints=keep_checkpoints)}", err=True)
    if len(sizes) > _MOST_LISTED:
        say(f"  and {len(sizes) - _MOST_LISTED} more", err=True)
    kept_bytes = sum(size["checkpoints_bytes"] for size in sizes) if keep_checkpoints else 0
    total = render_size(sum(size["size_bytes"] for size in sizes) - kept_bytes)
    what = "1 run" if len(sizes) == 1 else f"{len(sizes)} runs"
    if not sys.stdin.isatty():
        raise InvalidRequest(
            f"Nothing was removed: {what} ({total}) would be", why="There is nobody to ask", fix="Add --yes."
        )
    click.confirm(f"Remove {what}, {total} in all?", abort=True, err=True)


def _describe(size: RunSizeView, *, keep_checkpoints: bool) -> str:
    text = f"{size['id']}: {render_size(size['size_bytes'])}"
    if size["num_checkpoints"]:
        count = "1 checkpoint" if size["num_checkpoints"] == 1 else f"{size['num_checkpoints']} checkpoints"
        goes = "which are kept" if keep_checkpoints else "which go too"
        text += f", {render_size(size['checkpoints_bytes'])} of it {count}, {goes}"
    if size["checkpoint_path"] is not None:
        text += f"; what it saved in {visible(size['checkpoint_path'])} stays"
    return text


def _remove(
    client: Client, sizes: Sequence[RunSizeView], *, keep_checkpoints: bool
) -> tuple[list[RemovedView], GanglineError | None]:
    """Remove one after the other; one that cannot be removed stops none of the others."""
    removed: list[RemovedView] = []
    trouble: GanglineError | None = None
    for size in sizes:
        try:
            removed.append(client.remove(size["id"], keep_checkpoints=keep_checkpoints, patience_s=_PATIENCE_S))
        except (Conflict, NotFound) as error:  # noqa: PERF203 - a request a turn
            trouble = trouble or error
    return removed, trouble


def _say(removed: Sequence[RemovedView], freed_bytes: int) -> None:
    if not removed:
        say("No run was removed.")
    for run in removed:
        kept = f" Its checkpoints are in {visible(run['kept'])}." if run["kept"] is not None else ""
        say(f"{run['id']} is removed: {render_size(run['freed_bytes'])}.{kept}")
        for text in run["left"]:
            say(visible(text), err=True)
    if freed_bytes:
        say(f"{render_size(freed_bytes)} of stored code that no run uses are freed.")
