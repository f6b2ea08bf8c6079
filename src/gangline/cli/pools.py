"""`gangline pools`: the machines that runs can use."""

from __future__ import annotations

import click

from gangline.cli import connection
from gangline.cli.options import echo_json, echo_lines, json_option
from gangline.cli.poolsetup import COMMANDS, render_trouble
from gangline.cli.table import Column, render_table
from gangline.cli.terminal import Terminal, say
from gangline.cli.text import render_age, render_count, render_duration, render_size, visible
from gangline.wire.views import NodeHealthView, PoolView

__all__ = ["command"]

_MOST_MARKS = 6
_MANY, _MANY_BYTES = 100_000, 1 << 59
_COLUMNS = (
    Column(title="pool"),
    Column(title="backend", drop=3),
    Column(title="state"),
    Column(title="nodes", right=True, drop=4),
    Column(title="ranks", right=True, drop=5),
    Column(title="cpus free", right=True, drop=2),
    Column(title="memory", right=True, drop=6),
    Column(title="accelerators free", drop=1),
    Column(title="running", right=True),
    Column(title="queued", right=True),
    Column(title="jobs", right=True, drop=8),
    Column(title="avoided", right=True, drop=7),
)
_NODE_COLUMNS = (
    Column(title="pool", drop=2),
    Column(title="node"),
    Column(title="state"),
    Column(title="marks", right=True, drop=1),
    Column(title="why", shrink_to=24),
)


@click.group("pools", invoke_without_command=True)
@json_option()
@click.pass_context
def command(ctx: click.Context, *, as_json: bool) -> None:
    """List the machines that runs can use.

    Nodes and ranks are the most that one gang may have; the rest is what the pool has, and what of it is free now, of
    a cluster in its usual partition: `gangline pools show NAME` has all of them.
    Avoided are machines that failed a check or broke runs again and again: `gangline pools nodes` says which and why.
    """
    if ctx.invoked_subcommand is not None:
        return
    client = connection.connect()
    pools = client.pools()
    if as_json:
        echo_json(pools)
        return
    terminal, file = Terminal.from_stream(), client.pool_file()
    echo_lines(render_table(_COLUMNS, [_row(pool) for pool in pools], terminal))
    echo_lines(render_trouble(pools, terminal))
    echo_lines([visible(text) for pool in pools for text in pool["warnings"]])
    if file["fault"]:
        say(visible(file["fault"]), err=True)


for _sub in COMMANDS:
    command.add_command(_sub)


@command.command("nodes")
@click.argument("pool", required=False)
@json_option()
def nodes(*, pool: str | None, as_json: bool) -> None:
    """List machines by name, and what speaks against them.

    A node is `avoided` after one failed check that tells it from its peers, or after several attempts that it broke;
    `suspect` while there are fewer; `kept` if it ought to be avoided but the pool has too few others. Marks are
    forgotten after a day.
    """
    found = connection.connect().nodes(pool)
    if as_json:
        echo_json(found)
    elif not found:
        say("No node is known by name yet.")
    else:
        terminal = Terminal.from_stream()
        echo_lines(render_table(_NODE_COLUMNS, [_node_row(node) for node in found], terminal))
        echo_lines([line for node in found for line in _mark_lines(node, terminal)])


@command.command("clear")
@click.argument("node")
@click.option("--pool", metavar="NAME", help="Only in this pool.  [default: in all]")
@json_option()
def clear(*, node: str, pool: str | None, as_json: bool) -> None:
    """Use NODE again: forget what speaks against it so far."""
    cleared = connection.connect().clear_node(node, pool=pool)
    if as_json:
        echo_json(cleared)
    elif cleared["pools"]:
        where = ", ".join(f"`{visible(name)}`" for name in cleared["pools"])
        say(f"Node {visible(node)} is cleared in pool {where}: nothing speaks against it.")
    else:
        say(f"Nothing speaks against node {visible(node)}.")


def _row(pool: PoolView) -> tuple[str, ...]:
    cpus, devices = _free(pool)
    return (
        pool["name"],
        pool["backend"],
        pool["state"].replace("_", " "),
        _known(pool["nodes"]),
        _known(pool["ranks"]),
        cpus,
        render_size(pool["memory_bytes"]) if pool["memory_bytes"] < _MANY_BYTES else "-",
        devices,
        str(pool["running"]),
        str(pool["queued"]),
        str(pool["jobs"]),
        str(pool["avoided_nodes"]),
    )


def _free(pool: PoolView) -> tuple[str, str]:
    """Processors and accelerators: free of all; of a cluster those of the part in which runs start that name none."""
    kind = f" {pool['device_kind']}" if pool["device_kind"] else ""
    if pool["backend"] == "local":
        return f"{pool['free_cpus']}/{pool['cpus']}", f"{len(pool['free_devices'])}/{len(pool['devices'])}{kind}"
    usual = max(
        (part for part in pool["parts"] if part["is_usual"]),
        key=lambda part: (part["free_devices"], part["free_cpus"]),
        default=None,
    )
    if usual is None:
        return _known(pool["cpus"]), _known(len(pool["devices"]))
    return f"{usual['free_cpus']}/{usual['cpus']}", f"{usual['free_devices']}/{usual['devices']}"


def _known(number: int) -> str:
    """A backend that does not know what it has says so much that nothing is refused."""
    return str(number) if number < _MANY else "-"


def _node_row(node: NodeHealthView) -> tuple[str, ...]:
    return node["pool"], node["host"], node["state"], str(len(node["marks"])), node["why"] or "-"


def _mark_lines(node: NodeHealthView, terminal: Terminal) -> list[str]:
    """What happened there, newest first."""
    if not node["marks"]:
        return []
    left_s = max(0.0, (node["forgotten_at"] or terminal.now) - terminal.now)
    shown = list(reversed(node["marks"]))[:_MOST_MARKS]
    more = len(node["marks"]) - len(shown)
    return [
        "",
        f"{terminal.heading(visible(node['host']))}: forgotten in {render_duration(left_s)} if nothing more happens",
        *(
            terminal.clip(
                f"  {render_age(mark['time'], terminal.now)} ago  {visible(mark['run'])} attempt {mark['attempt']}  "
                f"{mark['kind']}: {visible(mark['detail'])}"
            )
            for mark in shown
        ),
        *([f"  and {render_count(more, 'earlier one')}"] if more else []),
    ]
