"""Metric series: points in packed chunks, and one rollup row for each chunk.

A series is one (run, rank, name, attempt). Its points lie in chunks of `CHUNK_POINTS`, packed as three arrays; next
to each chunk stands a row with its range of steps, count, min, max and mean over what is finite. A chart over a
million points therefore reads 4,000 small rows and no point, and one over a few thousand reads the points themselves.

The pure part is in `chart.py`; this file moves rows.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, RowMapping, and_, bindparam, insert, select, update

from gangline.store.chart import CHUNK_POINTS, Cell, cell_of
from gangline.store.rows import Points, clean_text
from gangline.store.schema import chunks, rollups, series

__all__ = ["append_points", "chart_cells", "newest_values", "pack_points", "unpack_points"]

_MAX_NAME_CHARS = 200
_ITEM_BYTES = 8
_CELLS_PER_BUCKET = 4


@dataclass(slots=True)
class _Tail:
    """A series as it is being appended to."""

    id: int
    points: int
    min_step: int
    last_step: int
    steps: array[int]
    times: array[float]
    values: array[float]


def pack_points(steps: Sequence[int], times: Sequence[float], values: Sequence[float]) -> bytes:
    """Pack n points as n int64, n float64, n float64, in the byte order of the machine."""
    return array("q", steps).tobytes() + array("d", times).tobytes() + array("d", values).tobytes()


def unpack_points(blob: bytes) -> tuple[array[int], array[float], array[float]]:
    """The steps, times and values that `pack_points` packed."""
    size = len(blob) // 3 // _ITEM_BYTES * _ITEM_BYTES
    steps, times, values = array("q"), array("d"), array("d")
    steps.frombytes(blob[:size])
    times.frombytes(blob[size : 2 * size])
    values.frombytes(blob[2 * size : 3 * size])
    return steps, times, values


def append_points(conn: Connection, run_id: str, batch: Sequence[Points]) -> None:
    """Add points to their series; part of the caller's transaction."""
    known: dict[tuple[int, int], dict[str, RowMapping]] = {}
    for points in batch:
        where = (points.rank, points.attempt)
        if where not in known:
            known[where] = _series_of(conn, run_id, *where)
        _append(conn, run_id, points, known[where])


def newest_values(conn: Connection, run_id: str, rank: int) -> dict[str, float | None]:
    """The newest value of each metric of a rank; None where it is not finite."""
    query = select(series.c.name, series.c.last_value).where(series.c.run_id == run_id, series.c.rank == rank)
    return {row.name: row.last_value for row in conn.execute(query.order_by(series.c.attempt))}


