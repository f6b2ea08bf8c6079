"""Charts: many values of a metric as a few buckets of min, max and mean. Pure; standard library only.

A cell is a run of values: (first step, last step, count, how many of them are finite, min, max, mean), the last three
None where nothing is finite.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence

__all__ = ["CHUNK_POINTS", "Cell", "cell_of", "decide_buckets", "merge_cells"]

CHUNK_POINTS = 256

Cell = tuple[int, int, int, int, float | None, float | None, float | None]


def cell_of(steps: array[int], values: array[float]) -> Cell:
    """The cell of n >= 1 points."""
    finite = [value for value in values if math.isfinite(value)]
    first, last = min(steps), max(steps)
    if not finite:
        return first, last, len(values), 0, None, None, None
    return first, last, len(values), len(finite), min(finite), max(finite), _mean(sum(finite), finite)


def _mean(total: float, finite: Sequence[float]) -> float:
    if math.isfinite(total):
        return total / len(finite)
    return math.fsum(value / len(finite) for value in finite)  # values near the largest float


def merge_cells(cells: Sequence[Cell]) -> Cell:
    """One cell for n >= 1 of them."""
    first, last = min(cell[0] for cell in cells), max(cell[1] for cell in cells)
    count, finite = sum(cell[2] for cell in cells), sum(cell[3] for cell in cells)
    if not finite:
        return first, last, count, 0, None, None, None
    low = min(cell[4] for cell in cells if cell[4] is not None)
    high = max(cell[5] for cell in cells if cell[5] is not None)
    mean = math.fsum(cell[6] * (cell[3] / finite) for cell in cells if cell[6] is not None)
    return first, last, count, finite, low, high, min(max(mean, low), high)


def decide_buckets(cells: Sequence[Cell], buckets: int) -> list[Cell]:
    """At most `buckets` cells that cover all of `cells` in order, of nearly equal counts of values.

    Args:
        cells: in order, length C.
        buckets: at least 1.
    """
    if len(cells) <= buckets:
        return list(cells)
    total = sum(cell[2] for cell in cells)
    found: list[Cell] = []
    start = seen = 0
    for index, cell in enumerate(cells):
        seen += cell[2]
        if seen * buckets >= total * (len(found) + 1):
            found.append(merge_cells(cells[start : index + 1]))
            start = index + 1
    return found  # each bucket passes one more of `buckets` marks, and the last cell passes the last mark
