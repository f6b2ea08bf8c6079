"""The tables of docs/reference/spec.md and docs/reference/json.md say what the code says.

After a change: `python tests/docs/test_schema_reference.py` writes the tables anew.
"""

from __future__ import annotations

import ast
import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import gangline.wire.compared
import gangline.wire.removed
import gangline.wire.views
from gangline.domain.pool import PER_RUN
from gangline.domain.spec import RunSpec
from gangline.wire.pools import BACKENDS, pool_keys
from gangline.wire.schema import Key, Kind, keys, sections, sections_of

REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference"
BEGIN, END = "<!-- generated: begin -->\n", "<!-- generated: end -->\n"


def render_spec() -> str:
    lines: list[str] = []
    for section, (cls, _) in sections().items():
        shown = [key for key in keys().values() if key.path[:-1] == section and not key.filled_in]
        if not shown:
            continue
        title = "Top level" if cls is RunSpec else f"`{section[0]}`"
        summary = (cls.__doc__ or "").partition("\n")[0]
        lines += [
            f"### {title}",
            "",
            summary,
            "",
            "| key | takes | default | flags | meaning |",
            "|---|---|---|---|---|",
        ]
        lines += [spec_row(key) for key in shown]
        lines.append("")
    return "\n".join(lines)


def render_pools() -> str:
    lines: list[str] = []
    kinds = [(name, cls, section) for name, cls in BACKENDS.items() for section in sections_of(cls)]
    for name, cls, section in kinds:
        shown = [key for key in pool_keys(cls) if key.path[:-1] == section and key.path[-1] not in PER_RUN]
        title = f"`{section[0]}`" if section else f"`backend: {name}`"
        lines += [f"### {title}", "", "| key | takes | default | flags | meaning |", "|---|---|---|---|---|"]
        lines += [spec_row(key) for key in shown]
        lines.append("")
    return "\n".join(lines)


def spec_row(key: Key) -> str:
    flags = " ".join(f"`{flag}`" for flag in key.flags)
    cells = (f"`{key.spelling}`", takes(key), default(key), flags, key.help)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def takes(key: Key) -> str:
    if key.unit:
        return "size" if key.unit == "bytes" else "time"
    ranged = "" if key.signed else ", above 0" if key.positive else ", 0 or more"
    return {
        Kind.INTEGER: f"whole number{ranged}",
        Kind.NUMBER: f"number{ranged}",
        Kind.TEXT: "text",
        Kind.BOOLEAN: "true or false",
        Kind.CHOICE: ", ".join(f"`{choice}`" for choice in key.choices),
        Kind.LIST: "list of texts",
        Kind.TABLE: "texts by name",
    }[key.kind]


def default(key: Key) -> str:
    if key.default in (None, "", (), {}, dataclasses.MISSING):
        return ""
    value = str(key.default) if key.kind is Kind.CHOICE else json.dumps(key.default)
    return f"`{value}`" if key.unit != "seconds" else f"`{key.default:g}s`"


def render_json() -> str:
    files = (gangline.wire.views.__file__, gangline.wire.compared.__file__, gangline.wire.removed.__file__)
    tree = ast.parse("\n".join(Path(file).read_text(encoding="utf-8") for file in files))
    lines: list[str] = []
    for view in (node for node in tree.body if isinstance(node, ast.ClassDef)):
        base = ast.unparse(view.bases[0])
        extends = "" if base == "TypedDict" else f" Everything of {base}, and:"
        lines += [
            f"### {view.name}",
            "",
            f"{ast.get_docstring(view)}{extends}",
            "",
            "| key | type | meaning |",
            "|---|---|---|",
        ]
        for name, kind, text in fields_of(view):
            lines.append(f"| `{name}` | `{kind.replace('|', 'or')}` | {' '.join(text.split())} |")
        lines.append("")
    return "\n".join(lines)


def fields_of(view: ast.ClassDef) -> Iterator[tuple[str, str, str]]:
    for node, following in zip(view.body, [*view.body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign):
            said = following.value if isinstance(following, ast.Expr) else None
            text = str(said.value) if isinstance(said, ast.Constant) else ""
            yield ast.unparse(node.target), ast.unparse(node.annotation), text


PAGES: dict[str, Callable[[], str]] = {"spec.md": render_spec, "json.md": render_json, "pools.md": render_pools}


def split(page: str) -> tuple[str, str, str]:
    text = (REFERENCE / page).read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    tables, after = rest.split(END)
    return before, tables, after


@pytest.mark.parametrize("page", PAGES)
def test_the_tables_are_those_of_the_code(page: str):
    assert split(page)[1].strip() == PAGES[page]().strip(), (
        "python tests/docs/test_schema_reference.py writes them anew"
    )


if __name__ == "__main__":
    for name, render in PAGES.items():
        before, _, after = split(name)
        (REFERENCE / name).write_text(f"{before}{BEGIN}\n{render()}\n{END}{after}", encoding="utf-8")
