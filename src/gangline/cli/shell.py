"""`gangline shell`: a shell, or one command, on the machine of a running rank."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from gangline.agent.rankshell import find_beside
from gangline.cli import connection
from gangline.cli.describe import is_over
from gangline.cli.options import Whole, run_argument
from gangline.cli.terminal import say
from gangline.domain.errors import Conflict, InvalidRequest
from gangline.domain.naming import LOCAL
from gangline.rundir.layout import RunDir
from gangline.wire.views import AttemptView, NodeView, RankView, RunDetail

__all__ = ["command"]

_NOT_FOUND, _NOT_RUN, _OF_SIGNAL = 127, 126, 128
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@click.command("shell")
@run_argument
@click.option("--rank", type=Whole(0), metavar="N", help="Where this rank runs.  [default: 0]")
@click.option("--node", type=Whole(0), metavar="N", help="On this node of the gang instead.")
@click.option("--print", "only_print", is_flag=True, help="Print the command instead.")
@click.argument("there", nargs=-1, metavar="[-- COMMAND...]")
def command(*, run: str, rank: int | None, node: int | None, only_print: bool, there: tuple[str, ...]) -> int:
    """Open a shell where a rank of a run runs, or run a command there.

    It starts in the rank's folder with its environment, without what would let a program write into the run or join
    its gang. On a Slurm cluster it is a step of the run's own job, on that node, and ends with the job. A COMMAND gets
    this command's input and output, and its exit code is this command's own.
    """
    if rank is not None and node is not None:
        raise InvalidRequest("--rank contradicts --node", fix="Keep one of them.")
    detail = connection.connect().run(run)
    attempt = _running(detail)
    where, wanted = _find_beside(detail, attempt, rank, node)
    if detail["pool"] == LOCAL:
        beside = find_beside(RunDir(Path(detail["run_dir"])), launch=attempt["launch"], node=where["node"], rank=wanted)
        words, folder = there or _shell_here(detail), beside.folder
        env = {**beside.env, "TERM": os.environ.get("TERM", "dumb")}
    else:
        words, folder, env = _shell_there(detail, where, wanted, there), Path.cwd(), dict(os.environ)
    if only_print:
        prefix = f"cd {shlex.quote(str(folder))} && " if detail["pool"] == LOCAL else ""
        say(f"{prefix}{shlex.join(words)}")
        return 0
    return _call(words, folder, env)


def _running(run: RunDetail) -> AttemptView:
    attempt = run["attempts"][-1] if run["attempts"] else None
    if is_over(run) or attempt is None or attempt["outcome"] is not None:
        raise Conflict(
            f"Run `{run['id']}` has no rank that runs", why=f"It is {run['phase']}", fix="`gangline ps` lists runs."
        )
    return attempt


def _find_beside(run: RunDetail, attempt: AttemptView, rank: int | None, node: int | None) -> tuple[NodeView, int]:
    """The node of a rank and that rank; of a node that is named, its first."""
    wanted = (rank or 0) if node is None else next((x["rank"] for x in attempt["ranks"] if x["node"] == node), None)
    found = next((one for one in attempt["ranks"] if one["rank"] == wanted), None)
    if found is not None and found["ended"] is not None:
        raise Conflict(f"Rank {wanted} of `{run['id']}` does not run any more: {_how_it_ended(found)}")
    for one in attempt["nodes"]:
        if found is not None and one["node"] == found["node"]:
            return one, found["rank"]
    what = f"rank {rank or 0}" if node is None else f"node {node}"
    listed = ", ".join(f"{one['node']} ({one['host']})" for one in attempt["nodes"][:20])
    raise InvalidRequest(f"There is no {what} in this attempt", fix=f"Its nodes: {listed or 'none is known yet'}.")


def _how_it_ended(rank: RankView) -> str:
    code, number = rank["exit_code"], rank["signal"]
    return f"it ended with exit code {code}" if code is not None else f"it ended with signal {number}"


def _call(words: Sequence[str], folder: Path, env: Mapping[str, str]) -> int:
    """Run it; 127 and 126 where it cannot be, as of a shell, and 128 + the signal that has ended it.

    Raises:
        Conflict: the rank's folder is gone.
    """
    program = shutil.which(words[0], path=env.get("PATH")) or words[0]
    try:
        code = subprocess.call(words, executable=program, cwd=folder, env=env)
    except OSError as error:
        if not folder.is_dir():
            raise Conflict(f"The folder of the rank is gone: {folder}") from error
        say(f"gangline: {words[0]}: {error.strerror}", err=True)
        return _NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_RUN
    return code if code >= 0 else _OF_SIGNAL - code


def _shell_there(run: RunDetail, node: NodeView, rank: int, command: Sequence[str]) -> list[str]:
    """A step of the run's own job beside that rank."""
    how, host = run["backend"], node["host"].partition(".")[0]
    if not how.get("shell") or not _HOST.fullmatch(host):
        raise InvalidRequest(
            f"No shell can be opened in pool `{run['pool']}`", why="Its backend has no command that opens one"
        )
    script = ["/bin/bash", how["shell"], str(node["node"]), "--rank", str(rank)]
    for_people = [] if command else ["--pty"]
    step = [*shlex.split(how["step"]), f"--nodelist={host}", *for_people, *script]
    step += ["--", *command] if command else []
    reach = shlex.split(how["reach"])
    terminal = [] if command else ["-t"]
    return [reach[0], *terminal, *reach[1:], shlex.join(step)] if reach else step


def _shell_here(run: RunDetail) -> list[str]:
    say(f"A shell in the folder of {run['id']}; Ctrl-D leaves it, the run goes on.", err=True)
    return [os.environ.get("SHELL") or "/bin/sh"]
