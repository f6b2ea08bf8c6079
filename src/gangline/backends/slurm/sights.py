"""What the mirror of a run shows of its life: for housekeeping, which asks seldom and may read more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gangline.backends.slurm.footprint import read_footprint
from gangline.backends.slurm.housekeeping import Sight
from gangline.rundir.journal import parse_records
from gangline.rundir.layout import AttemptDir, RunDir

__all__ = ["read_sight"]

_END_BYTES = 64 << 10
_BUSY_CORES = 0.02
"""Ranks that use more than this of a processor compute something."""
_FRESH_S = 60.0


def read_sight(run: RunDir, launch: int, *, now: float, clock_offset_s: float, mirrored: float | None) -> Sight:
    """What is seen of one launch.

    Args:
        now: by our clock.
        clock_offset_s: how far the cluster's clock, by which signs of life are dated, is ahead.
        mirrored: when the mirror last held everything, by our clock.
    """
    footprint = read_footprint(run, launch)
    sign, mark = footprint.alive_sign, footprint.mark
    return Sight(
        has_leader=sign is not None,
        silent_s=None if sign is None else max(0.0, now + clock_offset_s - sign / 1e9),
        quiet_s=_quiet_s(run, now),
        marked_s=None if mark is None else max(0.0, now + clock_offset_s - mark.time),
        is_fresh=mirrored is not None and now - mirrored <= _FRESH_S,
    )


def _quiet_s(run: RunDir, now: float) -> float | None:
    """None before the first attempt; files of the mirror are dated by when they grew here."""
    attempts = run.attempts()
    if not attempts:
        return None
    if any(_is_busy(attempts[-1], node) for node in attempts[-1].nodes()):
        return 0.0
    newest = max((time for path in _signs(run, attempts[-1]) if (time := _changed(path)) is not None), default=None)
    return None if newest is None else max(0.0, now - newest)


def _signs(run: RunDir, attempt: AttemptDir) -> Iterator[Path]:
    """Files that grow while a run makes progress."""
    yield attempt.gang
    yield from (attempt.log(rank) for rank in attempt.ranks())
    yield from (run.metrics(rank) for rank in run.metric_ranks())


def _changed(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def _is_busy(attempt: AttemptDir, node: int) -> bool:
    """Whether ranks of a node use a processor, or an accelerator, by the newest sample of it."""
    try:
        with attempt.system(node).open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - _END_BYTES))
            records, _ = parse_records(file.read())
    except OSError:
        return False
    newest: dict[str, Any] = next((record for record in reversed(records) if record.get("kind") == "sample"), {})
    cores = sum(float(rank.get("cpu") or 0.0) for rank in (newest.get("ranks") or {}).values())
    devices = any((device.get("use_percent") or 0) > 0 for device in newest.get("devices") or ())
    return cores > _BUSY_CORES or devices
