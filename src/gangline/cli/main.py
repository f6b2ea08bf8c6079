"""Entry point of `gangline`: the list of commands, and what happens to what they raise.

Imports click alone; each command is imported when it runs.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence

import click

from gangline.cli.early import disarm
from gangline.cli.failure import (
    EXIT_INTERRUPTED,
    EXIT_PIPE_CLOSED,
    report_error,
    report_unexpected,
    unnameable_as_error,
    usage_as_error,
)
from gangline.cli.lazy import Entry, LazyGroup
from gangline.cli.options import Invocation
from gangline.cli.terminal import prepare_streams, say
from gangline.domain.errors import GanglineError
from gangline.domain.version import VERSION

__all__ = ["cli", "main"]

_UNNAMEABLE = frozenset({errno.ELOOP, errno.ENAMETOOLONG})
"""What the system says of a path that it cannot follow; the path is to blame, not Gangline."""
_RUN, _SEE, _MORE = "Start and steer", "See what happens", "Platform"


def _entry(name: str, section: str, summary: str) -> Entry:
    return Entry(module=f"gangline.cli.{name}", section=section, summary=summary)


ENTRIES = {
    "init": _entry("init", _RUN, "Write a small training script and gangline.yaml into a folder."),
    "submit": _entry("submit", _RUN, "Run a script, module, notebook or command on a gang of ranks."),
    "stop": _entry("stop", _RUN, "End a run; its ranks get time to save."),
    "resume": _entry("resume", _RUN, "Start an ended run again from its newest checkpoint."),
    "rerun": _entry("rerun", _RUN, "Run once more: a new run with the spec and the code of RUN."),
    "debug": _entry("debug", _RUN, "Repeat RUN in a smaller world on this machine, as a run of its own."),
    "rm": _entry("rm", _RUN, "Remove ended runs, with their folders."),
    "wait": _entry("wait", _RUN, "Wait until a run is over and exit with its code."),
    "ps": _entry("ps", _SEE, "List runs."),
    "show": _entry("show", _SEE, "Show one run: how it stands and why, attempts, loss, code."),
    "report": _entry("report", _SEE, "Write all that is known of a run into one file, without its secrets."),
    "compare": _entry("compare", _SEE, "Compare runs: spec, code, environment, metrics, and how they went."),
    "logs": _entry("logs", _SEE, "Print what the ranks wrote."),
    "watch": _entry("watch", _SEE, "Watch a run live."),
    "shell": _entry("shell", _SEE, "Open a shell where a rank of a run runs, or run a command there."),
    "stacks": _entry("stacks", _SEE, "Show where the ranks of a run are: who waits for whom."),
    "metrics": _entry("metrics", _SEE, "Show what the training code logged, as numbers or a plot."),
    "checkpoints": _entry("checkpoints", _SEE, "List the checkpoints of a run."),
    "template": _entry("template", _MORE, "List the ready training scripts that come with Gangline."),
    "pools": _entry("pools", _MORE, "List the machines that runs can use."),
    "server": _entry("server", _MORE, "Look at the server of this machine, start or stop it."),
    "schema": _entry("schema", _MORE, "Print the JSON Schema of run files, for editors."),
    "version": _entry("version", _MORE, "Print the versions of command line and server."),
}
"""Every command, in the order of the help page."""

SYNONYMS = {
    "ls": "ps",
    "list": "ps",
    "runs": "ps",
    "status": "show latest",
    "describe": "show latest",
    "info": "show latest",
    "log": "logs",
    "tail": "logs --follow",
    "follow": "logs --follow",
    "run": "submit",
    "launch": "submit",
    "train": "submit",
    "cancel": "stop",
    "kill": "stop",
    "remove": "rm",
    "delete": "rm",
    "restart": "resume",
    "retry": "rerun",
    "again": "rerun",
    "pdb": "debug --pdb",
    "diff": "compare",
    "export": "report",
    "top": "watch latest",
    "why": "show latest",
    "explain": "show latest",
    "events": "show latest --events",
    "history": "show latest --events",
    "code": "show latest --code DIR",
    "exec": "shell",
    "ssh": "shell",
    "doctor": "server status",
    "dashboard": "watch latest",
    "help": "--help",
    "new": "init",
    "templates": "template",
    "examples": "template",
}
"""Words of other tools, and what they mean here."""

_EPILOG = """Examples:

\b
  gangline submit --nodes 2 --procs-per-node 2 --follow train.py --lr 3e-4
  gangline watch latest
  gangline logs llama-7k3q --rank 3 --follow
  gangline show latest

RUN is a run's id, the beginning of one, or `latest`. With --json a command prints JSON for scripts."""


@click.command(
    cls=LazyGroup,
    entries=ENTRIES,
    synonyms=SYNONYMS,
    epilog=_EPILOG,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option("--version", "show_version", is_flag=True, help="Print the version and exit.")
@click.pass_context
def cli(ctx: click.Context, *, show_version: bool) -> None:
    """Distributed training in one command, the same on a laptop and on a cluster."""
    if show_version:
        say(f"gangline {VERSION}")
        ctx.exit()
    if ctx.invoked_subcommand is None:
        say(ctx.get_help())


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: arguments without the program's name; default: those of this process.
    Returns:
        The exit code; docs/reference/exit-codes.md lists them.
    """
    prepare_streams()
    args = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _invoke(args, Invocation())
        sys.stdout.flush()
    except BrokenPipeError:
        return _leave_pipe()
    except Exception as error:  # noqa: BLE001 - the last handler: reported with its trace
        from gangline.rundir.home import Home  # noqa: PLC0415 - only a defect gets here

        return report_unexpected(error, home=Home.from_env().path, debug=_debug())
    return code


def _invoke(args: list[str], invocation: Invocation) -> int:
    """Run the command and turn every expected ending into its exit code."""
    try:
        disarm()
        with cli.make_context("gangline", list(args), obj=invocation) as ctx:
            return _code(cli.invoke(ctx))
    except click.exceptions.Exit as end:
        return end.exit_code
    except (click.Abort, KeyboardInterrupt):
        say("interrupted", err=True)
        return EXIT_INTERRUPTED
    except click.ClickException as error:
        return report_error(usage_as_error(error), as_json=invocation.as_json or "--json" in args)
    except GanglineError as error:
        return report_error(error, as_json=invocation.as_json)
    except OSError as error:
        if error.errno not in _UNNAMEABLE:
            raise
        return report_error(unnameable_as_error(error), as_json=invocation.as_json)


def _code(result: object) -> int:
    return result if isinstance(result, int) else 0


def _debug() -> bool:
    return os.environ.get("GANGLINE_DEBUG", "") not in {"", "0"}


def _leave_pipe() -> int:
    """The reader has gone (`| head`): that is its right, and nothing to talk about."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return EXIT_PIPE_CLOSED


if __name__ == "__main__":
    sys.exit(main())
