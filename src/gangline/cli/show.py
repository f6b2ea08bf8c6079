"""`gangline show`: one run on one screen, and its exact code."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gangline.cli import connection
from gangline.cli.options import echo_json, echo_lines, json_option, run_argument
from gangline.cli.summary import main_metric, render_events, render_summary
from gangline.cli.terminal import Terminal, say
from gangline.cli.text import render_count, render_size, visible
from gangline.domain.errors import Conflict, InvalidRequest, NotFound, SnapshotRefused
from gangline.domain.phase import Phase
from gangline.wire.views import CodeView, MetricView, RunDetail

if TYPE_CHECKING:
    from gangline.client.client import Client

__all__ = ["command", "fetch_main_metric"]

_BUCKETS = 120


@click.command("show")
@run_argument
@click.option("--code", "folder", type=click.Path(path_type=Path), metavar="DIR", help="Restore its code into DIR.")
@click.option("--events", is_flag=True, help="Print its history instead.")
@click.option("--full", is_flag=True, help="Of a failed run, too: curve, checkpoints, code and environment.")
@click.option("--diff", is_flag=True, help="Print what was changed since the commit instead.")
@json_option()
def command(*, run: str, folder: Path | None, full: bool, events: bool, diff: bool, as_json: bool) -> None:
    """Show one run: how it stands and why, attempts, loss, code.

    One screen: phase and reason, attempts, checkpoints, the loss as a curve, code, environment and folder. Of a failed
    run it is the first rank that failed, where and with the end of its trace, what to do, and attempts; `--full` shows
    the rest as well. `--json` prints everything that is known.
    """
    client = connection.connect()
    detail = client.run(run)
    terminal = Terminal.from_stream()
    if folder is not None:
        _restore_code(client, detail, folder, as_json=as_json)
    elif events:
        _show_events(detail, terminal, as_json=as_json)
    elif diff:
        _show_diff(detail)
    elif as_json:
        echo_json(detail)
    else:
        brief = detail["phase"] == Phase.FAILED.value and not full
        metric = None if brief else fetch_main_metric(client, detail)
        echo_lines(render_summary(detail, terminal, metric=metric, brief=brief))


def fetch_main_metric(client: Client, run: RunDetail, *, buckets: int = _BUCKETS) -> MetricView | None:
    """The curve that a summary of the run draws; None without metrics."""
    name = main_metric(run["metrics"])
    if name is None:
        return None
    try:
        return client.metric(run["id"], name, buckets=buckets)
    except NotFound:
        return None


def _show_diff(run: RunDetail) -> None:
    """What was changed since the commit, as git says it; else why there is nothing to show."""
    code = _code_of(run)
    if code["diff"]:
        say(visible(code["diff"], multiline=True), end="")
    elif code["commit"]:
        say(f"No tracked file was changed since commit {code['commit'][:12]}.", err=True)
    else:
        say(f"There is no diff: {visible(code['root'])} was in no git repository, or without a commit.", err=True)


def _show_events(run: RunDetail, terminal: Terminal, *, as_json: bool) -> None:
    if as_json:
        echo_json(run["events"])
    else:
        echo_lines(render_events(run["events"], terminal) or ["Nothing has happened yet."])


def _restore_code(client: Client, run: RunDetail, folder: Path, *, as_json: bool) -> None:
    """Fetch the snapshot's contents beside the folder, then rebuild the tree in it, byte for byte."""
    from gangline.snapshot.manifest import Manifest  # noqa: PLC0415 - only here
    from gangline.snapshot.objects import ObjectStore  # noqa: PLC0415
    from gangline.snapshot.restore import restore  # noqa: PLC0415

    digest = _code_of(run)["digest"]
    _refuse_occupied(folder)
    manifest = Manifest.from_dict(client.snapshot(digest))
    try:
        with tempfile.TemporaryDirectory(prefix=".gangline-", dir=_existing_parent(folder)) as private:
            objects = ObjectStore(Path(private))
            for needed in sorted(manifest.digests()):
                objects.put_bytes(needed, client.object(needed))
            restored = restore(manifest, objects, folder)
    except OSError as error:
        raise InvalidRequest(
            f"{folder} cannot be written to", why=error.strerror or str(error), fix="Name another folder for --code."
        ) from error
    _warn_if_packed(restored)
    if as_json:
        echo_json({"folder": str(restored), "digest": digest, "num_files": manifest.num_files})
        return
    size = f"{render_count(manifest.num_files, 'file')}, {render_size(manifest.size_bytes)}"
    say(f"Restored {size} of {run['id']} into {visible(str(restored))}")


def _warn_if_packed(folder: Path) -> None:
    """Say that the copy lies in a project, whose next snapshot would hold it."""
    from gangline.snapshot.root import find_root  # noqa: PLC0415 - only here

    with suppress(SnapshotRefused):  # its parent is no project, and cannot be one
        root = find_root(folder.parent)
        if (root / ".git").exists() or (root / "gangline.yaml").exists():
            say(
                f"note: it lies in the project {visible(str(root))}, and is packed with the next submit there unless "
                "an ignore file names it",
                err=True,
            )


def _code_of(run: RunDetail) -> CodeView:
    code = run["code"]
    if code is None:
        raise NotFound(f"Run `{run['id']}` has no snapshot of its code")
    return code


def _refuse_occupied(folder: Path) -> None:
    """Say so before anything is fetched.

    Raises:
        Conflict: something is there.
    """
    if folder.is_dir() and not folder.is_symlink() and not any(folder.iterdir()):
        return
    if folder.exists() or folder.is_symlink():
        raise Conflict(
            f"{folder} is not an empty folder", why="Nothing is overwritten.", fix="Name a new folder for --code."
        )


def _existing_parent(folder: Path) -> Path:
    """The nearest folder above that exists: on the same disk, in all likelihood."""
    return next(parent for parent in folder.absolute().parents if parent.is_dir())
