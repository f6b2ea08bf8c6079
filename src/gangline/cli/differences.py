"""What differs between specs and the like, as lines; values that look secret are not among them. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gangline.cli.table import Column, render_table
from gangline.cli.terminal import Terminal
from gangline.cli.text import visible
from gangline.wire.difference import diff_specs, mask
from gangline.wire.views import DifferenceView

__all__ = ["render_difference_lines", "render_difference_table", "render_value"]

HIDDEN = "values that look secret are not shown; --json has them"


def render_difference_lines(specs: Sequence[Mapping[str, Any]], *, indent: str = "  ") -> list[str]:
    """A line for each key in which two specs differ: `resources.nodes: 2 → 4`; a last one if anything was hidden."""
    rows, hidden = mask(diff_specs(specs))
    lines = [f"{indent}{visible(row['key'])}: {' → '.join(map(render_value, row['values']))}" for row in rows]
    return [*lines, *([f"{indent}({HIDDEN})"] if hidden else [])]


def render_difference_table(
    rows: Sequence[DifferenceView], names: Sequence[str], terminal: Terminal, *, indent: int = 2
) -> list[str]:
    """A table of keys, with a column for each of the things that are compared; a last line if anything was hidden."""
    rows, hidden = mask(rows)
    columns = [Column(title="key"), *(Column(title=visible(name), verbatim=True, shrink_to=12) for name in names)]
    cells = [(row["key"], *map(render_value, row["values"])) for row in rows]
    if not rows:
        return []
    return [*render_table(columns, cells, terminal, indent=indent), *([f"{' ' * indent}({HIDDEN})"] if hidden else [])]


def render_value(value: object) -> str:
    """A value as people would write it."""
    if value is None:
        return "-"
    return visible(value if isinstance(value, str) else json.dumps(value))
