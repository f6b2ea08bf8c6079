"""`gangline pools jobs`: what a cluster's queue holds for us, and what of it nobody needs."""

from __future__ import annotations

from collections.abc import Sequence

import click

from gangline.cli import connection
from gangline.cli.options import echo_json, echo_lines, json_option
from gangline.cli.table import Column, render_table
from gangline.cli.terminal import Terminal, say
from gangline.cli.text import render_age, render_count, visible
from gangline.wire.units import parse_duration
from gangline.wire.views import PoolJobView

__all__ = ["command"]

_COLUMNS = (
    Column(title="job"),
    Column(title="state", drop=2),
    Column(title="run"),
    Column(title="launch", right=True, drop=4),
    Column(title="since", right=True, drop=3),
    Column(title="nodes", right=True, drop=5),
    Column(title="stands"),
    Column(title="why", shrink_to=24),
)


@click.command("jobs")
@click.argument("name")
@click.option("--end-zombies", is_flag=True, help="End jobs that no run counts on, and allocations without agents.")
@click.option("--quiet", default="30m", metavar="TIME", help="How long a run may make no progress.  [default: 30m]")
@json_option()
def command(*, name: str, end_zombies: bool, quiet: str, as_json: bool) -> None:
    """List the jobs that a cluster holds for Gangline, and how each stands to its run.

    `orphan`: no run counts on it. `idle`: it holds nodes, and no agent lives there. `stuck`: its ranks do nothing.
    `never`: it waits, and can never start. `missing`: a run counts on it, and the cluster does not list it.
    `others`: it belongs to another server. Zombies are the first two.
    """
    client = connection.connect()
    jobs = client.end_zombies(name) if end_zombies else client.pool_jobs(name, quiet_s=parse_duration(quiet))
    if as_json:
        echo_json(jobs)
        return
    if not jobs:
        say(f"Pool {visible(name)} holds no job of Gangline's.")
        return
    terminal = Terminal.from_stream()
    echo_lines(render_table(_COLUMNS, [_row(job, terminal) for job in jobs], terminal))
    echo_lines(_advice(jobs))
    if end_zombies:
        say(f"{render_count(sum(job['ended'] for job in jobs), 'job')} ended.")


def _row(job: PoolJobView, terminal: Terminal) -> list[str]:
    return [
        job["job"],
        job["state"].lower(),
        job["run"],
        str(job["launch"]),
        "" if job["since"] is None else render_age(job["since"], terminal.now),
        "" if job["nodes"] is None else str(job["nodes"]),
        "ended" if job["ended"] else job["standing"],
        job["text"],
    ]


def _advice(jobs: Sequence[PoolJobView]) -> list[str]:
    """What to do, once for each."""
    return [f"→ {job['job']}: {visible(job['fix'])}" for job in jobs if job["fix"]]
