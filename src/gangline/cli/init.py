"""`gangline init`: a small training script to begin with."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

import click

from gangline.cli.options import echo_json, json_option
from gangline.cli.templates import RUN_FILE, default_template, find_template
from gangline.cli.terminal import say
from gangline.domain.errors import Conflict, InvalidRequest

__all__ = ["command"]


@click.command("init")
@click.argument("folder", type=click.Path(path_type=Path), default=".")
@click.option(
    "--template",
    metavar="NAME",
    help="One of those that `gangline template` lists.  [default: torch, or plain where torch is not installed]",
)
@json_option()
def command(*, folder: Path, template: str | None, as_json: bool) -> None:
    """Write a small training script and gangline.yaml into a folder.

    A run.yaml, the run that they are made for, and a .ganglineignore, what is not packed, come with them. FOLDER is
    made if it is not there [default: this one]. Nothing that exists is overwritten.
    """
    chosen = find_template(template) if template else default_template()
    contents = chosen.read()
    try:
        _write_new(folder, contents)
    except OSError as error:
        raise InvalidRequest(
            f"{folder} cannot be written to",
            why=error.strerror or str(error),
            fix="Name another folder: gangline init FOLDER",
        ) from error
    if as_json:
        echo_json({"template": chosen.name, "folder": str(folder.absolute()), "files": sorted(contents)})
        return
    where = "" if folder == Path() else f"cd {shlex.quote(str(folder))} && "
    say(f"Wrote {', '.join(contents)}. Next:\n\n  {where}gangline submit --follow -f {RUN_FILE}")


def _write_new(folder: Path, contents: Mapping[str, str]) -> None:
    """Write all files or none.

    Raises:
        Conflict: one of them is there already.
    """
    there = [name for name in contents if (folder / name).exists() or (folder / name).is_symlink()]
    if there:
        raise Conflict(
            f"{' and '.join(there)} is there already"
            if len(there) == 1
            else f"{' and '.join(there)} are there already",
            why="Nothing is overwritten.",
            fix="Name an empty folder: gangline init FOLDER",
        )
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in contents.items():
        with (folder / name).open("x", encoding="utf-8") as file:
            file.write(text)
