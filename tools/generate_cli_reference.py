"""Write docs/reference/cli.md from the commands themselves. `--check` only says whether the page is up to date."""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from gangline.cli.main import cli

__all__ = ["render_reference"]

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "cli.md"
_HEAD = """# Command line

This page is made from the commands themselves by `make docs`. `gangline COMMAND --help` says the same in the terminal.

`RUN` is a run's id, the beginning of one that no other run shares, or `latest`. With `--json` a command prints JSON for
scripts, and errors are JSON on stderr. What each exit code means is listed under [exit codes](exit-codes.md).
"""


def main() -> int:
    """Write the page, or say that it is stale."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit with 1 if the page is not up to date")
    made = render_reference()
    if not parser.parse_args().check:
        PAGE.write_text(made, encoding="utf-8")
        return 0
    if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == made:
        return 0
    sys.stderr.write(f"{PAGE} is stale: run python {Path(__file__).name}\n")
    return 1


def render_reference() -> str:
    """The whole page as Markdown."""
    root = click.Context(cli, info_name="gangline", **cli.context_settings)
    parts = [_HEAD, "\n".join(_overview())]
    for name in cli.list_commands(root):
        command = cli.get_command(root, name)
        parts.extend(_command(command, root, name, level=2))
    return "\n".join(parts).rstrip() + "\n"


def _overview() -> Iterator[str]:
    yield "| command | |\n|---|---|"
    for name, entry in cli.entries.items():
        yield f"| [`gangline {name}`](#gangline-{name}) | {entry.summary} |"
    yield ""


def _command(command: click.Command | None, parent: click.Context, name: str, *, level: int) -> Iterator[str]:
    if command is None:
        raise LookupError(name)
    ctx = click.Context(command, info_name=name, parent=parent)
    usage = " ".join([ctx.command_path, *command.collect_usage_pieces(ctx)])
    yield f"{'#' * level} {ctx.command_path}\n\n`{usage}`\n"
    yield f"{_prose(command.help or '')}\n"
    yield from _options(command, ctx)
    if command.epilog:
        yield f"{_prose(command.epilog)}\n"
    if isinstance(command, click.Group):
        for sub in command.list_commands(ctx):
            inner = command.get_command(ctx, sub)
            yield from _command(inner, ctx, sub, level=level + 1)


def _options(command: click.Command, ctx: click.Context) -> Iterator[str]:
    rows = [
        record
        for parameter in command.get_params(ctx)
        if isinstance(parameter, click.Option) and (record := parameter.get_help_record(ctx)) is not None
    ]
    yield "| option | |\n|---|---|\n" + "".join(f"| `{_cell(names)}` | {_cell(text)} |\n" for names, text in rows)


def _prose(text: str) -> str:
    r"""Click's help as Markdown: paragraphs after `\b` keep their lines, as code."""
    paragraphs = []
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        kept = paragraph.removeprefix("\b\n")
        if kept == paragraph:
            paragraphs.append(paragraph)
        else:
            paragraphs.append("```sh\n" + inspect.cleandoc(kept) + "\n```")
    return "\n\n".join(paragraphs)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("  [default", " [default")


if __name__ == "__main__":
    sys.exit(main())
