"""Calls that make a run from another one: what this machine knows goes with them.

A run takes over the code of the other one; the working tree is not looked at.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gangline.client.client import Client
from gangline.client.shell import find_python
from gangline.client.submission import describe_client
from gangline.domain.check import resolve_checkpoints
from gangline.domain.errors import NotFound
from gangline.snapshot.root import find_root
from gangline.wire.views import RunDetail, RunSummary

__all__ = ["absolute_checkpoint", "find_last_failed", "localise", "send_debug", "send_rerun"]

_MOST_LOOKED_AT = 200


def send_rerun(
    client: Client,
    run: str,
    *,
    changes: Mapping[str, Any],
    args: Sequence[str] | None,
    command: Sequence[str] = tuple(sys.argv),
) -> RunDetail:
    """Queue a new run with the spec and the code of another one.

    Args:
        changes: nested, as `wire.flags.apply_flags` makes them; paths in them start from the current folder.
        args: of the entry point; None: the same.
    """
    made = localise(changes, cwd=Path.cwd())
    who = describe_client(Path.cwd(), command)
    return client.rerun(run, changes=made, args=args, client=who, key=secrets.token_hex(16))


def send_debug(
    client: Client, run: str, options: Mapping[str, Any], *, command: Sequence[str] = tuple(sys.argv)
) -> RunDetail:
    """Queue a run that repeats another one in a smaller world, on this machine.

    Args:
        options: the keys of `Client.debug`.
    """
    checkpoint = absolute_checkpoint(options.get("checkpoint"), cwd=Path.cwd())
    who = describe_client(Path.cwd(), command)
    return client.debug(run, **{**options, "checkpoint": checkpoint}, client=who, key=secrets.token_hex(16))


def localise(changes: Mapping[str, Any], *, cwd: Path, environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Changes in which paths and interpreters are absolute, as the server takes them.

    Raises:
        SpecInvalid: there is no such interpreter, or the checkpoint path names no folder.
    """
    made = {name: dict(part) if isinstance(part, Mapping) else part for name, part in changes.items()}
    checkpoint, environment = made.get("checkpoint", {}), made.get("environment", {})
    if checkpoint.get("path") is not None:
        checkpoint["path"] = resolve_checkpoints(checkpoint["path"], folder=str(cwd))
    if checkpoint.get("start_from") is not None:
        checkpoint["start_from"] = absolute_checkpoint(checkpoint["start_from"], cwd=cwd)
    if environment.get("python") is not None:
        found = find_python(environment["python"], cwd=cwd, root=find_root(cwd), environ=environ)
        environment["python"] = str(found)
    return made


def absolute_checkpoint(word: str | None, *, cwd: Path) -> str | None:
    """A word for a checkpoint: a path in it starts from the current folder."""
    if word is None or "/" not in word:
        return word
    return resolve_checkpoints(word, folder=str(cwd))


def find_last_failed(client: Client, folder: Path) -> RunSummary:
    """The newest failed run that was submitted from the project that a folder belongs to.

    Raises:
        NotFound: none of this project has failed; it names the newest one of another.
    """
    root = str(find_root(folder))
    failed = [run for run in client.list_runs(phases=["failed"], limit=_MOST_LOOKED_AT) if not run["debug_of"]]
    for run in failed:
        code = client.run(run["id"])["code"]
        if code is not None and os.path.realpath(code["root"]) == os.path.realpath(root):
            return run
    fix = f"The newest of another project: gangline rerun {failed[0]['id']}." if failed else "`gangline ps` lists runs."
    raise NotFound(f"No run of {root} has failed", fix=fix)
