"""Tables that fit the terminal: columns shrink first, then the least important ones are left out.

Imports nothing but the standard library and its neighbours here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gangline.cli.terminal import Terminal
from gangline.cli.text import cell_width, pad, visible

__all__ = ["Column", "render_table"]

_GAP = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column and how it gives way when room is short."""

    title: str
    right: bool = False
    shrink_to: int | None = None
    """Columns that it may be cut down to; None: its values are never cut."""
    verbatim: bool = False
    """The title is a name, and stays as it is."""
    drop: int = 0
    """The column with the largest value goes first; 0 stays always."""
    paint: Callable[[Terminal, str, int], str] | None = None
    """Colours a cell that is ready: (terminal, cell, row number)."""


def render_table(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], terminal: Terminal, *, indent: int = 0
) -> list[str]:
    """The table as lines.

    Args:
        rows: cells as text, each row as long as `columns`; control characters are escaped here.
    """
    cells = [[visible(cell) for cell in row] for row in rows]
    natural = [
        max(cell_width(column.title), *(cell_width(row[i]) for row in cells), 0) for i, column in enumerate(columns)
    ]
    shown, widths = _fit(columns, natural, terminal.width - indent)
    lines = [
        _line(
            [columns[i].title if columns[i].verbatim else columns[i].title.upper() for i in shown],
            shown,
            widths,
            columns,
            terminal,
        )
    ]
    lines = [terminal.paint(line, dim=True) for line in lines]
    for number, row in enumerate(cells):
        lines.append(_line([row[i] for i in shown], shown, widths, columns, terminal, number))
    return [" " * indent + line for line in lines]


def _fit(columns: Sequence[Column], natural: Sequence[int], width: int) -> tuple[list[int], dict[int, int]]:
    """Positions of the columns that are shown, and their widths."""
    shown = list(range(len(columns)))
    while True:
        least = sum(_least(columns[i], natural[i]) for i in shown) + _GAP * (len(shown) - 1)
        droppable = [i for i in shown if columns[i].drop]
        if least <= width or not droppable:
            break
        shown.remove(max(droppable, key=lambda i: columns[i].drop))
    return shown, _shrink(columns, shown, natural, width)


def _shrink(columns: Sequence[Column], shown: Sequence[int], natural: Sequence[int], width: int) -> dict[int, int]:
    widths = {i: natural[i] for i in shown}
    excess = sum(widths.values()) + _GAP * (len(shown) - 1) - width
    while excess > 0:
        givers = [i for i in shown if widths[i] > _least(columns[i], natural[i])]
        if not givers:
            break
        widest = max(givers, key=lambda i: widths[i])
        second = max((widths[i] for i in givers if i != widest), default=0)
        floor = max(_least(columns[widest], natural[widest]), min(second, widths[widest] - 1))
        step = min(excess, widths[widest] - floor)
        widths[widest] -= step
        excess -= step
    return widths


def _least(column: Column, natural: int) -> int:
    return natural if column.shrink_to is None else min(natural, column.shrink_to)


def _line(
    cells: Sequence[str],
    shown: Sequence[int],
    widths: dict[int, int],
    columns: Sequence[Column],
    terminal: Terminal,
    row: int | None = None,
) -> str:
    parts: list[str] = []
    for cell, i in zip(cells, shown, strict=True):
        column = columns[i]
        is_last = i == shown[-1] and not column.right
        clipped = terminal.clip(cell, widths[i])
        filled = clipped if is_last else pad(clipped, widths[i], right=column.right)
        parts.append(column.paint(terminal, filled, row) if column.paint and row is not None else filled)
    return (" " * _GAP).join(parts).rstrip()
