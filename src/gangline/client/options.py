"""A run spec by flat names, as decorators and notebooks give them: `nodes=2, hang_timeout_s=600, checkpoint_path="/x"`.

The names are derived from the spec itself: each key's own, where only one section has it, and each spelling of its
option with underscores.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from gangline.domain.errors import SpecInvalid, nearest
from gangline.domain.naming import name_from
from gangline.domain.secretnames import looks_secret
from gangline.domain.spec import RunSpec
from gangline.snapshot.root import find_root
from gangline.wire.flags import apply_flags, defaults_from_project
from gangline.wire.reading import read_value
from gangline.wire.schema import Key, keys
from gangline.wire.spec import merge_layers, spec_from_mapping

__all__ = [
    "check_options",
    "defaults_of",
    "find_root",
    "looks_secret",
    "name_from",
    "option_names",
    "spec_from_options",
]

_ENTRY = frozenset({"entry", "entry_kind", "args"})


def option_names() -> list[str]:
    """Every name, the best spelling of each key first."""
    return list(_names())


def check_options(options: Mapping[str, Any], *, where: str) -> None:
    """Refuse what is no option, or cannot be its value.

    Args:
        where: what has the options, for the message: `@gang`.
    Raises:
        SpecInvalid: it names the nearest option.
    """
    _layer(options, where)


def defaults_of(root: Path) -> dict[str, Any]:
    """What `gangline.yaml` in a project's root sets, as plain values; {} without one.

    Raises:
        SpecInvalid: the file has an error.
    """
    return defaults_from_project(root)


def spec_from_options(
    options: Mapping[str, Any],
    *,
    entry: str,
    args: list[str],
    defaults: Mapping[str, Any],
    given: Mapping[str, Any],
    where: str,
) -> RunSpec:
    """The spec of a script with these options, over the defaults of its project.

    Args:
        defaults: as `defaults_of` gives them.
        given: canonical keys that stand below the options: what the caller knows better than the project.
    Raises:
        SpecInvalid
    """
    base = merge_layers(defaults, given)
    layered = merge_layers(base, _layer(options, where))
    return spec_from_mapping({**layered, "entry": entry, "entry_kind": "script", "args": args})


def _layer(options: Mapping[str, Any], where: str) -> dict[str, Any]:
    texts: dict[str, Any] = {}
    numbers: dict[str, Any] = {}
    for name, value in options.items():
        key = _names().get(name)
        if key is None:
            raise SpecInvalid(f"{where} has no option `{name}`", fix=nearest(name, _names()))
        if value is None:
            continue
        dotted = ".".join(key.path)
        if dotted in texts or dotted in numbers:
            raise SpecInvalid(f"{where} has `{name}` twice, under two spellings", fix="Keep one of them.")
        is_bare = isinstance(value, int | float) and not isinstance(value, bool)
        if is_bare and key.unit:
            numbers[dotted] = read_value(key, value, f"{where}: `{name}`", has_unit=True)
        else:
            texts[dotted] = str(value) if key.path == ("resources", "nodes") else _items(key, value)
    try:
        layer = apply_flags({}, texts)
    except SpecInvalid as error:
        raise SpecInvalid(f"{where}: {error.what}", why=error.why, fix=error.fix) from error
    for dotted, value in numbers.items():
        *sections, last = dotted.split(".")
        target = layer
        for section in sections:
            target = target.setdefault(section, {})
        target[last] = value
    return layer


def _items(key: Key, value: Any) -> Any:
    """One text where several may stand is a list of one."""
    return [value] if key.kind.value in {"list", "table"} and isinstance(value, str) else value


@cache
def _names() -> Mapping[str, Key]:
    usable = [key for key in keys().values() if not key.filled_in and key.path[0] not in _ENTRY]
    plain: dict[str, list[Key]] = {}
    for key in usable:
        plain.setdefault(key.path[-1], []).append(key)
    found = {name: one[0] for name, one in plain.items() if len(one) == 1}
    for key in usable:
        suffix = key.path[-1].removeprefix(key.spelling)
        for flag in key.flags:
            name = flag.partition("/")[0].strip("-").replace("-", "_")
            found.setdefault(name, key)
            found.setdefault(f"{name}{suffix}", key)
    return found
