"""Constructors that name the nearest valid argument where a wrong one is given. Standard library only."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import wraps
from typing import Any, TypeVar

from gangline.domain.errors import SpecInvalid, nearest

__all__ = ["named"]

_T = TypeVar("_T")


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
        homes = [f"{part}={made.__name__}({unknown}=…)" for part, made in _parts(cls) if unknown in _names(made)]
        fix = f"Write {' or '.join(homes)}." if homes else nearest(unknown, fields)
        raise SpecInvalid(f"{cls.__name__} takes no `{unknown}`", fix=fix)
    nothing = dataclasses.MISSING
    for name, field in fields.items():
        if name not in given and field.default is nothing and field.default_factory is nothing:
            raise SpecInvalid(f"{cls.__name__} needs `{name}`", fix=f"Write {cls.__name__}({name}=…).")


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
