"""`gangline pools`: the machines that runs can use."""

from __future__ import annotations

import click

from gangline.cli import connection
from gangline.cli.options import echo_json, echo_lines, json_option
from gangline.cli.table import Column, render_table
from gangline.cli.terminal import Terminal
from gangline.cli.text import render_size
from gangline.wire.views import PoolView

__all__ = ["command"]

_COLUMNS = (
    Column(title="pool"),
    Column(title="backend", drop=3),
    Column(title="nodes", right=True, drop=4),
    Column(title="ranks", right=True, drop=5),
    Column(title="cpus free", right=True, drop=2),
    Column(title="memory", right=True, drop=6),
    Column(title="accelerators free", drop=1),
    Column(title="running", right=True),
    Column(title="queued", right=True),
)


@click.command("pools")
@json_option()
def command(*, as_json: bool) -> None:
    """List the machines that runs can use.

    Nodes and ranks are the most that one gang may have; the rest is what the pool has, and what of it is free now.
    """
    pools = connection.connect().pools()
    if as_json:
        echo_json(pools)
    else:
        echo_lines(render_table(_COLUMNS, [_row(pool) for pool in pools], Terminal.from_stream()))


def _row(pool: PoolView) -> tuple[str, ...]:
    kind = f" {pool['device_kind']}" if pool["devices"] else ""
    return (
        pool["name"],
        pool["backend"],
        str(pool["nodes"]),
        str(pool["ranks"]),
        f"{pool['free_cpus']}/{pool['cpus']}",
        render_size(pool["memory_bytes"]),
        f"{len(pool['free_devices'])}/{len(pool['devices'])}{kind}",
        str(pool["running"]),
        str(pool["queued"]),
    )
