"""Constructors that name the nearest valid argument where a wrong one is given. Standard library only."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from functools import wraps
from typing import Any, TypeVar

from gangline.domain.errors import SpecInvalid, nearest

__all__ = ["named"]

_T = TypeVar("_T")
_LIKE_ENOUGH = 0.6


def named(cls: type[_T]) -> type[_T]:
    """For a dataclass of keyword arguments: unknown and missing ones raise `SpecInvalid` instead of `TypeError`."""
    plain: Any = cls.__init__

    @wraps(plain)
    def __init__(self: Any, *args: Any, **given: Any) -> None:  # noqa: ANN401, N807 - it takes a constructor's place
        try:
            plain(self, *args, **given)
        except TypeError:
            _explain(type(self), given)
            raise

    setattr(cls, "__init__", __init__)  # noqa: B010 - mypy forbids the assignment
    return cls


def _explain(cls: type[Any], given: dict[str, Any]) -> None:
    """Raise `SpecInvalid` if the names of the arguments are what is wrong."""
    fields = {field.name: field for field in dataclasses.fields(cls)}
    unknown = next((name for name in given if name not in fields), None)
    if unknown is not None:
        raise SpecInvalid(f"{cls.__name__} takes no `{unknown}`", fix=_nearest(cls, unknown, fields))
    nothing = dataclasses.MISSING
    for name, field in fields.items():
        if name not in given and field.default is nothing and field.default_factory is nothing:
            raise SpecInvalid(f"{cls.__name__} needs `{name}`", fix=f"Write {cls.__name__}({name}=…).")


def _nearest(cls: type[Any], unknown: str, own: Iterable[str]) -> str:
    """A field of the class, or of one of its parts, whichever is nearer to what was written."""
    homes = {name: f"{part}={made.__name__}({name}=…)" for part, made in _parts(cls) for name in _names(made)}
    close = get_close_matches(unknown, [*own, *homes], n=1, cutoff=_LIKE_ENOUGH)
    if not close or close[0] in own:
        return nearest(unknown, own)
    return f"Write {homes[close[0]]}." if close[0] == unknown else f"Did you mean {homes[close[0]]}?"


def _parts(cls: type[Any]) -> Iterator[tuple[str, type[Any]]]:
    """Fields that are dataclasses themselves, as far as their defaults tell."""
    for field in dataclasses.fields(cls):
        made = field.default_factory
        if isinstance(made, type) and dataclasses.is_dataclass(made):
            yield field.name, made
        elif dataclasses.is_dataclass(field.default):
            yield field.name, type(field.default)


def _names(cls: type[Any]) -> set[str]:
    return {field.name for field in dataclasses.fields(cls)}
