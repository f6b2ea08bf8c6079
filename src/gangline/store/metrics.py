"""Metric series: points in packed chunks, and one rollup row for each chunk.

A series is one (run, rank, name, attempt). Its points lie in chunks of `CHUNK_POINTS`, packed as three arrays; next
to each chunk stands a row with its range of steps, count, min, max and mean over what is finite. A chart over a
million points therefore reads 4,000 small rows and no point, and one over a few thousand reads the points themselves.

The pure part is in `chart.py`, writing in `appending.py`; this file reads.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from operator import itemgetter

from sqlalchemy import Connection, select

from gangline.store.chart import CHUNK_POINTS, Cell, cell_of
from gangline.store.schema import chunks, rollups, series

__all__ = ["chart_cells", "newest_values", "pack_points", "unpack_points"]

_ITEM_BYTES = 8
_CELLS_PER_BUCKET = 4


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


def newest_values(conn: Connection, run_id: str, rank: int) -> dict[str, float | None]:
    """The newest value of each metric of a rank; None where it is not finite."""
    query = select(series.c.name, series.c.last_value).where(series.c.run_id == run_id, series.c.rank == rank)
    return {row.name: row.last_value for row in conn.execute(query.order_by(series.c.attempt))}


def chart_cells(conn: Connection, run_id: str, name: str, *, rank: int, buckets: int) -> list[Cell] | None:
    """Everything that a chart shows of one metric, by step; from points where they are few, else from rollups.

    Within an attempt training may log steps in any order (an evaluation that comes late).

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
    return sorted((cell for part in reversed(parts) for cell in part), key=itemgetter(0))


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
