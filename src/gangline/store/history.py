"""Rows that belong to a run.

Events, attempts, checkpoints, reading offsets. Functions inside the caller's transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection, Table, bindparam, delete, func, insert, select, update
from sqlalchemy.sql.elements import ColumnElement

from gangline.store.rows import AttemptRow, CheckpointRow, EventRow, NewEvent, clean_text
from gangline.store.schema import attempts, checkpoints, cursors, events

__all__ = [
    "MOST_WARNINGS",
    "add_events",
    "attempt_rows",
    "attempt_spans",
    "checkpoint_rows",
    "event_rows",
    "forget_checkpoints",
    "move_cursors",
    "put_attempts",
    "put_checkpoints",
    "read_cursors",
    "remove_history",
]

_IDS_A_QUERY = 500
"""Databases take only so many values in a query."""

MOST_WARNINGS = 200
"""Warnings that a run's history takes; a script that warns in every step must not drown what else happened."""


def add_events(conn: Connection, run_id: str, new: Sequence[NewEvent]) -> None:
    """Append to the history of a run; warnings beyond `MOST_WARNINGS` are left out, and the last one says so."""
    new = _without_flood(conn, run_id, new)
    if not new:
        return
    last = conn.execute(select(func.max(events.c.seq)).where(events.c.run_id == run_id)).scalar()
    first = 0 if last is None else last + 1
    rows = [
        {
            "run_id": run_id, "seq": first + index, "time": event.time, "kind": event.kind,
            "message": clean_text(event.message), "data": dict(event.data),
        }
        for index, event in enumerate(new)
    ]  # fmt: skip
    conn.execute(insert(events), rows)


def event_rows(conn: Connection, run_id: str, after: int) -> list[EventRow]:
    """Events with a larger number than `after`, in order."""
    query = select(events).where(events.c.run_id == run_id, events.c.seq > after).order_by(events.c.seq)
    return [
        EventRow(seq=row.seq, time=row.time, kind=row.kind, message=row.message, data=row.data or {})
        for row in conn.execute(query)
    ]


def attempt_rows(conn: Connection, run_id: str) -> list[AttemptRow]:
    """Attempts in the order of their numbers."""
    query = select(*attempts.c[1:]).where(attempts.c.run_id == run_id).order_by(attempts.c.number)
    found = [dict(row) for row in conn.execute(query).mappings()]
    return [AttemptRow(**{**row, "ranks": row["ranks"] or (), "nodes": row["nodes"] or ()}) for row in found]


def attempt_spans(conn: Connection, run_ids: Sequence[str]) -> dict[str, list[tuple[float | None, float | None]]]:
    """Start and end of every attempt of these runs, in the order of their numbers."""
    found: dict[str, list[tuple[float | None, float | None]]] = {run_id: [] for run_id in run_ids}
    for first in range(0, len(run_ids), _IDS_A_QUERY):
        wanted = attempts.c.run_id.in_(run_ids[first : first + _IDS_A_QUERY])
        query = select(attempts.c.run_id, attempts.c.started, attempts.c.ended).where(wanted)
        for run_id, started, ended in conn.execute(query.order_by(attempts.c.run_id, attempts.c.number)):
            found[run_id].append((started, ended))
    return found


def put_attempts(conn: Connection, run_id: str, new: Sequence[AttemptRow]) -> None:
    """Insert attempts, or replace what is known of them."""
    for row in new:
        values = asdict(row)
        texts = {name: clean_text(values[name]) for name in ("message", "restart_message", "hint")}
        _put(conn, attempts, {"run_id": run_id, "number": row.number}, {**values, **texts})


def checkpoint_rows(conn: Connection, run_id: str) -> list[CheckpointRow]:
    """Checkpoints by step and attempt."""
    query = select(*(column for column in checkpoints.c if column.name != "run_id"))
    query = query.where(checkpoints.c.run_id == run_id).order_by(checkpoints.c.step, checkpoints.c.attempt)
    return [CheckpointRow(**row) for row in conn.execute(query).mappings()]


