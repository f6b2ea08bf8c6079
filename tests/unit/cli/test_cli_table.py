from __future__ import annotations

import pytest

from gangline.cli.table import Column, render_table
from gangline.cli.terminal import Terminal
from gangline.cli.text import cell_width

COLUMNS = [
    Column(title="id"),
    Column(title="name", shrink_to=8, drop=2),
    Column(title="step", right=True, drop=1),
    Column(title="message", shrink_to=10, drop=3),
]
ROWS = [
    ["llama-7k3q", "llama 日本語 fine tuning 🐕", "120", "waits for 4 ranks in pool local"],
    ["x-2222", "x" * 200, "7", "\x1b[31mred\nnext line"],
]


def test_all_columns_where_there_is_room():
    lines = render_table(COLUMNS, [ROWS[0]], Terminal(width=100))
    assert lines == [
        "ID          NAME                         STEP  MESSAGE",
        "llama-7k3q  llama 日本語 fine tuning 🐕   120  waits for 4 ranks in pool local",
    ]


@pytest.mark.parametrize("width", [20, 30, 40, 60, 80, 200])
def test_no_line_is_wider_than_the_terminal(width: int):
    lines = render_table(COLUMNS, ROWS, Terminal(width=width))
    assert max(map(cell_width, lines)) <= width


def test_columns_go_in_the_order_of_their_importance():
    def titles(width: int) -> str:
        return " ".join(render_table(COLUMNS, ROWS, Terminal(width=width))[0].split())

    assert [titles(width) for width in (60, 32, 20, 12)] == ["ID NAME STEP MESSAGE", "ID NAME STEP", "ID STEP", "ID"]


def test_control_characters_never_reach_the_terminal():
    text = "\n".join(render_table(COLUMNS, ROWS, Terminal(width=400)))
    assert "\x1b" not in text
    assert "\\x1b[31mred\\nnext line" in text


def test_a_table_without_rows_has_its_head():
    assert render_table(COLUMNS, [], Terminal(width=80)) == ["ID  NAME  STEP  MESSAGE"]


def test_ascii_terminals_get_ascii_marks():
    lines = render_table(COLUMNS, [["a", "b" * 50, "1", "c"]], Terminal(width=30, unicode=False))
    assert "\n".join(lines).isascii()
    assert "bbb..." in lines[1]


def test_colour_does_not_shift_columns():
    painted = [Column(title="a", paint=lambda terminal, cell, _: terminal.paint(cell, "red")), Column(title="b")]
    lines = render_table(painted, [["x", "y"], ["xxx", "y"]], Terminal(width=80, colour=True))
    assert lines[1] == "\x1b[31mx  \x1b[0m  y"
