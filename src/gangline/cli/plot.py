"""Curves in a terminal: braille dots where there is Unicode, stars where there is not. Readable without colours.

Pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from gangline.cli.text import render_number

__all__ = ["render_plot", "render_sparkline"]

_BRAILLE = 0x2800
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bits of a braille cell by row (0 at the top) and column."""
_BARS = "▁▂▃▄▅▆▇█"
_ASCII_BARS = "_.-=+*#@"

Point = tuple[float, float]


def render_plot(points: Sequence[Point], *, width: int = 60, height: int = 12, unicode: bool = True) -> list[str]:
    """A line chart with its axes.

    Args:
        points: (x, y), x ascending; points that are not finite are left out and counted below the chart.
        width: columns of the whole chart, axis labels included; at least 20.
        height: rows of the curve.
    Returns:
        `height` rows, an axis, its labels, and a line on what was left out where there is any. Empty without points.
    """
    finite = [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
    if not finite:
        return []
    low, high = _range(finite)
    labels = _labels(low, high, height)
    margin = max(map(len, labels))
    columns = max(width, 20) - margin - 2
    canvas = _draw(finite, (low, high), columns, height, cell=(2, 4) if unicode else (1, 1))
    glyph = _braille if unicode else _star
    bar, corner, dash = ("┤", "└", "─") if unicode else ("|", "+", "-")
    lines = [f"{labels[row]:>{margin}} {bar}{''.join(map(glyph, canvas[row]))}".rstrip() for row in range(height)]
    lines.append(f"{'':>{margin}} {corner}{dash * columns}")
    lines.append(f"{'':>{margin}}  {_x_labels(finite[0][0], finite[-1][0], columns)}")
    missing = len(points) - len(finite)
    return [*lines, f"{'':>{margin}}  ({missing} of {len(points)} points are not finite)"] if missing else lines


def render_sparkline(values: Sequence[float], *, width: int = 40, unicode: bool = True) -> str:
    """The newest `width` values as bars in one line; empty without any."""
    finite = [value for value in values if math.isfinite(value)][-width:]
    if not finite:
        return ""
    bars = _BARS if unicode else _ASCII_BARS
    low, high = min(finite), max(finite)
    span = (high - low) or 1.0
    return "".join(bars[min(len(bars) - 1, int((value - low) / span * len(bars)))] for value in finite)


def _range(points: Sequence[Point]) -> tuple[float, float]:
    low, high = min(y for _, y in points), max(y for _, y in points)
    if low < high:
        return low, high
    room = abs(low) * 0.1 or 1.0
    return low - room, high + room


def _labels(low: float, high: float, height: int) -> list[str]:
    """A value beside the top row, the bottom row, and every fourth one between."""
    labels = []
    for row in range(height):
        value = high - (high - low) * row / max(1, height - 1)
        wanted = row in {0, height - 1} or (row % 4 == 0 and row < height - 2)
        labels.append(render_number(float(f"{value:.4g}")) if wanted else "")
    return labels


def _x_labels(first: float, last: float, columns: int) -> str:
    left, right = render_number(first), render_number(last)
    if first == last:
        return left
    return left + right.rjust(max(len(right) + 1, columns - len(left)))


def _draw(
    points: Sequence[Point], y_range: tuple[float, float], columns: int, height: int, *, cell: tuple[int, int]
) -> list[list[int]]:
    """Bits of every character cell; `cell` is its number of dots across and down."""
    dots_x, dots_y = columns * cell[0], height * cell[1]
    low, high = y_range
    first, last = points[0][0], points[-1][0]
    x_scale = (dots_x - 1) / ((last - first) or 1.0)
    y_scale = (dots_y - 1) / (high - low)
    spots = [(round((x - first) * x_scale), round((high - y) * y_scale)) for x, y in points]
    canvas = [[0] * columns for _ in range(height)]
    for before, after in zip([spots[0], *spots], spots, strict=False):
        for x, y in _segment(before, after):
            canvas[y // cell[1]][x // cell[0]] |= _DOTS[y % cell[1]][x % cell[0]]
    return canvas


def _segment(start: tuple[int, int], end: tuple[int, int]) -> list[tuple[int, int]]:
    """Dots on the line between two dots, both included."""
    steps = max(abs(end[0] - start[0]), abs(end[1] - start[1]))
    if steps == 0:
        return [end]
    return [
        (round(start[0] + (end[0] - start[0]) * i / steps), round(start[1] + (end[1] - start[1]) * i / steps))
        for i in range(steps + 1)
    ]


def _braille(bits: int) -> str:
    return chr(_BRAILLE + bits) if bits else " "


def _star(bits: int) -> str:
    return "*" if bits else " "
