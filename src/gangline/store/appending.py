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

from sqlalchemy import (
    Connection,
    Insert,
    RowMapping,
    Table,
    Update,
    and_,
    bindparam,
    delete,
    insert,
    select,
    tuple_,
    update,
)

from gangline.store.chart import CHUNK_POINTS, cell_of
from gangline.store.metrics import pack_points, unpack_points
from gangline.store.rows import Points, clean_text
from gangline.store.schema import chunks, rollups, series

__all__ = ["append_points", "remove_series"]

_MAX_NAME_CHARS = 200
_RANKS_A_QUERY = 200
"""Databases take only so many values in a query."""
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


@dataclass(frozen=True, slots=True)
class _Many:
    """One statement for many rows, made once: making it costs more than a row does."""

    query: Insert | Update
    columns: Mapping[str, str]
    """What each of its values is called in a row."""

    def execute(self, conn: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
        if rows:
            conn.execute(self.query, [{given: row[name] for given, name in self.columns.items()} for row in rows])


def _inserting(table: Table, columns: Sequence[str]) -> _Many:
    return _Many(insert(table), {name: name for name in columns})


def _updating(table: Table, key: Sequence[str], columns: Sequence[str]) -> _Many:
    where = [table.c[name] == bindparam(f"key_{name}") for name in key]
    query = update(table).where(*where).values({name: bindparam(f"new_{name}") for name in columns})
    return _Many(query, {f"key_{name}": name for name in key} | {f"new_{name}": name for name in columns})


_CHUNKS, _ROLLUPS = (
    (_inserting(table, (*_CHUNK_KEY, *columns)), _updating(table, _CHUNK_KEY, columns))
    for table, columns in ((chunks, _CHUNK_COLUMNS), (rollups, _ROLLUP_COLUMNS))
)
_GROWN_SERIES = _updating(series, ("id",), _SERIES_COLUMNS)


@dataclass(slots=True)
class _Writes:
    """Rows that a batch changes."""

    new_chunks: list[dict[str, Any]] = field(default_factory=list)
    grown_chunks: list[dict[str, Any]] = field(default_factory=list)
    grown_series: list[dict[str, Any]] = field(default_factory=list)

    def flush(self, conn: Connection) -> None:
        """Write them."""
        for added, grown in (_CHUNKS, _ROLLUPS):
            added.execute(conn, self.new_chunks)
            grown.execute(conn, self.grown_chunks)
        _GROWN_SERIES.execute(conn, self.grown_series)


def append_points(conn: Connection, batches: Mapping[str, Sequence[Points]]) -> None:
    """Add points of runs to their series; part of the caller's transaction."""
    named = {run_id: _by_stored_name(batch) for run_id, batch in batches.items()}
    known = _series_of(conn, {(run_id, one.rank, one.attempt) for run_id, batch in named.items() for one in batch})
    writes = _Writes()
    for run_id, batch in named.items():
        for points in batch:
            row = known.get((run_id, points.rank, points.attempt, points.name))
            _append(conn, run_id, points, row, writes)
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


_SERIES = (
    select(series, chunks.c.points.label("tail"))
    .select_from(
        series.outerjoin(
            chunks, and_(chunks.c.series_id == series.c.id, chunks.c.chunk == series.c.points // CHUNK_POINTS)
        )
    )
    .where(tuple_(series.c.run_id, series.c.rank, series.c.attempt).in_(bindparam("wanted", expanding=True)))
)


def _series_of(conn: Connection, wanted: Iterable[tuple[str, int, int]]) -> dict[tuple[str, int, int, str], RowMapping]:
    """Series of ranks of runs in an attempt, with the points of their last chunk, by those and their names."""
    left = sorted(wanted)
    found: dict[tuple[str, int, int, str], RowMapping] = {}
    for first in range(0, len(left), _RANKS_A_QUERY):
        rows = conn.execute(_SERIES, {"wanted": left[first : first + _RANKS_A_QUERY]}).mappings()
        found.update({(row["run_id"], row["rank"], row["attempt"], row["name"]): row for row in rows})
    return found


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
