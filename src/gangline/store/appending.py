"""Append points to their series; see `metrics.py` for how they are kept.

The last chunk of each series is rewritten until it is full. All that one batch changes is written by a few statements
for many rows.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, RowMapping, Table, and_, bindparam, delete, insert, select, update

from gangline.store.chart import CHUNK_POINTS, cell_of
from gangline.store.metrics import pack_points, unpack_points
from gangline.store.rows import Points, clean_text
from gangline.store.schema import chunks, rollups, series

__all__ = ["append_points", "remove_series"]

_MAX_NAME_CHARS = 200
_CHUNK_KEY = ("series_id", "chunk")
_CHUNK_COLUMNS = ("points",)
_ROLLUP_COLUMNS = tuple(column.name for column in rollups.c if column.name not in _CHUNK_KEY)
_SERIES_COLUMNS = ("points", "min_step", "last_step", "last_value", "last_time")


@dataclass(slots=True)
class _Tail:
    """A series, with the points of the chunk that is not full yet."""

    id: int
    points: int
    min_step: int
    steps: array[int]
    times: array[float]
    values: array[float]


@dataclass(slots=True)
class _Writes:
    """Rows that a batch changes."""

    new_chunks: list[dict[str, Any]] = field(default_factory=list)
    grown_chunks: list[dict[str, Any]] = field(default_factory=list)
    grown_series: list[dict[str, Any]] = field(default_factory=list)

    def flush(self, conn: Connection) -> None:
        """Write them."""
        for table, columns in ((chunks, _CHUNK_COLUMNS), (rollups, _ROLLUP_COLUMNS)):
            _insert(conn, table, (*_CHUNK_KEY, *columns), self.new_chunks)
            _update(conn, table, _CHUNK_KEY, columns, self.grown_chunks)
        _update(conn, series, ("id",), _SERIES_COLUMNS, self.grown_series)


def append_points(conn: Connection, run_id: str, batch: Sequence[Points]) -> None:
    """Add points to their series; part of the caller's transaction."""
    known: dict[tuple[int, int], dict[str, RowMapping]] = {}
    writes = _Writes()
    for points in _by_stored_name(batch):
        where = (points.rank, points.attempt)
        if where not in known:
            known[where] = _series_of(conn, run_id, *where)
        _append(conn, run_id, points, known[where].get(points.name), writes)
    writes.flush(conn)


def _by_stored_name(batch: Iterable[Points]) -> list[Points]:
    """One entry for each series; names that are stored as the same text are the same series."""
    found: dict[tuple[int, str, int], Points] = {}
    for points in batch:
        name = clean_text(points.name)[:_MAX_NAME_CHARS]
        key = (points.rank, name, points.attempt)
        if key not in found:
            found[key] = Points(rank=points.rank, name=name, attempt=points.attempt, steps=[], times=[], values=[])
        found[key].steps.extend(points.steps)
        found[key].times.extend(points.times)
        found[key].values.extend(points.values)
    return [points for points in found.values() if points.values]


