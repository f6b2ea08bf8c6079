"""`gangline debug`: a run once more in a smaller world, here, with its output attached and, if wanted, a debugger."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from gangline.cli import connection
from gangline.cli.describe import is_over
from gangline.cli.failure import EXIT_INTERRUPTED
from gangline.cli.follow import Following, follow_run
from gangline.cli.options import Whole, echo_json, echo_lines, json_option, run_argument
from gangline.cli.submitted import render_submitted
from gangline.cli.terminal import Terminal, say
from gangline.domain.errors import Conflict, InvalidRequest
from gangline.wire.views import RunDetail

if TYPE_CHECKING:
    from gangline.client.client import Client

__all__ = ["command"]

_EPILOG = """Examples:

\b
  gangline debug llama-7k3q                       # two ranks on this machine, from its newest checkpoint
  gangline debug llama-7k3q --pdb                 # stop where the rank that failed first fails
  gangline debug llama-7k3q --pdb --rank 1 --procs-per-node 4
  gangline debug llama-7k3q --checkpoint 200
  gangline debug llama-debug-x2k4 --attach        # back to a debugger that waits"""


@click.command("debug", epilog=_EPILOG)
@run_argument
@click.option("--nodes", type=Whole(1), default=1, show_default=True, help="Nodes, all of them on this machine.")
@click.option("--procs-per-node", type=Whole(1), help="Ranks on each; default: two, or what the rank debugged needs.")
@click.option("--checkpoint", metavar="STEP|DIR|latest|RUN:STEP", help="Start there; default: where RUN would go on.")
@click.option("--fresh", is_flag=True, help="Start from the beginning.")
@click.option("--pdb", is_flag=True, help="Stop one rank at breakpoints and at the exception that would end it.")
@click.option("--rank", type=Whole(), metavar="N", help="That rank; default: the one that failed first in RUN.")
@click.option("--attach", is_flag=True, help="RUN is being debugged: go back to its debugger.")
@click.option("--detach", is_flag=True, help="Return at once.")
@json_option()
def command(*, run: str, attach: bool, detach: bool, as_json: bool, **options: Any) -> int:  # noqa: ANN401 - the body of the request
    """Repeat RUN in a smaller world on this machine, as a run of its own.

    Same code, arguments, environment and data version; it starts from the checkpoint from which RUN would go on, saves
    in a folder of its own and is never restarted. The output is attached: Ctrl-C ends it. With --pdb, one rank is
    debugged in this terminal while the others wait for it: commands of pdb, Ctrl-C stops it at its next line, Ctrl-D
    ends the run.
    """
    client = connection.connect()
    if attach:
        return _attend(client, _debugged(client.run(run)), after=None)
    if options["fresh"] and options["checkpoint"]:
        raise InvalidRequest("--fresh contradicts --checkpoint", fix="Keep one of them.")
    from gangline.client.again import send_debug  # noqa: PLC0415 - once there is something to send

    made = send_debug(client, run, options)
    if detach or as_json:
        echo_json(made) if as_json else echo_lines(render_submitted(made, Terminal.from_stream()))
        return 0
    seen = max((event["seq"] for event in made["events"]), default=-1)
    _introduce(made)
    if made["spec"]["pdb_rank"] is not None:
        return _attend(client, made, after=seen)
    return _follow(client, made, after=seen)


def _introduce(run: RunDetail) -> None:
    start = run["spec"]["checkpoint"]["start_from"]
    begins = f"from {start}" if start else "from the beginning"
    ranks = run["nodes"] * run["procs_per_node"]
    say(f"{run['id']} repeats {run['debug_of']} with {ranks} {'rank' if ranks == 1 else 'ranks'}, {begins}.", err=True)


def _follow(client: Client, run: RunDetail, *, after: int) -> int:
    """The output until its end; this terminal is the run's, so Ctrl-C ends it."""
    code = follow_run(client, run["id"], Following(attempt=0, after=after), detachable=False)
    if code == EXIT_INTERRUPTED and not is_over(client.run(run["id"])):
        client.stop(run["id"], grace_s=1.0)
        say(f"{run['id']} is being ended.", err=True)
    return code


def _attend(client: Client, run: RunDetail, *, after: int | None) -> int:
    from gangline.cli.debugterminal import DebugTerminal  # noqa: PLC0415 - with a debugger alone

    terminal = DebugTerminal(client, run, is_terminal=sys.stdin.isatty())
    return terminal.run(after=after)


def _debugged(run: RunDetail) -> RunDetail:
    """The run, if a debugger can wait in it.

    Raises:
        Conflict: none can.
    """
    if run["spec"].get("pdb_rank") is None:
        raise Conflict(
            f"Run `{run['id']}` has no debugger", fix=f"gangline debug {run['id']} --pdb starts one with it."
        )
    if is_over(run):
        raise Conflict(f"Run `{run['id']}` is over", fix=f"gangline debug {run['debug_of'] or run['id']} --pdb")
    return run
