"""The one place that tells people about errors, and turns them into exit codes.

What a command raises ends here: errors of Gangline in three lines, wrong usage the same way, the unexpected in short
with the trace in a file. Imports click, never rich.
"""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING

import click

from gangline.cli.terminal import Terminal, say
from gangline.cli.text import visible
from gangline.domain.errors import GanglineError, InvalidRequest, nearest

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "EXIT_INTERRUPTED",
    "EXIT_PIPE_CLOSED",
    "render_error",
    "report_error",
    "report_unexpected",
    "usage_as_error",
]

EXIT_INTERRUPTED = 130
EXIT_PIPE_CLOSED = 141
"""128 + SIGPIPE, as any program whose reader has gone."""
_RUN_PARAMETERS = frozenset({"run", "runs"})
_SHOWN_CHARS = 200
_CRASH_FILE = "cli-crash.log"
_EXTRA = re.compile(r"Got unexpected extra arguments? \((.*)\)")


def report_error(error: GanglineError, *, as_json: bool) -> int:
    """Say on stderr what happened, why, and what to do; returns the exit code."""
    if as_json:
        import json  # noqa: PLC0415 - as late as possible

        say(json.dumps({"error": error.to_dict()}), err=True)
    else:
        for line in render_error(error, Terminal.from_stream(sys.stderr)):
            say(line, err=True)
    return error.exit_code


def render_error(error: GanglineError, terminal: Terminal) -> list[str]:
    """`error: what`, then why and what to do, each on lines of its own."""
    lines = [terminal.paint("error: ", "red", bold=True) + _sentence(error.what)]
    for title, text in (("why", error.why), ("fix", error.fix)):
        if text:
            first, *rest = _sentence(text).split("\n")
            lines += [f"  {terminal.paint(title + ':', bold=True)} {first}", *(f"       {line}" for line in rest)]
    return lines


def usage_as_error(error: click.ClickException) -> GanglineError:
    """What click found wrong with the command line, in Gangline's form."""
    ctx = getattr(error, "ctx", None)
    path = ctx.command_path if ctx else "gangline"
    if isinstance(error, click.NoSuchOption):
        names = [name for param in ctx.command.params for name in param.opts] if ctx else []
        fix = nearest(error.option_name, [name for name in names if name.startswith("--")])
        return InvalidRequest(f"`{path}` has no option `{error.option_name}`", fix=f"{fix} `{path} --help` lists them.")
    if isinstance(error, click.exceptions.NoArgsIsHelpError) and ctx:
        return InvalidRequest(f"`{path}` needs a command", fix=f"One of: {', '.join(ctx.command.list_commands(ctx))}.")
    if isinstance(error, click.MissingParameter) and error.param is not None and error.param.name in _RUN_PARAMETERS:
        return InvalidRequest(
            f"`{path}` needs a run", fix=f"`{path} latest` means the newest one; `gangline ps` lists them all."
        )
    usage = f"`{path} --help` shows how it is used."
    if found := _EXTRA.match(error.format_message()):
        return InvalidRequest(f"`{path}` has no use for `{found[1]}`", fix=usage)
    return InvalidRequest(error.format_message(), fix=usage)


def unnameable_as_error(error: OSError) -> GanglineError:
    """A path that the system cannot follow (links in a circle, names that are too long), in Gangline's form."""
    path = str(error.filename or "A path")
    shown = path if len(path) <= _SHOWN_CHARS else f"{path[:_SHOWN_CHARS]}…"
    return InvalidRequest(
        f"{shown} cannot be looked up",
        why=error.strerror or "",
        fix="Check the path and the links in it, or work in a folder that is not so deep.",
    )


def report_unexpected(error: BaseException, *, home: Path, debug: bool) -> int:
    """A defect of ours: say so in two lines, keep the trace in a file (or show it with GANGLINE_DEBUG=1)."""
    import traceback  # noqa: PLC0415 - every command would pay for it

    trace = "".join(traceback.format_exception(error))
    if debug:
        say(trace, err=True, end="")
    say(f"error: Gangline itself failed: {visible(f'{type(error).__name__}: {error}')}", err=True)
    kept = _keep_trace(trace, home)
    where = f"The trace is in {kept}" if kept else "GANGLINE_DEBUG=1 shows the trace"
    say(f"  fix: {where}; `gangline server logs` shows the server's side. Please report both.", err=True)
    return GanglineError.exit_code


def _keep_trace(trace: str, home: Path) -> Path | None:
    """Write the newest trace into the state folder, for its owner alone; None where that is not possible."""
    path = home / _CRASH_FILE
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(trace)
    except OSError:
        return None
    return path


def _sentence(text: str) -> str:
    shown = visible(text, multiline=True)
    return shown if "\n" in shown or shown.endswith((".", "?", "!", ":")) else f"{shown}."
