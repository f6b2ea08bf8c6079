"""`gangline ps`: runs, newest first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from gangline.cli import connection
from gangline.cli.describe import describe_gang, describe_phase, explain
from gangline.cli.options import OneOf, Whole, echo_json, echo_lines, json_option
from gangline.cli.table import Column, render_table
from gangline.cli.terminal import Terminal, say
from gangline.cli.text import render_age, render_duration, render_step, visible
from gangline.domain.naming import LOCAL
from gangline.domain.phase import TERMINAL, Phase
from gangline.wire.views import RunSummary

__all__ = ["command", "render_runs"]

DEFAULT_LIMIT = 20
_LIVE = tuple(phase.value for phase in Phase if phase not in TERMINAL)


@click.command("ps")
@click.option("-a", "--all", "show_all", is_flag=True, help="Every run there is.")
@click.option("-n", "--limit", type=Whole(1), help=f"At most this many runs.  [default: {DEFAULT_LIMIT}]")
@click.option(
    "--phase",
    "phases",
    multiple=True,
    metavar="PHASE",
    type=OneOf("phase", [phase.value for phase in Phase]),
    help="Only this phase, e.g. running; may be repeated.",
)
@click.option("--name", help="Only runs whose name contains this; case does not matter.")
@click.option("--project", help="Only runs of this project.")
@click.option("--label", "labels", metavar="K=V", multiple=True, help="Only runs with this label; may be repeated.")
@json_option()
def command(*, show_all: bool, limit: int | None, phases: Sequence[str], as_json: bool, **others: Any) -> None:  # noqa: ANN401 - the filters that are passed on as they are
    """List runs.

    Shows every run that is not over, and the newest of the others up to the limit.
    """
    client = connection.connect()
    most = None if show_all else limit or DEFAULT_LIMIT
    runs = client.list_runs(phases=phases, limit=most, **others)
    if most is not None and not phases:
        live = client.list_runs(phases=_LIVE, limit=None, **others)
        runs = _merge(live, runs, most)
    if as_json:
        echo_json(runs)
        return
    terminal = Terminal.from_stream()
    filtered = bool(phases or any(others.values()))
    echo_lines(render_runs(runs, terminal) if runs else [_say_none(filtered=filtered)])
    if most is not None and len(runs) >= most:
        say(terminal.paint("There may be more: `gangline ps --all`.", dim=True), err=True)
    for text in client.health()["warnings"]:
        say(f"Warning: {visible(text)}", err=True)


def render_runs(runs: Sequence[RunSummary], terminal: Terminal) -> list[str]:
    """The table of runs, in the order given."""
    has_pools = any(run["pool"] != LOCAL for run in runs)
    columns = [
        Column(title="id"),
        Column(title="name", shrink_to=8, drop=6),
        *([Column(title="pool", drop=4)] if has_pools else []),
        Column(title="phase", paint=lambda shown, cell, row: shown.phase(runs[row]["phase"], cell)),
        Column(title="step", right=True, drop=2),
        Column(title="gang", drop=4),
        Column(title="attempt", right=True, drop=5),
        Column(title="age", right=True, drop=1),
        Column(title="took", right=True, drop=3),
        Column(title="message", shrink_to=20, drop=7),
    ]
    return render_table(columns, [_row(run, terminal.now, has_pools=has_pools) for run in runs], terminal)


def _row(run: RunSummary, now: float, *, has_pools: bool) -> tuple[str, ...]:
    return (
        run["id"],
        run["name"],
        *([run["pool"]] if has_pools else []),
        describe_phase(run),
        render_step(run["step"], run["total_steps"]),
        describe_gang(run),
        "-" if run["attempt"] is None else str(run["attempt"]),
        render_age(run["created"], now),
        render_duration(run["duration_s"]),
        explain(run, now),
    )


def _merge(live: Sequence[RunSummary], newest: Sequence[RunSummary], most: int) -> list[RunSummary]:
    """All live runs, filled up with the newest others, newest first."""
    by_id = {run["id"]: run for run in live}
    for run in newest:
        if len(by_id) >= most:
            break
        by_id.setdefault(run["id"], run)
    return sorted(by_id.values(), key=lambda run: run["created"], reverse=True)


def _say_none(*, filtered: bool) -> str:
    if filtered:
        return "No run matches. `gangline ps --all` lists every run."
    return "No runs yet. `gangline submit train.py` starts one; `gangline init` writes a small one to begin with."
