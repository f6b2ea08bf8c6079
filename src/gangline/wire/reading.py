"""From what people wrote (YAML, JSON, Python) to plain values under the spec's own keys; a slip is named by its place.

The result may be partial: `gangline.yaml` sets a few defaults, a file most of the rest, flags the last word. Standard
library and `gangline.domain` alone.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import Enum
from functools import cache
from typing import Any

from gangline.domain.check import MOST
from gangline.domain.errors import SpecInvalid, nearest
from gangline.domain.faults import Faults
from gangline.domain.naming import check_name, check_variable
from gangline.domain.spec import EntryKind
from gangline.wire.schema import Key, Kind, Path, keys, sections
from gangline.wire.units import parse_bytes, parse_duration

__all__ = ["Origin", "read_spec", "read_value", "split_nodes"]

_LARGEST_INTEGER = 2**53
"""Larger ones don't survive JSON in every language."""
_SHELL = ("bash", "-eo", "pipefail", "-c")
"""What runs a command that is written as one text: any failing part of a pipe fails the rank."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a mapping comes from, so that an error can point at it."""

    name: str
    """A file's name, or "" for a mapping made in code."""
    lines: Mapping[Path, int] = field(default_factory=dict)
    """Line (from 1) of each key as it was written."""
    by_hand: bool = False
    """A person's file: keys that the client fills in are refused."""

    def place(self, path: Path) -> str:
        """`resources.nodes` (run.yaml, line 3)."""
        line = self.lines.get(path)
        where = ", ".join(part for part in (self.name, f"line {line}" if line else "") if part)
        shown = f"`{'.'.join(path)}`" if path else "The spec"
        return f"{shown} ({where})" if where else shown


def read_spec(raw: object, origin: Origin) -> dict[str, Any]:
    """Plain values (text, numbers, lists, tables) under canonical keys, for those keys that were given.

    Raises:
        SpecInvalid: unknown keys, keys given twice under two spellings, values of the wrong kind: all at once.
    """
    return _read_section(raw, (), origin)


def read_value(key: Key, value: object, place: str, *, has_unit: bool = False) -> Any:
    """One value, converted to what its key holds: int, float, str, bool, list of str or dict of str.

    Args:
        place: where the value stands, as the error should say it.
        has_unit: the key was spelled with its unit (`time_limit_s`), so that the value is a bare number.
    Raises:
        SpecInvalid: it is not what the key holds.
    """
    if value is None:
        if key.optional:
            return None
        raise _wrong(key, value, place)
    if key.unit and not has_unit:
        return _in_range(key, _with_unit(key, value, place), place)
    return _in_range(key, _READERS[key.kind](key, value, place), place)


def _check_label(name: str, place: str) -> None:
    """Refuse a label by which no run could be found.

    Raises:
        SpecInvalid
    """
    if not name.strip():
        raise SpecInvalid(f"{place} has an empty name", fix="Give every value a name.")
    if "=" in name:
        raise SpecInvalid(f"{place} names `{name}`", why="The name of a label ends at the first `=`.")


def split_nodes(raw: Mapping[str, Any], place: str) -> Mapping[str, Any]:
    """Read `nodes: "2:4"` as `min_nodes: 2` and `nodes: 4`; a plain number means just so many, whatever lies below.

    Raises:
        SpecInvalid: the smaller one is given twice.
    """
    if raw.get("nodes") is None:
        return raw
    least, colon, most = str(raw["nodes"]).partition(":")
    if colon and raw.get("min_nodes") is not None:
        raise SpecInvalid(f"{place} is `{raw['nodes']}`, and `min_nodes` is given as well", fix="Keep one of them.")
    if colon and not (least.strip().isdecimal() and most.strip().isdecimal()):
        raise SpecInvalid(
            f"{place} is `{raw['nodes']}`",
            why="It takes a whole number above 0, or two of them.",
            fix="For example: 4, or 2:4 for at least 2 and at most 4.",
        )
    return {**raw, "min_nodes": least, "nodes": most} if colon else {"min_nodes": None, **raw}


