"""`gangline pools add`, `remove`, `show`, `doctor`, `login`: what a pool is, and whether it works."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from gangline.cli import connection, pooljobs
from gangline.cli.options import echo_json, echo_lines, json_option
from gangline.cli.table import Column, render_table
from gangline.cli.terminal import Terminal, say
from gangline.cli.text import render_age, render_count, visible, wrap
from gangline.domain.errors import InvalidRequest
from gangline.wire.pools import BACKENDS, pool_flags, settings_from_flags
from gangline.wire.views import FindingView, PoolDetail, PoolPartView, PoolView

if TYPE_CHECKING:
    from gangline.client.client import Client

__all__ = ["COMMANDS", "render_trouble"]

_COLOURS = {"ok": "green", "warning": "yellow", "failed": "red"}
_EXIT_FAILED = 1
_PREFIX = "pool__"


@click.command("add")
@click.argument("name")
@click.option("--backend", default="slurm", metavar="|".join(BACKENDS), help="What it is.  [default: slurm]")
@click.option("--no-check", is_flag=True, help="Do not examine it afterwards.")
@json_option()
def add(*, name: str, backend: str, no_check: bool, as_json: bool, **values: Any) -> int:  # noqa: ANN401 - options
    """Add a cluster: write it into pools.yaml, serve it, and examine it.

    `gangline pools add a100 --ssh bastion --work /shared/me/gangline --partition gpu` is a Slurm cluster behind a login
    node; without --ssh, the commands of Slurm are on this machine. The options of a run (--partition, --account, …)
    become the pool's defaults. `gangline pools add warm --backend ray --address http://head:8265` is a Ray cluster.
    """
    flags = {key.removeprefix(_PREFIX).replace("__", "."): value for key, value in values.items()}
    client = connection.connect()
    pool = client.add_pool(name, {"backend": backend, **settings_from_flags(flags)})
    if not as_json:
        say(f"Pool {visible(name)} is in {visible(pool['file'])}.")
    if no_check:
        if as_json:
            echo_json(pool)
        return 0
    return _examine(client, name, deep=False, as_json=as_json)


def _options() -> Sequence[click.Parameter]:
    found: list[click.Parameter] = []
    for flag in pool_flags():
        kwargs: dict[str, Any] = (
            {"is_flag": True, "default": None} if flag.is_bool else {"type": str, "metavar": flag.metavar}
        )
        repeat = " May be repeated." if flag.multiple else ""
        found.append(
            click.Option(
                [_PREFIX + flag.path.replace(".", "__"), *flag.names],
                multiple=flag.multiple and not flag.is_bool,
                help=f"{flag.help}{repeat}",
                **kwargs,
            )
        )
    return found


add.params += _options()


@click.command("remove")
@click.argument("name")
@json_option()
def remove(*, name: str, as_json: bool) -> None:
    """Take a pool out of pools.yaml; it serves the runs that it has until they are over."""
    client = connection.connect()
    left = client.remove_pool(name)
    pool = next((pool for pool in client.pools() if pool["name"] == name), None)
    if as_json:
        echo_json({**left, "still_served": pool is not None})
        return
    say(f"Pool {visible(name)} is taken out of {visible(left['path'])}.")
    if pool is not None:
        runs = render_count(pool["running"] + pool["queued"], "run")
        say(f"It serves {runs} until they are over, and takes no new ones.")


@click.command("show")
@click.argument("name")
@json_option()
def show(*, name: str, as_json: bool) -> None:
    """Show a pool: how it stands, and what is configured."""
    pool = connection.connect().pool(name)
    if as_json:
        echo_json(pool)
        return
    terminal = Terminal.from_stream()
    echo_lines(_render_pool(pool, terminal))


@click.command("doctor")
@click.argument("name")
@click.option("--deep", is_flag=True, help="Also run a tiny job on a node, which may have to wait for one.")
@json_option()
def doctor(*, name: str, deep: bool, as_json: bool) -> int:
    """Examine a pool: connection, commands, folders, partitions, limits, accounting, clock.

    Each line is ok, a warning, or failed, with what to do; what cannot be told before that is put right is unchecked.
    The exit code is 1 where anything failed.
    """
    return _examine(connection.connect(), name, deep=deep, as_json=as_json)


@click.command("login")
@click.argument("name")
@click.option("--print", "only_print", is_flag=True, help="Print the command instead.")
def login(*, name: str, only_print: bool) -> int:
    """Log in where a password or a second factor is asked for.

    Opens the one shared connection of the pool from this terminal, and leaves it open for the server; then the pool is
    examined.
    """
    client = connection.connect()
    command = client.pool(name)["login"]
    if not command:
        raise InvalidRequest(
            f"Nobody has to log in to pool `{name}`",
            why="It is reached without ssh.",
            fix=f"`gangline pools doctor {name}` examines it.",
        )
    if only_print:
        say(shlex.join(command))
        return 0
    code = subprocess.call(command)
    if code != 0:
        raise InvalidRequest(
            f"No connection to pool `{name}` was opened",
            why=f"ssh ended with {code}; what it said stands above.",
            fix=f"The same by hand: {shlex.join(command)}",
        )
    return _examine(client, name, deep=False, as_json=False)


_PART_COLUMNS = (
    Column(title="partition"),
    Column(title="nodes idle", right=True),
    Column(title="cpus free", right=True),
    Column(title="accelerators free", right=True),
    Column(title="", drop=1),
)

COMMANDS: Sequence[click.Command] = (add, remove, show, doctor, login, pooljobs.command)


def render_trouble(pools: Sequence[PoolView], terminal: Terminal) -> list[str]:
    """A line for every pool that cannot be reached as it should be, with what to type."""
    lines = []
    for pool in pools:
        if pool["state"] in {"ready", "untried"}:
            continue
        since = f" for {render_age(pool['since'], terminal.now)}" if pool["since"] is not None else ""
        what = pool["state"].replace("_", " ")
        text = f"{terminal.heading(visible(pool['name']))} {what}{since}: {visible(pool['state_text'])}"
        lines.append(text)
        if pool["command"]:
            lines.append(f"  {visible(pool['command'])}")
    return lines


def _examine(client: Client, name: str, *, deep: bool, as_json: bool) -> int:
    findings = client.examine_pool(name, deep=deep)
    if as_json:
        echo_json(findings)
    else:
        echo_lines(_render_findings(findings, Terminal.from_stream()))
    return _EXIT_FAILED if any(one["verdict"] == "failed" for one in findings) else 0


def _render_findings(findings: Sequence[FindingView], terminal: Terminal) -> list[str]:
    width = max((len(one["check"]) for one in findings), default=0)
    cells = max([len("warning"), *(len(one["verdict"]) for one in findings)])
    lines = []
    for one in findings:
        verdict = terminal.paint(f"{one['verdict']:<{cells}}", colour=_COLOURS.get(one["verdict"]))
        indent = " " * (width + cells + 4)
        room = max(20, min(terminal.width, 120) - len(indent))
        first, *more = wrap(visible(one["text"]), room) or [""]
        lines.append(f"{verdict}  {one['check']:<{width}}  {first}")
        lines += [f"{indent}{line}" for line in more]
        if one["fix"] and one["verdict"] != "ok":
            lines += [f"{indent}{line}" for line in wrap(f"→ {visible(one['fix'])}", room)]
    return lines


def _render_pool(pool: PoolDetail, terminal: Terminal) -> list[str]:
    facts: Mapping[str, str] = {
        "backend": pool["backend"],
        "state": " ".join(filter(None, [pool["state"].replace("_", " "), pool["state_text"]])),
        "runs": f"{pool['running']} running, {pool['queued']} queued, {pool['jobs']} jobs",
        "file": pool["file"],
        "login": shlex.join(pool["login"]),
    }
    width = max(map(len, facts))
    lines = [terminal.heading(visible(pool["name"]))]
    lines += [f"  {name:<{width}}  {visible(text)}" for name, text in facts.items() if text]
    lines += [f"  {name}: {visible(_shown(value))}" for name, value in pool["settings"].items() if name != "backend"]
    parts = render_table(_PART_COLUMNS, [_part_row(part) for part in pool["parts"]], terminal, indent=2)
    return [*lines, "", *parts] if pool["parts"] else lines


def _part_row(part: PoolPartView) -> list[str]:
    devices = f"{part['free_devices']}/{part['devices']}" if part["devices"] else "-"
    free = [f"{part['idle_nodes']}/{part['nodes']}", f"{part['free_cpus']}/{part['cpus']}", devices]
    return [part["name"], *free, "runs that name none go there" if part["is_usual"] else ""]


def _shown(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