def _series_of(conn: Connection, run_id: str, rank: int, attempt: int) -> dict[str, RowMapping]:
    """Series of a rank in an attempt, with the points of their last chunk, by name."""
    last_chunk = and_(chunks.c.series_id == series.c.id, chunks.c.chunk == series.c.points // CHUNK_POINTS)
    query = (
        select(series, chunks.c.points.label("tail"))
        .select_from(series.outerjoin(chunks, last_chunk))
        .where(series.c.run_id == run_id, series.c.rank == rank, series.c.attempt == attempt)
    )
    return {row["name"]: row for row in conn.execute(query).mappings()}


def _append(conn: Connection, run_id: str, points: Points, row: RowMapping | None, writes: _Writes) -> None:
    if row is None:
        steps = _numbered(points.steps, _first_step(conn, run_id, points))
        tail = _Tail(_new_series(conn, run_id, points), 0, steps[0], array("q"), array("d"), array("d"))
    else:
        steps = _numbered(points.steps, row["last_step"] + 1)
        tail = _Tail(row["id"], row["points"], row["min_step"], *unpack_points(row["tail"] or b""))
    _extend(tail, steps, points, writes)


def _numbered(steps: Sequence[int | None], following: int) -> list[int]:
    numbered: list[int] = []
    for step in steps:
        numbered.append(following if step is None else step)
        following = numbered[-1] + 1
    return numbered


def _first_step(conn: Connection, run_id: str, points: Points) -> int:
    """Where a series without steps begins: after what earlier attempts have logged, so that nothing is superseded."""
    if points.steps[0] is not None:
        return 0
    query = select(series.c.last_step).where(
        series.c.run_id == run_id,
        series.c.rank == points.rank,
        series.c.name == points.name,
        series.c.attempt < points.attempt,
    )
    last = conn.execute(query.order_by(series.c.attempt.desc()).limit(1)).scalar_one_or_none()
    return 0 if last is None else last + 1


def _new_series(conn: Connection, run_id: str, points: Points) -> int:
    start = dict.fromkeys(("points", "min_step", "last_step", "last_time"), 0)
    query = insert(series).values(run_id=run_id, rank=points.rank, name=points.name, attempt=points.attempt, **start)
    key = conn.execute(query).inserted_primary_key
    assert key is not None  # noqa: S101 - a single inserted row always has one
    return int(key[0])


def _extend(tail: _Tail, steps: Sequence[int], points: Points, writes: _Writes) -> None:
    first_chunk, held = divmod(tail.points, CHUNK_POINTS)
    tail.steps.extend(steps)
    tail.times.extend(points.times)
    tail.values.extend(points.values)
    starts = range(0, len(tail.steps), CHUNK_POINTS)
    rows = [_chunk_row(tail, start, first_chunk + index) for index, start in enumerate(starts)]
    if held:
        writes.grown_chunks.append(rows.pop(0))
    writes.new_chunks += rows
    last = points.values[-1]
    writes.grown_series.append(
        {
            "id": tail.id,
            "points": tail.points + len(steps),
            "min_step": min(tail.min_step, *steps),
            "last_step": steps[-1],
            "last_value": last if math.isfinite(last) else None,
            "last_time": points.times[-1],
        }
    )


def _chunk_row(tail: _Tail, start: int, chunk: int) -> dict[str, Any]:
    part = slice(start, start + CHUNK_POINTS)
    steps, values = tail.steps[part], tail.values[part]
    first, last, count, finite, low, high, mean = cell_of(steps, values)
    return {
        "series_id": tail.id,
        "chunk": chunk,
        "points": pack_points(steps, tail.times[part], values),
        "first_step": first,
        "last_step": last,
        "count": count,
        "finite": finite,
        "min": low,
        "max": high,
        "mean": mean,
    }


def remove_series(conn: Connection, run_id: str) -> None:
    """Forget every metric of a run."""
    ids = select(series.c.id).where(series.c.run_id == run_id)
    for table in (rollups, chunks):
        conn.execute(delete(table).where(table.c.series_id.in_(ids)))
    conn.execute(delete(series).where(series.c.run_id == run_id))


def _insert(conn: Connection, table: Table, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    if rows:
        conn.execute(insert(table), [{name: row[name] for name in columns} for row in rows])


def _update(
    conn: Connection, table: Table, key: Sequence[str], columns: Sequence[str], rows: Sequence[Mapping[str, Any]]
) -> None:
    if not rows:
        return
    where = [table.c[name] == bindparam(f"key_{name}") for name in key]
    query = update(table).where(*where).values({name: bindparam(f"new_{name}") for name in columns})
    given = [
        {f"key_{name}": row[name] for name in key} | {f"new_{name}": row[name] for name in columns} for row in rows
    ]
    conn.execute(query, given)