def chart_cells(conn: Connection, run_id: str, name: str, *, rank: int, buckets: int) -> list[Cell] | None:
    """Everything that a chart shows of one metric, in order; from points where they are few, else from rollups.

    Points of an attempt from the first step of a later attempt on are superseded: training went back there and did
    them again.

    Returns:
        At least `buckets` cells where there are as many points; None if the rank has no such metric.
    """
    query = select(series).where(series.c.run_id == run_id, series.c.rank == rank, series.c.name == name)
    found = conn.execute(query.order_by(series.c.attempt.desc())).mappings().all()
    if not found:
        return None
    total = sum(row["points"] for row in found)
    stride = max(1, total // (_CELLS_PER_BUCKET * buckets)) if total <= CHUNK_POINTS * buckets else None
    parts: list[list[Cell]] = []
    end: int | None = None
    for row in found:
        parts.append(_rollup_cells(conn, row["id"], end) if stride is None else _exact(conn, row["id"], end, stride))
        end = row["min_step"] if end is None else min(end, row["min_step"])
    return [cell for part in reversed(parts) for cell in part]


def _exact(conn: Connection, series_id: int, end: int | None, stride: int) -> list[Cell]:
    return [cell for blob in _blobs(conn, series_id) for cell in _point_cells(blob, end, stride)]


def _rollup_cells(conn: Connection, series_id: int, end: int | None) -> list[Cell]:
    columns = [*(column for column in rollups.c if column.name not in {"series_id", "chunk"}), rollups.c.chunk]
    query = select(*columns).where(rollups.c.series_id == series_id).order_by(rollups.c.chunk)
    cells: list[Cell] = []
    for row in conn.execute(query):
        first, last, count, finite, low, high, mean, chunk = row
        if end is None or last < end:
            cells.append((first, last, count, finite, low, high, mean))
        elif first < end:
            cells.extend(cell for blob in _blobs(conn, series_id, chunk) for cell in _point_cells(blob, end, count))
    return cells


def _blobs(conn: Connection, series_id: int, chunk: int | None = None) -> list[bytes]:
    query = select(chunks.c.points).where(chunks.c.series_id == series_id).order_by(chunks.c.chunk)
    return list(conn.execute(query if chunk is None else query.where(chunks.c.chunk == chunk)).scalars())


def _point_cells(blob: bytes, end: int | None, stride: int) -> list[Cell]:
    """Cells of `stride` points each, from the points at steps before `end`."""
    steps, _, values = unpack_points(blob)
    if end is not None and max(steps) >= end:
        kept = [(step, value) for step, value in zip(steps, values, strict=True) if step < end]
        steps, values = array("q", (step for step, _ in kept)), array("d", (value for _, value in kept))
    parts = (slice(start, start + stride) for start in range(0, len(steps), stride))
    return [cell_of(steps[part], values[part]) for part in parts]


def _series_of(conn: Connection, run_id: str, rank: int, attempt: int) -> dict[str, RowMapping]:
    """Series of a rank in an attempt, with the points of their last chunk, by name."""
    last_chunk = and_(chunks.c.series_id == series.c.id, chunks.c.chunk == series.c.points // CHUNK_POINTS)
    query = (
        select(series, chunks.c.points.label("tail"))
        .select_from(series.outerjoin(chunks, last_chunk))
        .where(series.c.run_id == run_id, series.c.rank == rank, series.c.attempt == attempt)
    )
    return {row["name"]: row for row in conn.execute(query).mappings()}


def _append(conn: Connection, run_id: str, points: Points, known: Mapping[str, RowMapping]) -> None:
    if not points.values:
        return
    name = clean_text(points.name)[:_MAX_NAME_CHARS]
    row = known.get(name)
    first_step = _step_after_earlier_attempts(conn, run_id, name, points) if row is None else row["last_step"] + 1
    steps = _numbered(points.steps, first_step)
    if row is None:
        tail = _Tail(_new_series(conn, run_id, name, points), 0, steps[0], 0, array("q"), array("d"), array("d"))
    else:
        tail = _Tail(row["id"], row["points"], row["min_step"], row["last_step"], *unpack_points(row["tail"] or b""))
    _extend(conn, tail, steps, points)


def _numbered(steps: Sequence[int | None], following: int) -> list[int]:
    numbered: list[int] = []
    for step in steps:
        numbered.append(following if step is None else step)
        following = numbered[-1] + 1
    return numbered


def _step_after_earlier_attempts(conn: Connection, run_id: str, name: str, points: Points) -> int:
    """Where a series without steps of its own begins.

    After what earlier attempts have logged, so that nothing is superseded.
    """
    if points.steps[0] is not None:
        return 0
    query = select(series.c.last_step).where(
        series.c.run_id == run_id,
        series.c.rank == points.rank,
        series.c.name == name,
        series.c.attempt < points.attempt,
    )
    last = conn.execute(query.order_by(series.c.attempt.desc()).limit(1)).scalar_one_or_none()
    return 0 if last is None else last + 1


def _new_series(conn: Connection, run_id: str, name: str, points: Points) -> int:
    values = {"points": 0, "min_step": 0, "last_step": 0, "last_value": None, "last_time": 0.0}
    query = insert(series).values(run_id=run_id, rank=points.rank, name=name, attempt=points.attempt, **values)
    key = conn.execute(query).inserted_primary_key
    assert key is not None  # noqa: S101 - a single inserted row always has one
    return int(key[0])


def _extend(conn: Connection, tail: _Tail, steps: Sequence[int], points: Points) -> None:
    first_chunk, held = divmod(tail.points, CHUNK_POINTS)
    tail.steps.extend(steps)
    tail.times.extend(points.times)
    tail.values.extend(points.values)
    rows = [
        _chunk_row(tail, slice(start, start + CHUNK_POINTS), first_chunk + index)
        for index, start in enumerate(range(0, len(tail.steps), CHUNK_POINTS))
    ]
    if held:
        _replace_chunk(conn, rows.pop(0))
    if rows:
        conn.execute(insert(chunks), [{key: row[key] for key in ("series_id", "chunk", "points")} for row in rows])
        conn.execute(insert(rollups), [{key: value for key, value in row.items() if key != "points"} for row in rows])
    last = points.values[-1]
    conn.execute(
        update(series).where(series.c.id == tail.id),
        {
            "points": tail.points + len(steps),
            "min_step": min(tail.min_step, *steps),
            "last_step": steps[-1],
            "last_value": last if math.isfinite(last) else None,
            "last_time": points.times[-1],
        },
    )


def _chunk_row(tail: _Tail, part: slice, chunk: int) -> dict[str, object]:
    steps, values = tail.steps[part], tail.values[part]
    first, last, count, finite, low, high, mean = cell_of(steps, values)
    blob = pack_points(steps, tail.times[part], values)
    return {
        "series_id": tail.id, "chunk": chunk, "points": blob, "first_step": first, "last_step": last, "count": count,
        "finite": finite, "min": low, "max": high, "mean": mean,
    }  # fmt: skip


def _replace_chunk(conn: Connection, row: Mapping[str, object]) -> None:
    given = {f"new_{key}": value for key, value in row.items()}
    for table, columns in ((chunks, ("points",)), (rollups, tuple(rollups.c.keys())[2:])):
        place = and_(table.c.series_id == bindparam("new_series_id"), table.c.chunk == bindparam("new_chunk"))
        query = update(table).where(place).values({name: bindparam(f"new_{name}") for name in columns})
        conn.execute(
            query, {key: given[key] for key in ("new_series_id", "new_chunk", *(f"new_{name}" for name in columns))}
        )
