"""The command line's options for a run spec, derived from the same classes as its files; no list is kept by hand.

Standard library and `gangline.domain` alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any

from gangline.domain.errors import SpecInvalid
from gangline.domain.faults import Faults
from gangline.domain.naming import check_variable
from gangline.wire.reading import read_value, split_nodes
from gangline.wire.schema import Key, Kind, keys
from gangline.wire.spec import merge_layers, partial_from_yaml

__all__ = [
    "DEFAULTS_FILE",
    "SpecFlag",
    "apply_flags",
    "defaults_from_project",
    "flag_of",
    "read_pairs",
    "spec_flags",
]

DEFAULTS_FILE = "gangline.yaml"
"""Holds a project's defaults; lies in its root."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecFlag:
    """One option of `gangline submit`."""

    path: str
    """Dotted path of the key, the name under which `apply_flags` takes its value: `resources.nodes`."""
    names: tuple[str, ...]
    """Spellings, the documented one first: `--nodes`, `--num-nodes`. A switch has one, `--unbuffered/--buffered`."""
    help: str
    type: str
    """`integer`, `number`, `text`, `boolean`, `choice`, `list` or `table` (K=V)."""
    unit: str
    """`bytes` (`16GB`), `seconds` (`90m`) or ""."""
    multiple: bool
    """May be given more than once; its value is a sequence."""
    choices: tuple[str, ...]
    is_bool: bool
    metavar: str
    default: Any
    resumable: bool


def spec_flags() -> list[SpecFlag]:
    """Every option that a spec key has, in the order of the spec; `apply_flags` reads the texts that they are given."""
    return [flag_of(key) for key in keys().values() if key.flags]


def apply_flags(
    mapping: Mapping[str, Any], values: Mapping[str, Any], *, environ: Mapping[str, str] = os.environ
) -> dict[str, Any]:
    """Lay what the command line said over a mapping under canonical keys.

    Args:
        mapping: from `partial_from_yaml`, `defaults_from_project` or `merge_layers`.
        values: by `SpecFlag.path`; None and empty sequences mean that the option was not given. Text is read by the
            key's kind and unit. `entry`, `entry_kind` and `args`, which are no options, are taken here too.
        environ: where `--env NAME` takes its value from.
    Raises:
        SpecInvalid: naming each option, its value and what is valid.
    """
    layer: dict[str, Any] = {}
    faults = Faults()
    for dotted, value in values.items():
        key = _by_dotted()[dotted]
        if value is None or (key.kind in {Kind.LIST, Kind.TABLE} and not value):
            continue
        target = layer
        for section in key.path[:-1]:
            target = target.setdefault(section, {})
        with faults.gathered():
            target[key.path[-1]] = value if key.path == _NODES else _read_flag(key, value, environ)
    if _NODES[0] in layer:
        with faults.gathered():
            layer[_NODES[0]] = _read_sizes(layer[_NODES[0]], environ)
    faults.raise_all("The command line")
    return merge_layers(mapping, layer)


def defaults_from_project(root: FilePath) -> dict[str, Any]:
    """What `gangline.yaml` in the project's root sets; {} without one.

    Raises:
        SpecInvalid: the file has an error.
    """
    path = root / DEFAULTS_FILE
    return partial_from_yaml(path, may_be_empty=True) if path.is_file() else {}


_NODES = ("resources", "nodes")


def _read_sizes(resources: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """`--nodes 2:4` is two keys."""
    found = dict(split_nodes(resources, "`--nodes`"))
    for name in {"nodes", "min_nodes"} & found.keys():
        if isinstance(found[name], str):
            found[name] = _read_flag(keys()[_NODES[0], name], found[name], environ)
    return found


def flag_of(key: Key) -> SpecFlag:
    """The option that sets a key."""
    return SpecFlag(
        path=_path(key),
        names=key.flags,
        help=key.help,
        type=key.kind.value,
        unit=key.unit,
        multiple=key.kind in {Kind.LIST, Kind.TABLE},
        choices=key.choices,
        is_bool=key.kind is Kind.BOOLEAN,
        metavar=_metavar(key),
        default=key.default,
        resumable=key.resumable,
    )


def _metavar(key: Key) -> str:
    if key.unit:
        return "SIZE" if key.unit == "bytes" else "TIME"
    kinds = {Kind.INTEGER: "N", Kind.NUMBER: "X", Kind.TABLE: "K=V", Kind.CHOICE: "|".join(key.choices)}
    return kinds.get(key.kind, "TEXT")


def _path(key: Key) -> str:
    return ".".join(key.path)


def _by_dotted() -> Mapping[str, Key]:
    return {_path(key): key for key in keys().values()}


def _read_flag(key: Key, value: Any, environ: Mapping[str, str]) -> Any:
    place = f"`{key.flags[0].partition('/')[0]}`" if key.flags else f"`{_path(key)}`"
    if key.kind is Kind.TABLE and not isinstance(value, Mapping):
        value = read_pairs(key, value, place, environ)
    return read_value(key, value, place)


def read_pairs(key: Key, items: Iterable[str], place: str, environ: Mapping[str, str]) -> dict[str, str]:
    """`K=V` once or more; a variable without `=` has the value of the submitting shell, an option of sbatch none.

    Raises:
        SpecInvalid: something else.
    """
    found: dict[str, str] = {}
    for item in items:
        name, equals, value = item.partition("=")
        if key.path == ("environment", "env"):
            check_variable(name, place)
            if not equals:
                value = _from_shell(name, place, environ)
        elif key.path[-1] == "options" and name.strip():
            name = name.strip().lstrip("-")
        elif not (equals and name.strip()):
            raise SpecInvalid(
                f"{place} is `{item}`", why="It takes K=V.", fix=f"For example: {place.strip('`')} team=nlp"
            )
        found[name] = value
    return found


def _from_shell(name: str, place: str, environ: Mapping[str, str]) -> str:
    if name not in environ:
        raise SpecInvalid(
            f"{place} is `{name}`, which this shell does not have", fix=f"Write {name}=VALUE, or set {name} first."
        )
    return environ[name]
