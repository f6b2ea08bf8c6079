"""The keys of a run spec, derived from `domain/spec.py`: the one list that YAML, HTTP, flags and docs share.

Those of a pool come from `domain/pool.py` in the same way.

Standard library and `gangline.domain` alone: a command that submits must not wait for anything heavier.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any, Union

from gangline.domain.spec import RunSpec

__all__ = ["Key", "Kind", "Path", "keys", "keys_of", "sections", "sections_of"]

Path = tuple[str, ...]
"""Where a key stands in the spec: `("resources", "nodes")`."""


class Kind(str, Enum):
    """What a key holds."""

    INTEGER = "integer"
    NUMBER = "number"
    TEXT = "text"
    BOOLEAN = "boolean"
    CHOICE = "choice"
    LIST = "list"
    TABLE = "table"


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key of the spec."""

    path: Path
    kind: Kind
    optional: bool
    """Null is a value of it."""
    default: Any
    help: str
    flags: tuple[str, ...]
    unit: str
    """`bytes`, `seconds` or ""."""
    choices: tuple[str, ...]
    enum: type[Enum] | None
    positive: bool
    """Greater than zero."""
    signed: bool
    """May be negative."""
    filled_in: bool
    """The client fills it in at submit; no file may set it."""
    resumable: bool
    """`gangline resume` may change it: how a run is held and watched, never what it computes."""

    @property
    def spelling(self) -> str:
        """How files spell it: without the unit that its value may carry itself (`memory: 16GB`)."""
        suffix = {"bytes": "_bytes", "seconds": "_s"}.get(self.unit, "")
        return self.path[-1].removesuffix(suffix)

    @property
    def dotted(self) -> str:
        return ".".join((*self.path[:-1], self.spelling))


_POSITIVE = frozenset(
    {
        "nodes",
        "min_nodes",
        "procs_per_node",
        "cpus_per_rank",
        "memory_bytes",
        "time_limit_s",
        "start_timeout_s",
        "min_bandwidth_bytes",
        "max_clock_skew_s",
        "straggler_window_s",
        "max_jobs",
        "poll_s",
    }
)
_SIGNED = frozenset({"priority"})
_RESUMABLE_SECTIONS = frozenset({"resources", "restarts", "stop", "watch", "logs", "preflight", "slurm"})
_RESUMABLE_KEYS = frozenset({("priority",), ("checkpoint", "keep_last")})
_FILLED_IN = frozenset({("snapshot",), ("inherited_env",), ("pdb_rank",), ("slurm", "directives")})


def keys() -> Mapping[Path, Key]:
    """Every key of a run spec that holds a value, by its path, in the order of the classes."""
    return keys_of(RunSpec)


def sections() -> Mapping[Path, tuple[type[Any], bool]]:
    """Every key of a run spec that holds further keys; see `sections_of`."""
    return sections_of(RunSpec)


@cache
def keys_of(cls: type[Any]) -> Mapping[Path, Key]:
    """Every key of a class that holds a value, by its path, in the order of the classes."""
    return {key.path: key for key in _walk(cls, ())}


@cache
def sections_of(cls: type[Any]) -> Mapping[Path, tuple[type[Any], bool]]:
    """Every key that holds further keys: its class, and whether null is allowed instead. `()` is the class itself."""
    found: dict[Path, tuple[type[Any], bool]] = {(): (cls, False)}
    for name, annotation in typing.get_type_hints(cls).items():
        inner, optional = _without_none(annotation)
        if dataclasses.is_dataclass(inner):
            found[(name,)] = (typing.cast("type[Any]", inner), optional)
    return found


def _walk(cls: type[Any], prefix: Path) -> Iterator[Key]:
    annotations = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        path = (*prefix, field.name)
        inner, optional = _without_none(annotations[field.name])
        if dataclasses.is_dataclass(inner):
            yield from _walk(typing.cast("type[Any]", inner), path)
        else:
            yield _key(field, path, inner, optional=optional)


def _key(field: dataclasses.Field[Any], path: Path, inner: Any, *, optional: bool) -> Key:
    kind = _kind(inner)
    return Key(
        path=path,
        kind=kind,
        optional=optional,
        default=_default(field),
        help=field.metadata.get("help", ""),
        flags=tuple(field.metadata.get("flags", ())),
        unit=field.metadata.get("unit", ""),
        choices=tuple(str(member.value) for member in inner) if kind is Kind.CHOICE else (),
        enum=inner if kind is Kind.CHOICE else None,
        positive=field.name in _POSITIVE,
        signed=field.name in _SIGNED,
        filled_in=path in _FILLED_IN or path[:1] in _FILLED_IN,
        resumable=path[0] in _RESUMABLE_SECTIONS or path in _RESUMABLE_KEYS,
    )


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return None if field.default is dataclasses.MISSING else field.default


def _kind(inner: Any) -> Kind:
    plain = {int: Kind.INTEGER, float: Kind.NUMBER, str: Kind.TEXT, bool: Kind.BOOLEAN}
    if inner in plain:
        return plain[inner]
    if isinstance(inner, type) and issubclass(inner, Enum):
        return Kind.CHOICE
    return Kind.LIST if typing.get_origin(inner) is tuple else Kind.TABLE


def _without_none(annotation: Any) -> tuple[Any, bool]:
    """`int | None` is (int, True)."""
    if typing.get_origin(annotation) not in {Union, types.UnionType}:
        return annotation, False
    inner = [part for part in typing.get_args(annotation) if part is not type(None)]
    return inner[0], True