def put_checkpoints(conn: Connection, run_id: str, new: Sequence[CheckpointRow]) -> None:
    """Insert checkpoints; one that is saved again under its path replaces the older."""
    for row in new:
        _put(
            conn,
            checkpoints,
            {"run_id": run_id, "path": clean_text(row.path)},
            {**asdict(row), "path": clean_text(row.path)},
        )


def forget_checkpoints(conn: Connection, run_id: str, paths: Sequence[str]) -> None:
    """Note that retention has removed these."""
    for path in paths:
        where = (checkpoints.c.run_id == run_id, checkpoints.c.path == clean_text(path))
        conn.execute(update(checkpoints).where(*where).values(kept=False))


def read_cursors(conn: Connection, run_id: str) -> dict[str, int]:
    """How far each file of the run directory has been read."""
    query = select(cursors.c.path, cursors.c.offset).where(cursors.c.run_id == run_id)
    return {row.path: row.offset for row in conn.execute(query)}


def move_cursors(conn: Connection, moves: Mapping[str, Mapping[str, tuple[int, int]]]) -> set[str]:
    """Move offsets of runs from where they were read to where reading goes on; three statements for all of them.

    Returns:
        The runs of which none has moved meanwhile; those of the others stay as they are.
    """
    known = _offsets(conn, [run_id for run_id, paths in moves.items() if paths])
    fitting = {
        run_id
        for run_id, paths in moves.items()
        if all(known.get((run_id, path), 0) == old for path, (old, _) in paths.items())
    }
    added: list[dict[str, Any]] = []
    moved: list[dict[str, Any]] = []
    for run_id, paths in moves.items():
        for path, (_, new) in paths.items() if run_id in fitting else ():
            rows = moved if (run_id, path) in known else added
            rows.append({"of_run": run_id, "at_path": path, "new_offset": new})
    for query, rows in ((_ADD_CURSOR, added), (_MOVE_CURSOR, moved)):
        if rows:
            conn.execute(query, rows)
    return fitting


_ADD_CURSOR = insert(cursors).values(
    run_id=bindparam("of_run"), path=bindparam("at_path"), offset=bindparam("new_offset")
)
_MOVE_CURSOR = (
    update(cursors)
    .where(cursors.c.run_id == bindparam("of_run"), cursors.c.path == bindparam("at_path"))
    .values(offset=bindparam("new_offset"))
)
_OFFSETS = select(cursors.c.run_id, cursors.c.path, cursors.c.offset).where(
    cursors.c.run_id.in_(bindparam("run_ids", expanding=True))
)


def _offsets(conn: Connection, run_ids: Sequence[str]) -> dict[tuple[str, str], int]:
    found: dict[tuple[str, str], int] = {}
    for first in range(0, len(run_ids), _IDS_A_QUERY):
        rows = conn.execute(_OFFSETS, {"run_ids": run_ids[first : first + _IDS_A_QUERY]})
        found.update({(run_id, path): offset for run_id, path, offset in rows})
    return found


def remove_history(conn: Connection, run_id: str) -> None:
    """Forget all of it."""
    for table in (events, attempts, checkpoints, cursors):
        conn.execute(delete(table).where(table.c.run_id == run_id))


def _without_flood(conn: Connection, run_id: str, new: Sequence[NewEvent]) -> list[NewEvent]:
    if not any(event.kind == "warning" for event in new):
        return list(new)
    where = (events.c.run_id == run_id, events.c.kind == "warning")
    room = MOST_WARNINGS - int(conn.execute(select(func.count()).where(*where)).scalar_one())
    kept: list[NewEvent] = []
    for event in new:
        if event.kind != "warning" or room > 1:
            kept.append(event)
        elif room == 1:
            text = f"{event.message} (Further warnings are not listed here; the run directory has them.)"
            kept.append(NewEvent(time=event.time, kind=event.kind, message=text, data=event.data))
        room -= event.kind == "warning"
    return kept


def _put(conn: Connection, table: Table, key: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    where: list[ColumnElement[bool]] = [table.c[name] == value for name, value in key.items()]
    if conn.execute(update(table).where(*where).values(**values)).rowcount == 0:
        conn.execute(insert(table).values(**key, **{name: value for name, value in values.items() if name not in key}))
