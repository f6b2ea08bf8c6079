from __future__ import annotations

import math

import pytest

from gangline.cli.plot import render_plot, render_sparkline

FALLING = [(float(step), 4 * math.exp(-step / 20)) for step in range(100)]


def test_a_falling_curve_in_braille():
    assert render_plot(FALLING, width=32, height=6) == [
        "      4 ┤⢣",
        "        ┤ ⢣",
        "        ┤  ⠱⡀",
        "        ┤   ⠙⢦⡀",
        "        ┤     ⠙⠲⢤⡀",
        "0.02833 ┤        ⠈⠉⠓⠒⠦⠤⠤⠤⢄⣀⣀⣀⣀⣀⣀",
        "        └───────────────────────",
        "         0                    99",
    ]


def test_the_same_in_ascii():
    lines = render_plot(FALLING, width=32, height=6, unicode=False)
    assert "\n".join(lines).isascii()
    assert lines[0].startswith("      4 |*")
    assert lines[-2] == "        +-----------------------"


@pytest.mark.parametrize("width", [20, 40, 64, 200])
@pytest.mark.parametrize("height", [2, 6, 12])
def test_it_fits_its_box(width: int, height: int):
    lines = render_plot(FALLING, width=width, height=height)
    assert len(lines) == height + 2
    assert max(map(len, lines)) <= width


@pytest.mark.parametrize("value", [0.0, -3.5, 1e300, 1e-300])
def test_a_constant_series_is_a_line_in_the_middle(value: float):
    lines = render_plot([(0, value), (10, value)], width=40, height=7)
    drawn = [row for row, line in enumerate(lines[:7]) if line.partition("┤")[2].strip()]
    assert drawn == [3]


def test_one_point_is_drawn():
    assert any(line.endswith("┤⠁") or "┤⠂" in line or "┤⠄" in line or "┤⡀" in line for line in render_plot([(5, 1.0)]))


def test_points_that_are_not_finite_are_counted():
    points = [(0.0, 1.0), (1.0, math.nan), (2.0, math.inf), (3.0, 0.5)]
    assert render_plot(points)[-1].strip() == "(2 of 4 points are not finite)"


@pytest.mark.parametrize("points", [[], [(0.0, math.nan)], [(math.inf, 1.0)]])
def test_nothing_finite_is_nothing_drawn(points: list[tuple[float, float]]):
    assert render_plot(points) == []


def test_extremes_touch_the_top_and_the_bottom_row():
    lines = render_plot([(0, 0.0), (1, 10.0)], width=30, height=5)
    assert all(lines[row].partition("┤")[2].strip() for row in range(5))


def test_a_sparkline_shows_the_newest_values():
    assert render_sparkline([1, 2, 3, 4], width=4) == "▁▃▆█"
    assert render_sparkline([9, 1, 2], width=2) == "▁█"
    assert render_sparkline([1, math.nan], width=5) == "▁"
    assert render_sparkline([math.nan]) == ""
    assert render_sparkline([1, 2], unicode=False).isascii()
