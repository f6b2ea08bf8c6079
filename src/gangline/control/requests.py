"""Requests to a gang, as lines of `control.jsonl`."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Sequence

from gangline.rundir.files import Unreadable, read_json
from gangline.rundir.journal import JournalReader, JournalWriter
from gangline.rundir.layout import RunDir
from gangline.store.rows import RunRow

__all__ = ["ask_stacks", "ask_stop", "control_size", "renew_lease", "tell_end"]


def ask_stop(run_dir: RunDir, run: RunRow, *, grace_s: float) -> bool:
    """Ask the leader of the run's launch to stop, unless this very request is in the file already.

    Returns:
        Whether a line was written.
    Raises:
        OSError: the file cannot be written.
    """
    reader = JournalReader(run_dir.control, _offset(run_dir, run.launch))
    if any(line.get("kind") == "stop" and line.get("asked") == run.stop_asked for line in reader.read_all()):
        return False
    with JournalWriter(run_dir.control) as journal:
        journal.write("stop", cause=run.stop_cause or "stop", grace_s=grace_s, by=run.stop_by, asked=run.stop_asked)
    return True


def tell_end(run_dir: RunDir, run: RunRow, end: float) -> bool:
    """Tell the leader of the run's launch when its machines are taken back, unless it was told so last.

    Args:
        end: by the machines' own clock; inf: never.
    Returns:
        Whether a line was written.
    Raises:
        OSError: the file cannot be written.
    """
    new = None if math.isinf(end) else end
    reader = JournalReader(run_dir.control, _offset(run_dir, run.launch))
    told = [line for line in reader.read_all() if line.get("kind") == "end"]
    if told and told[-1].get("end") == new:
        return False
    with JournalWriter(run_dir.control) as journal:
        journal.write("end", end=new)
    return True


def renew_lease(run_dir: RunDir) -> None:
    """Tell whoever counts that the run is still wanted.

    Raises:
        OSError: the file cannot be written.
    """
    with JournalWriter(run_dir.control) as journal:
        journal.write("renew")


def ask_stacks(run_dir: RunDir, *, ranks: Sequence[int] | None, native: bool, by: str) -> str:
    """Ask the leader for stacks; the id under which it will answer.

    Raises:
        OSError: the file cannot be written.
    """
    name = f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-asked-{secrets.token_hex(3)}"
    with JournalWriter(run_dir.control) as journal:
        journal.write("stacks", id=name, ranks=None if ranks is None else list(ranks), native=native, by=by)
    return name


def control_size(run_dir: RunDir) -> int:
    """Bytes in `control.jsonl` now."""
    try:
        return run_dir.control.stat().st_size
    except FileNotFoundError:
        return 0


def _offset(run_dir: RunDir, launch: int) -> int:
    try:
        told = read_json(run_dir.launch(launch).spec)
    except Unreadable:
        return 0
    return 0 if told is None else int(told.get("control_offset", 0))
