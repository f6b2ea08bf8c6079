"""Curves as paths of SVG. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gangline.wire.views import MetricView

__all__ = ["Chart", "render_chart"]

WIDTH, HEIGHT = 560, 160


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One metric, ready to be drawn."""

    name: str
    count: int
    path: str
    """`d` of a path in a box of `WIDTH` x `HEIGHT`; "" where nothing is finite."""
    low: str
    high: str
    first: int
    last: int


def render_chart(metric: MetricView) -> Chart:
    """The means of the buckets over their steps; a gap where a bucket has none."""
    points = [(bucket["step"], bucket["mean"]) for bucket in metric["buckets"]]
    values = [value for _, value in points if value is not None and math.isfinite(value)]
    steps = [step for step, _ in points] or [0]
    path = _path(points, (min(steps), max(steps)), (min(values), max(values))) if values else ""
    return Chart(
        name=metric["name"],
        count=metric["count"],
        path=path,
        low=f"{min(values):.4g}" if values else "-",
        high=f"{max(values):.4g}" if values else "-",
        first=min(steps),
        last=max(steps),
    )


def _path(points: Sequence[tuple[int, float | None]], across: tuple[int, int], up: tuple[float, float]) -> str:
    words: list[str] = []
    pen = "M"
    for step, value in points:
        if value is None or not math.isfinite(value):
            pen = "M"
            continue
        x, y = _place(step, *across) * WIDTH, HEIGHT - _place(value, *up) * HEIGHT
        words.append(f"{pen}{x:.1f} {y:.1f}")
        pen = "L"
    return " ".join(words)


def _place(value: float, low: float, high: float) -> float:
    return 0.5 if high == low else (value / 2 - low / 2) / (high / 2 - low / 2)
