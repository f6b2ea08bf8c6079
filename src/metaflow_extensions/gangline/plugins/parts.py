"""Which part of its foreaches a task is, told by the items themselves: the same in every run of a flow. Pure.

An index does not say it: a foreach that is run again may have its items in another order. Metaflow's short text of an
item does not either: it is cut after 30 characters.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from itertools import islice
from pathlib import PurePath
from typing import Any
from uuid import UUID

__all__ = ["UNKNOWN", "Frame", "is_certain", "name_part"]

UNKNOWN = "unknown"
"""The part of a task that nobody can tell."""
_AS_STORED = "stored-"
"""Begins what an item is known by that can be compared only as long as the whole artifact is the same."""
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_WRITTEN = (PurePath, date, time, timedelta, Decimal, UUID)
_DIGEST_CHARS = 12


class _NotComparable(Exception):
    """Nothing says for sure whether another process has the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One foreach around a task."""

    index: int
    items: Any
    """What it went over; None: that is not there any more."""
    stored: str | None
    """What the artifact that holds `items` is known by, by its content."""
    shown: str | None
    """Metaflow's own short text of the item."""
    show: Callable[[Any], str]
    """What makes such a text."""


def name_part(frames: Sequence[Frame], rounds: Sequence[int]) -> str:
    """What a task is known by within its step: "" for the only one, UNKNOWN where its items do not say it.

    Args:
        frames: from the outside in.
        rounds: of a step that a switch repeats, which one it is.
    """
    found = [_name_item(frame) for frame in frames]
    if None in found:
        return UNKNOWN
    return "/".join([*map(str, found), *(f"round-{number}" for number in rounds)])


def is_certain(part: str) -> bool:
    """Whether a task with the same items has the same name in each run."""
    return part != UNKNOWN and _AS_STORED not in part


def _name_item(frame: Frame) -> str | None:
    if frame.items is None:
        return None
    try:
        item = _at(frame.items, frame.index)
        if frame.shown is not None and frame.show(item) != frame.shown:
            return None  # a later step has put something else in its place
        try:
            written = _write(item)
        except _NotComparable:
            return None if frame.stored is None else f"{_AS_STORED}{_digest(frame.stored)}-{frame.index}"
        before = sum(_is_same(other, written) for other in islice(frame.items, frame.index))
    except Exception:  # noqa: BLE001 - whatever a class of the flow raises: then nobody can tell
        return None
    return f"{_digest(written)}-{before}"


def _at(items: Any, index: int) -> Any:
    """As Metaflow finds `self.input`."""
    try:
        return items[index]
    except TypeError:
        return next(islice(items, index, None))


def _is_same(item: Any, written: str) -> bool:
    try:
        return _write(item) == written
    except _NotComparable:
        return False


def _write(item: Any) -> str:
    """A text that equal items share, in whatever process, and no others.

    Raises:
        _NotComparable: it holds something that is known by its place in memory alone, or in no way that we know.
    """
    kind = type(item).__name__
    if isinstance(item, Enum):
        return f"{type(item).__qualname__}.{item.name}"
    if isinstance(item, _PLAIN):
        return f"{kind}:{item!r}"
    if isinstance(item, _WRITTEN):
        return f"{kind}:{str(item)!r}"
    return f"{kind}({','.join(_write_parts(item))})"


def _write_parts(item: Any) -> Iterable[str]:
    if isinstance(item, Mapping):
        return sorted(f"{_write(name)}={_write(value)}" for name, value in item.items())
    if isinstance(item, set | frozenset):
        return sorted(map(_write, item))
    if isinstance(item, list | tuple):
        return map(_write, item)
    if is_dataclass(item) and not isinstance(item, type):
        return (f"{one.name}={_write(getattr(item, one.name))}" for one in fields(item))
    raise _NotComparable


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:_DIGEST_CHARS]