_WORDS = re.compile(r"[\w./=+-]+(?: +[\w./=+-]+)*")
"""Words that stand in a list of YAML as they are."""
_MOST_SHOWN = 80
_RESOURCES = ("resources",)


def _read_section(raw: object, path: Path, origin: Origin) -> dict[str, Any]:
    if not isinstance(raw, Mapping):
        raise SpecInvalid(
            f"{origin.place(path)} is {_shown(raw)}", why=f"It takes keys with values: {', '.join(_names(path))}."
        )
    found: dict[str, Any] = {}
    taken: set[str] = set()
    faults = Faults()
    if path == _RESOURCES:
        with faults.gathered():
            raw = split_nodes(raw, origin.place((*path, "nodes")))
    for written, value in raw.items():
        with faults.gathered():
            name = _name_of(str(written), path, origin)
            if name in taken:
                place = origin.place((*path, str(written)))
                raise SpecInvalid(f"{place} is given twice, under two spellings", fix="Keep one of them.")
            taken.add(name)
            found[name] = _read_key((*path, name), str(written), value, origin)
    if not path:
        with faults.gathered():
            found = _resolve_entry(found, origin)
    faults.raise_all(origin.name or "The spec")
    return found


def _name_of(written: str, path: Path, origin: Origin) -> str:
    name = _names(path).get(written)
    if name is None:
        place = origin.place((*path, written))
        raise SpecInvalid(f"{place} is not a key of the spec", fix=_where_it_belongs(written, path))
    return name


def _read_key(path: Path, written: str, value: object, origin: Origin) -> Any:
    place = origin.place((*path[:-1], written))
    if origin.by_hand and not {path, path[:1]}.isdisjoint(_filled_in()):
        raise SpecInvalid(f"{place} is filled in at submit", fix="Remove it from the file.")
    if path in sections():
        if isinstance(value, sections()[path][0]):  # `Resources(nodes=2)`, in Python
            value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        if value is None:
            return None if sections()[path][1] else {}
        return _read_section(value, path, origin)
    if path in _entry_keys():
        return value if path == ("command",) else read_value(keys()["entry",], value, place)
    key = keys()[path]
    return read_value(key, value, place, has_unit=written != key.spelling)


@cache
def _names(path: Path) -> Mapping[str, str]:
    """Every spelling that is allowed under `path`, and the name that it stands for; best spelling first."""
    depth = len(path) + 1
    found = {"script": "script", "module": "module", "notebook": "notebook", "command": "command"} if not path else {}
    here = [key for key in keys().values() if key.path[:-1] == path]
    found.update({key.spelling: key.path[-1] for key in here})
    found.update({section[-1]: section[-1] for section in sections() if len(section) == depth and section[:-1] == path})
    for key in here:
        found.setdefault(key.path[-1], key.path[-1])
    return found


def _where_it_belongs(written: str, path: Path) -> str:
    """The section that has this very key, else the nearest key here, else the nearest in another section."""
    for section in sections():
        if section != path and written in _names(section):
            return f"It belongs under `{section[0]}:`." if section else "It belongs to the top level."
    if (key := _flags().get(_as_flag(written))) is not None:
        return _spell(key, written, path)
    here = nearest(written, _names(path))
    if here.startswith("Did you mean"):
        return here
    elsewhere = {name: section for section in sections() if section != path for name in _names(section)}
    close = get_close_matches(written, elsewhere, n=1, cutoff=0.6)
    if not close:
        return here
    section = elsewhere[close[0]]
    return f"Did you mean `{close[0]}`{f' under `{section[0]}:`' if section else ', at the top level'}?"


@cache
def _flags() -> Mapping[str, Key]:
    """Every key by the options of the command line that set it, and by its own names as an option would have them."""
    found = {name: key for key in keys().values() for flag in key.flags for name in flag.split("/")}
    for key in keys().values():
        if not key.filled_in:
            found.setdefault(_as_flag(key.spelling), key)
            found.setdefault(_as_flag(key.path[-1]), key)
    return found


