"""`gangline report`: a run as one file, to hand to a colleague."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

import click

from gangline.cli import connection
from gangline.cli.options import echo_json, json_option, run_argument
from gangline.cli.terminal import say
from gangline.cli.text import render_count, render_size, visible
from gangline.domain.errors import Conflict, InvalidRequest

__all__ = ["command", "write_private"]

_FORMS = {".html": "html", ".htm": "html", ".zip": "zip"}


@click.command("report")
@run_argument
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A page (.html) or an archive (.zip); default: gangline-report-RUN.html here.",
)
@click.option("--force", is_flag=True, help="Replace the file if it is there.")
@json_option()
def command(*, run: str, output: Path | None, force: bool, as_json: bool) -> None:
    """Write all that is known of a run into one file, without its secrets.

    One HTML page that loads nothing: how it went and why, the first failure, metrics, logs, history, code, environment.
    A name that ends in .zip makes an archive with the full logs (up to 4 MB each), journals and spec beside the page.
    Only you can read the file; look through it before you hand it on.
    """
    client = connection.connect()
    run_id = client.run(run)["id"]
    path = output or Path(f"gangline-report-{run_id}.html")
    form = _FORMS.get(path.suffix.lower())
    if form is None:
        raise InvalidRequest(f"`{path}` is neither a page nor an archive", fix="Let its name end in .html or .zip.")
    _refuse_occupied(path, force=force)
    content, removed = client.report(run_id, form=form)
    write_private(path, content, replace=force)
    if as_json:
        echo_json({"file": str(path.absolute()), "size_bytes": len(content), "removed": removed})
        return
    say(f"Wrote {visible(str(path))} ({render_size(len(content))}). {render_count(removed, 'secret')} removed.")
    say("Look through it before you hand it on: no program knows all that is secret.", err=True)


def write_private(path: Path, content: bytes, *, replace: bool) -> None:
    """Write a file that only its owner can read, whole or not at all.

    Raises:
        Conflict: it is there, and not to be replaced.
        InvalidRequest: it cannot be written.
    """
    temporary = path.parent / f".{path.name}.{secrets.token_hex(4)}.tmp"
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            if replace:
                temporary.replace(path)
            else:
                path.hardlink_to(temporary)
        finally:
            with suppress(FileNotFoundError):
                temporary.unlink()
    except FileExistsError:
        _refuse_occupied(path, force=False)
        raise
    except OSError as error:
        raise InvalidRequest(
            f"{path} cannot be written", why=error.strerror or str(error), fix="Name another file with -o."
        ) from error


def _refuse_occupied(path: Path, *, force: bool) -> None:
    if not force and (path.exists() or path.is_symlink()):
        raise Conflict(f"{path} is there already", fix="Add --force to replace it, or name another file with -o.")
