"""`gangline logs --download`: every rank's log of every attempt as a file, each whole or not there."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gangline.cli.terminal import say
from gangline.cli.text import render_count, render_size
from gangline.domain.errors import InvalidRequest
from gangline.rundir.files import Unreadable, read_json, write_json

if TYPE_CHECKING:
    from gangline.client.client import Client

__all__ = ["download_logs", "log_name"]

_NOTE = "gangline-logs.json"
"""Says whose logs the folder holds, and which of them are complete."""


def log_name(rank: int, attempt: int) -> str:
    """`rank-0003.attempt-1.log`."""
    return f"rank-{rank:04d}.attempt-{attempt}.log"


def download_logs(
    client: Client, run_id: str, folder: Path, ranks: Sequence[int], attempts: Sequence[int], **span: float | None
) -> int:
    """Bring logs into a folder; those that are there and complete are left alone, so it can be asked again.

    Args:
        span: `since`, `until`.
    Raises:
        InvalidRequest: the folder holds something else.
    """
    complete = _open_folder(folder, run_id)
    partial = any(value is not None for value in span.values())
    num_files = num_bytes = kept = 0
    for attempt in attempts:
        for rank in ranks:
            path = folder / log_name(rank, attempt)
            if path.name in complete and path.is_file() and not partial:
                kept += 1
                continue
            over = client.log_chunk(run_id, rank, attempt=attempt, offset=(1 << 63) - 1, limit_bytes=16)["complete"]
            size = _write(client, path, run_id, rank, attempt, span)
            num_bytes += size
            num_files += 1
            complete = complete - {path.name} if partial or not over else complete | {path.name}
            write_json(folder / _NOTE, {"run": run_id, "complete": sorted(complete)})
    word = f"; {render_count(kept, 'log')} were there already" if kept else ""
    say(f"{render_count(num_files, 'log')}, {render_size(num_bytes)}, in {folder}{word}", err=True)
    return 0


def _write(client: Client, path: Path, run_id: str, rank: int, attempt: int, span: dict[str, float | None]) -> int:
    """One log, under a private name until all of it is there."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            for block in client.raw_log(run_id, rank, attempt=attempt, **span):
                file.write(block)
            size = file.tell()
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return size


def _open_folder(folder: Path, run_id: str) -> set[str]:
    """Make it, or see that it is ours; the logs in it that are complete."""
    if folder.exists() and not folder.is_dir():
        raise InvalidRequest(f"{folder} is no folder", fix="Name a folder, or one that is to be made.")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        note = read_json(folder / _NOTE)
    except Unreadable:
        note = None
    if note is None:
        if any(folder.glob("rank-*.log")):
            raise InvalidRequest(
                f"{folder} holds logs of ranks that were not downloaded into it", fix="Name another folder."
            )
        return set()
    if note.get("run") != run_id:
        raise InvalidRequest(f"{folder} holds the logs of {note.get('run')}", fix="Name another folder.")
    return {name for name in note.get("complete", []) if isinstance(name, str)}