def _as_flag(written: str) -> str:
    return f"--{written.strip('-').replace('_', '-').lower()}"


def _spell(key: Key, written: str, path: Path) -> str:
    """Where the key is that somebody has written as an option of the command line."""
    section = key.path[:-1]
    where = "here" if section == path else f"under `{section[0]}:`" if section else "at the top level"
    positive = key.flags[0].partition("/")[0] if key.flags else ""
    opposite = key.kind is Kind.BOOLEAN and positive not in {"", _as_flag(written)}
    return f"It is spelled `{key.spelling}` {where}{', with the opposite value' if opposite else ''}."


@cache
def _filled_in() -> frozenset[Path]:
    """Keys, and sections all of whose keys are."""
    filled = {key.path for key in keys().values() if key.filled_in}
    others = {key.path[:1] for key in keys().values() if not key.filled_in}
    return frozenset(filled | ({path[:1] for path in filled} - others))


@cache
def _entry_keys() -> frozenset[Path]:
    return frozenset({("script",), ("module",), ("notebook",), ("command",)})


def _resolve_entry(found: dict[str, Any], origin: Origin) -> dict[str, Any]:
    """Turn `module: pkg.train` and its like into `entry`, `entry_kind` and `args`."""
    given = [name for name in ("entry", "script", "module", "notebook", "command") if name in found]
    if not given:
        return found
    name = given[0]
    if len(given) > 1:
        raise SpecInvalid(f"{origin.place((given[1],))} comes on top of `{name}`", fix="A run has one entry: keep one.")
    value = found.pop(name)
    if name == "command":
        program, *args = _command(value, origin.place((name,)))
        return {**found, "entry": program, "entry_kind": "command", "args": [*args, *found.get("args", [])]}
    if name != "entry":
        return {**found, "entry": value, "entry_kind": name}
    kind = found.get("entry_kind") or _kind_of_entry(value, origin.place((name,)))
    return {**found, "entry": value, "entry_kind": kind}


def _command(value: object, place: str) -> list[str]:
    if isinstance(value, str) and value.strip():
        return [*_SHELL, value]
    if isinstance(value, list | tuple) and value:
        return [_text(word, f"{place}, word {number}") for number, word in enumerate(value, start=1)]
    raise SpecInvalid(
        f"{place} is {_shown(value)}",
        why="It takes a list of words, or one text that a shell reads.",
        fix="For example: command: [bash, run.sh]",
    )


def _kind_of_entry(entry: str, place: str) -> str:
    """What an entry is, by its suffix.

    Raises:
        SpecInvalid: nothing that Python runs.
    """
    stem, dot, suffix = entry.rpartition("/")[2].rpartition(".")
    if not (stem and dot) or suffix == "py":
        return EntryKind.SCRIPT.value
    if suffix == "ipynb":
        return EntryKind.NOTEBOOK.value
    raise SpecInvalid(
        f"{place} is `{entry}`, which is neither a Python script nor a notebook",
        fix=f"Name it `module:` if it is one, or write `command: [bash, {entry}]` for another program.",
    )


