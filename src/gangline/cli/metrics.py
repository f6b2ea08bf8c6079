"""`gangline metrics`: what the training code logged."""

from __future__ import annotations

import csv
import sys

import click

from gangline.cli import connection
from gangline.cli.options import Whole, echo_json, echo_lines, json_option, run_argument
from gangline.cli.summary import render_metric_plot
from gangline.cli.system import render_system
from gangline.cli.table import Column, render_table
from gangline.cli.terminal import Terminal
from gangline.cli.text import render_count, render_metric, visible
from gangline.domain.errors import InvalidRequest
from gangline.wire.views import MetricBucket, MetricView

__all__ = ["command"]

_DEFAULT_BUCKETS = 200
_JSON_SAMPLES = 200
_MOST_ROWS = 12
_FIELDS = ("step", "last_step", "count", "min", "max", "mean")


@click.command("metrics")
@run_argument
@click.argument("name", required=False)
@click.option("-r", "--rank", type=Whole(), default=0, help="Values of this rank.  [default: 0]")
@click.option(
    "--buckets",
    type=Whole(1, 10_000),
    default=_DEFAULT_BUCKETS,
    help="Steps are joined to at most this many points.  [default: 200]",
)
@click.option("--system", is_flag=True, help="Show what machines and ranks use instead.")
@click.option("--csv", "as_csv", is_flag=True, help="Print the points as CSV.")
@json_option()
def command(*, run: str, name: str | None, rank: int, buckets: int, system: bool, as_csv: bool, as_json: bool) -> None:
    """Show what the training code logged, as numbers or a plot.

    Without NAME: the newest value of every metric. With NAME: its curve, and the newest points as a table. A point
    covers one or more steps: count, least, largest and mean value. With --system: the newest sample that each node has
    taken of its processors, memory, disks, network and accelerators, and of its ranks; as JSON, the last minutes of it.
    """
    if system and (name is not None or as_csv):
        raise InvalidRequest("--system takes no metric and no --csv", fix=f"`gangline metrics {run} --system --json`")
    if as_csv and name is None:
        raise InvalidRequest("--csv needs the name of a metric", fix=f"`gangline metrics {run}` lists them.")
    client = connection.connect()
    terminal = Terminal.from_stream()
    if system:
        views = client.system(run, samples=_JSON_SAMPLES if as_json else 1)
        if as_json:
            echo_json(views)
        else:
            echo_lines(render_system(views, terminal))
        return
    if name is None:
        newest = client.metrics(run)
        if as_json:
            echo_json(newest)
        else:
            echo_lines(_render_newest(newest, terminal))
        return
    metric = client.metric(run, name, rank=rank, buckets=buckets)
    if as_json:
        echo_json(metric)
    elif as_csv:
        _write_csv(metric)
    else:
        echo_lines(_render_metric(metric, terminal))


def _render_newest(newest: dict[str, float | None], terminal: Terminal) -> list[str]:
    if not newest:
        return ["No metrics. Training code logs them with `gangline.log({'loss': loss}, step=step)`."]
    columns = [Column(title="metric", shrink_to=12), Column(title="newest", right=True)]
    return render_table(columns, [(name, render_metric(value)) for name, value in sorted(newest.items())], terminal)


def _render_metric(metric: MetricView, terminal: Terminal) -> list[str]:
    title = f"{visible(metric['name'])}, rank {metric['rank']}, {render_count(metric['count'], 'value')}"
    rows = metric["buckets"][-_MOST_ROWS:]
    return [terminal.heading(title), *render_metric_plot(metric, terminal), "", *_render_rows(rows, terminal)]


def _render_rows(rows: list[MetricBucket], terminal: Terminal) -> list[str]:
    joined = any(row["count"] != 1 for row in rows)
    if not joined:
        columns = [Column(title="step", right=True), Column(title="value", right=True)]
        return render_table(columns, [(str(row["step"]), render_metric(row["mean"])) for row in rows], terminal)
    columns = [
        Column(title="steps", right=True),
        Column(title="values", right=True, drop=3),
        Column(title="min", right=True, drop=2),
        Column(title="mean", right=True),
        Column(title="max", right=True, drop=1),
    ]
    return render_table(columns, [_bucket_row(row) for row in rows], terminal)


def _bucket_row(row: MetricBucket) -> tuple[str, ...]:
    steps = str(row["step"]) if row["step"] == row["last_step"] else f"{row['step']}-{row['last_step']}"
    return (steps, str(row["count"]), *(render_metric(value) for value in (row["min"], row["mean"], row["max"])))


def _write_csv(metric: MetricView) -> None:
    writer = csv.DictWriter(sys.stdout, _FIELDS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(metric["buckets"])
