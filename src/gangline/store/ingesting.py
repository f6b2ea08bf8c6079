"""What readings of run directories found, stored by as few statements as can be, however many runs there are.

Functions inside the caller's transaction.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, bindparam, func, update

from gangline.store import appending, history, marks
from gangline.store.rows import IngestBatch
from gangline.store.schema import runs

__all__ = ["store_batches"]

_PROGRESS = ("attempt", "attempt_nodes", "step", "total_steps")
_UPDATE_PROGRESS = (
    update(runs)
    .where(runs.c.id == bindparam("of_run"))
    .values(
        **{name: func.coalesce(bindparam(f"new_{name}"), runs.c[name]) for name in _PROGRESS},
        started=func.coalesce(runs.c.started, bindparam("new_started")),
    )
)


def store_batches(conn: Connection, batches: Mapping[str, IngestBatch]) -> set[str]:
    """Store batches of runs with how far each has read: all of a batch, or nothing.

    Returns:
        The runs whose batch was stored; of the others another reader was faster.
    """
    fitting = history.move_cursors(conn, {run_id: batch.cursors for run_id, batch in batches.items()})
    kept = {run_id: batch for run_id, batch in batches.items() if run_id in fitting}
    for run_id, batch in kept.items():
        history.put_attempts(conn, run_id, batch.attempts)
        history.put_checkpoints(conn, run_id, batch.checkpoints)
        history.forget_checkpoints(conn, run_id, batch.removed_checkpoints)
        history.add_events(conn, run_id, batch.events)
        marks.add_marks(conn, batch.marks)
    appending.append_points(conn, {run_id: batch.points for run_id, batch in kept.items() if batch.points})
    moved = [row for run_id, batch in kept.items() if (row := _progress(run_id, batch)) is not None]
    if moved:
        conn.execute(_UPDATE_PROGRESS, moved)
    return fitting


def _progress(run_id: str, batch: IngestBatch) -> dict[str, Any] | None:
    new = {f"new_{name}": getattr(batch, name) for name in (*_PROGRESS, "started")}
    return None if all(value is None for value in new.values()) else {"of_run": run_id, **new}