def _with_unit(key: Key, value: object, place: str) -> float | int:
    """A size or a duration in its readable spelling."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise _wrong(key, value, place)
    try:
        return parse_bytes(str(value)) if key.unit == "bytes" else parse_duration(str(value))
    except SpecInvalid as error:
        raise SpecInvalid(f"{place} is {_shown(value)}", why=error.what, fix=error.fix) from None


def _integer(key: Key, value: object, place: str) -> int:
    if isinstance(value, str) and re.fullmatch(r"[-+]?\d{1,4000}", value.strip(), re.ASCII):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise _wrong(key, value, place)
    return value


def _number(key: Key, value: object, place: str) -> float:
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            raise _wrong(key, value, place) from None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise _wrong(key, value, place)
    return float(value)


def _plain_text(key: Key, value: object, place: str) -> str:
    text = _text(value, place)
    if not text.strip() and key.path != ("entry",):
        raise SpecInvalid(f"{place} is empty", fix="Give it a value, or leave it out.")
    return check_name(text) if key.path == ("name",) else text


def _boolean(key: Key, value: object, place: str) -> bool:
    found = {"true": True, "false": False}.get(value.lower()) if isinstance(value, str) else value
    if not isinstance(found, bool):
        raise _wrong(key, value, place)
    return found


def _choice(key: Key, value: object, place: str) -> str:
    text = value.value if isinstance(value, Enum) else value
    if text in key.choices:
        return str(text)
    raise SpecInvalid(f"{place} is {_shown(value)}", fix=nearest(str(text), key.choices))


def _list(key: Key, value: object, place: str) -> list[str]:
    if not isinstance(value, list | tuple):
        raise _wrong(key, value, place)
    return [_text(item, f"{place}, item {number}") for number, item in enumerate(value, start=1)]


def _table(key: Key, value: object, place: str) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise _wrong(key, value, place)
    for name in value:
        if key.path == ("environment", "env"):
            check_variable(str(name), place)
        elif key.path == ("labels",):
            _check_label(str(name), place)
    return {str(name): _text(item, f"{place}, `{name}`") for name, item in value.items()}


_READERS: Mapping[Kind, Callable[[Key, object, str], Any]] = {
    Kind.INTEGER: _integer,
    Kind.NUMBER: _number,
    Kind.TEXT: _plain_text,
    Kind.BOOLEAN: _boolean,
    Kind.CHOICE: _choice,
    Kind.LIST: _list,
    Kind.TABLE: _table,
}


def _text(value: object, place: str) -> str:
    """Text as it was written; a whole number has one spelling, other values have several and must be quoted."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise SpecInvalid(
            f"{place} is {_shown(value)}",
            why="It takes text, and this could be written in several ways.",
            fix='Put it in quotes: "1.10", "true", "".',
        )
    if "\0" in value:
        raise SpecInvalid(f"{place} holds a NUL character", why="No program can be given one.")
    return value


def _in_range(key: Key, value: Any, place: str) -> Any:
    if key.kind not in {Kind.INTEGER, Kind.NUMBER}:
        return value
    too_small = value <= 0 if key.positive else value < 0 and not key.signed
    most = MOST.get(key.path, _LARGEST_INTEGER)
    if abs(value) > most and not too_small:
        least = f"from {-most:,} " if key.signed else ""
        raise SpecInvalid(f"{place} is {_shown(value)}", why=f"It takes {_expected(key)}, {least}up to {most:,}.")
    if too_small:
        raise _wrong(key, value, place)
    return value


def _wrong(key: Key, value: object, place: str) -> SpecInvalid:
    return SpecInvalid(f"{place} is {_shown(value)}", why=f"It takes {_expected(key)}.", fix=_example(key, value))


def _expected(key: Key) -> str:
    ranged = "" if key.signed else " above 0" if key.positive else ", 0 or more"
    return {
        Kind.INTEGER: f"a whole number{ranged}",
        Kind.NUMBER: f"a number{ranged}",
        Kind.TEXT: "text",
        Kind.BOOLEAN: "true or false",
        Kind.CHOICE: f"one of {', '.join(key.choices)}",
        Kind.LIST: "a list of texts",
        Kind.TABLE: "names with values",
    }[key.kind]


def _example(key: Key, value: object = None) -> str:
    if key.unit:
        return f"For example: {key.spelling}: {'16GB' if key.unit == 'bytes' else '90m'}"
    if key.kind is not Kind.LIST:
        return ""
    if isinstance(value, str) and len(value) <= _MOST_SHOWN and _WORDS.fullmatch(value):
        return f"Write {key.spelling}: [{', '.join(value.split())}]"
    return f"For example: {key.spelling}: [a, b]"


def _shown(value: object) -> str:
    if value is None:
        return "empty"
    names: list[tuple[type[Any], str]] = [(Mapping, "a table"), (list, "a list"), (tuple, "a list")]
    for kind, name in names:
        if isinstance(value, kind):
            return name
    text = str(value)
    limit = 60
    return f"`{text if len(text) <= limit else text[:limit] + '…'}`"
