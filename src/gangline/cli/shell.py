"""`gangline shell`: a shell on the machine of a running rank."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path

import click

from gangline.cli import connection
from gangline.cli.describe import is_over
from gangline.cli.options import Whole, run_argument
from gangline.cli.terminal import say
from gangline.domain.errors import Conflict, InvalidRequest
from gangline.domain.naming import LOCAL
from gangline.wire.views import AttemptView, NodeView, RankView, RunDetail

__all__ = ["command"]

_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@click.command("shell")
@run_argument
@click.option("--rank", type=Whole(0), metavar="N", help="Where this rank runs.  [default: 0]")
@click.option("--node", type=Whole(0), metavar="N", help="On this node of the gang instead.")
@click.option("--print", "only_print", is_flag=True, help="Print the command instead.")
def command(*, run: str, rank: int | None, node: int | None, only_print: bool) -> int:
    """Open a shell where a rank of a run runs.

    On this machine the shell starts in the rank's folder with its environment; on a Slurm cluster it is a step of the
    run's own job, on that node.
    """
    if rank is not None and node is not None:
        raise InvalidRequest("--rank contradicts --node", fix="Keep one of them.")
    detail = connection.connect().run(run)
    attempt = _running(detail)
    if detail["pool"] == LOCAL:
        found = _find_rank(attempt, rank, node)
        words, folder, env = _shell_here(detail), _folder(detail), _environment_of(found)
    else:
        words, folder, env = _shell_there(detail, _find_node(attempt, rank or 0, node)), Path.cwd(), dict(os.environ)
    if only_print:
        prefix = f"cd {shlex.quote(str(folder))} && " if detail["pool"] == LOCAL else ""
        say(f"{prefix}{shlex.join(words)}")
        return 0
    return subprocess.call(words, cwd=folder, env=env)


def _running(run: RunDetail) -> AttemptView:
    attempt = run["attempts"][-1] if run["attempts"] else None
    if is_over(run) or attempt is None or attempt["outcome"] is not None:
        raise Conflict(
            f"Run `{run['id']}` has no rank that runs", why=f"It is {run['phase']}", fix="`gangline ps` lists runs."
        )
    return attempt


def _find_rank(attempt: AttemptView, rank: int | None, node: int | None) -> RankView:
    """A rank that runs: the one that is named, or the first of a node."""
    live = [one for one in attempt["ranks"] if one["ended"] is None and one["pid"] is not None]
    for one in live:
        if (node is None and one["rank"] == (rank or 0)) or (node is not None and one["node"] == node):
            return one
    what = f"rank {rank or 0}" if node is None else f"rank on node {node}"
    listed = ", ".join(str(one["rank"]) for one in live[:20])
    raise InvalidRequest(f"There is no {what} that runs", fix=f"Those that run: {listed or 'none'}.")


def _find_node(attempt: AttemptView, rank: int, node: int | None) -> NodeView:
    """The node of a rank, or the one that is named."""
    wanted = next((one["node"] for one in attempt["ranks"] if one["rank"] == rank), None) if node is None else node
    for one in attempt["nodes"]:
        if one["node"] == wanted:
            return one
    what = f"rank {rank}" if node is None else f"node {node}"
    listed = ", ".join(f"{one['node']} ({one['host']})" for one in attempt["nodes"][:20])
    raise InvalidRequest(f"There is no {what} in this attempt", fix=f"Its nodes: {listed or 'none is known yet'}.")


def _shell_there(run: RunDetail, node: NodeView) -> list[str]:
    begin, host = run["backend"].get("shell", ""), node["host"].partition(".")[0]
    if not begin or not _HOST.fullmatch(host):
        raise InvalidRequest(
            f"No shell can be opened in pool `{run['pool']}`", why="Its backend has no command that opens one"
        )
    return [*shlex.split(begin), f"--nodelist={host}", "bash", "-l"]


def _shell_here(run: RunDetail) -> list[str]:
    say(f"A shell in the folder of {run['id']}; Ctrl-D leaves it, the run goes on.", err=True)
    return [os.environ.get("SHELL") or "/bin/sh"]


def _folder(run: RunDetail) -> Path:
    workdir = (run["spec"].get("snapshot") or {}).get("workdir") or "."
    return Path(run["run_dir"], "code", workdir)


def _environment_of(rank: RankView) -> Mapping[str, str]:
    """The variables that a rank was started with.

    Raises:
        Conflict: it has just ended, or belongs to somebody else.
    """
    try:
        raw = Path(f"/proc/{rank['pid']}/environ").read_bytes()
    except OSError as error:
        raise Conflict(
            f"The environment of rank {rank['rank']} cannot be read", why=error.strerror or str(error)
        ) from error
    pairs = (os.fsdecode(item).partition("=") for item in raw.split(b"\0") if item)
    found = {name: value for name, _, value in pairs}
    return {**found, "TERM": os.environ.get("TERM", "dumb")}
