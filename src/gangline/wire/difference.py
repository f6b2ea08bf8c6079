"""What differs between specs, environments and other nested values, by dotted key. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gangline.domain.redact import REMOVED, Redactor, looks_secret
from gangline.wire.views import DifferenceView

__all__ = ["diff_specs", "diff_values", "flatten", "mask"]

_CODE = "snapshot.digest"
"""Code is compared file by file, not by digest."""


def diff_specs(specs: Sequence[Mapping[str, Any]]) -> list[DifferenceView]:
    """Keys of specs whose values differ, each with one value for every spec, in the order of the keys."""
    return [one for one in diff_values(specs) if one["key"] != _CODE]


def diff_values(trees: Sequence[Mapping[str, Any]]) -> list[DifferenceView]:
    """Dotted keys under which not all trees have the same; a tree without the key has null there."""
    flat = [flatten(tree) for tree in trees]
    names = dict.fromkeys(name for one in flat for name in one)
    rows = [DifferenceView(key=name, values=[one.get(name) for one in flat]) for name in names]
    return [row for row in rows if any(not _same(value, row["values"][0]) for value in row["values"][1:])]


def mask(rows: Sequence[DifferenceView]) -> tuple[list[DifferenceView], int]:
    """The rows without values that look secret, for people's eyes; and how many were taken out."""
    known = [value for row in rows if _is_secret(row["key"]) for value in row["values"] if isinstance(value, str)]
    redactor = Redactor(known)
    masked = [
        DifferenceView(key=row["key"], values=[_mask(redactor, row["key"], value) for value in row["values"]])
        for row in rows
    ]
    return masked, redactor.removed


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """`{"a": {"b": 1}}` as `{"a.b": 1}`; lists stay whole, empty tables vanish."""
    found: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            found.update(flatten(value, f"{prefix}{name}."))
        else:
            found[f"{prefix}{name}"] = value
    return found


def _is_secret(key: str) -> bool:
    """By the last part of a dotted key; versions of packages are none, whatever a package is called."""
    return ".packages." not in f".{key}" and looks_secret(key.rpartition(".")[2])


def _mask(redactor: Redactor, key: str, value: Any) -> Any:
    if not (_is_secret(key) and isinstance(value, str) and value):
        return redactor.value(value)
    redactor.removed += 1
    return REMOVED


def _same(one: object, other: object) -> bool:
    """Equal, and not only as 1 and True are."""
    return one == other and isinstance(one, bool) == isinstance(other, bool)
