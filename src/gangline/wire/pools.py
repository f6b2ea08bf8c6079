"""`pools.yaml`: the pools that a server has beside its own machine, read with the rules of run files.

Standard library and `gangline.domain` alone; YAML is loaded once there is a file to read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path as FilePath
from typing import Any

from gangline.domain.errors import SpecInvalid, nearest
from gangline.domain.pool import PER_RUN, Pool, RayPool, SlurmPool, check_pool, check_pool_name
from gangline.wire.flags import SpecFlag, flag_of, read_pairs
from gangline.wire.reading import Origin, read_value
from gangline.wire.schema import Key, Kind, Path, keys_of, sections_of

__all__ = [
    "BACKENDS",
    "PoolsFile",
    "backend_of",
    "pool_flags",
    "pool_from_mapping",
    "pool_keys",
    "pool_to_mapping",
    "pools_from_yaml",
    "read_pools",
    "settings_from_flags",
]

BACKENDS: dict[str, Any] = {"slurm": SlurmPool, "ray": RayPool}
"""What `backend` may be, and the class that describes such a pool."""

_NEEDED = {
    "work": "Name a folder that login and compute nodes share, e.g. work: /shared/me/gangline",
    "address": "Name the address of the cluster's dashboard, e.g. address: http://head:8265",
}
"""What a pool cannot do without, where its kind has it, and what to write."""
_EXAMPLE = "pools: {a100: {backend: slurm, ssh: bastion, work: /shared/me/gangline}}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolsFile:
    """What a file says, by the names of its pools and in its order."""

    pools: Mapping[str, Pool]
    faults: Mapping[str, SpecInvalid]
    """Of pools that it describes wrongly: the first thing that is wrong, with its line."""


def pools_from_yaml(path: FilePath) -> dict[str, Pool]:
    """The pools that a file without a fault describes, by name and in its order; {} where there is no file.

    Raises:
        SpecInvalid: the first thing that is wrong, with its line; the nearest valid key where one is not known.
    """
    found = read_pools(path)
    for fault in found.faults.values():
        raise fault
    return dict(found.pools)


def read_pools(path: FilePath) -> PoolsFile:
    """What a file says, as far as it can be understood; nothing where there is no file.

    Raises:
        SpecInvalid: what is wrong with the file as such: then nothing of it can be.
    """
    from gangline.wire.yaml_file import read_yaml  # noqa: PLC0415 - PyYAML costs 20 ms that most commands need not pay

    if not _says_anything(path):
        return PoolsFile(pools={}, faults={})
    raw, lines = read_yaml(path, example=_EXAMPLE)
    origin = Origin(str(path), lines)
    for name in raw:
        if name != "pools":
            raise SpecInvalid(f"{origin.place((name,))} is not a key of this file", fix=f"For example: {_EXAMPLE}")
    pools = raw.get("pools") or {}
    if not isinstance(pools, Mapping):
        raise SpecInvalid(f"{origin.place(('pools',))} holds no pools by name", fix=f"For example: {_EXAMPLE}")
    found, faults = dict[str, Pool](), dict[str, SpecInvalid]()
    for name, value in pools.items():
        try:
            found[name] = _read_pool(name, value, ("pools", name), origin)
        except SpecInvalid as fault:  # noqa: PERF203 - one that is wrong hinders no other
            faults[name] = fault
    return PoolsFile(pools=found, faults=faults)


def pool_from_mapping(name: str, raw: Mapping[str, Any]) -> Pool:
    """The pool that a mapping describes, with `backend` among its keys.

    Raises:
        SpecInvalid: as `pools_from_yaml`.
    """
    return _read_pool(name, raw, (), Origin(""))


def backend_of(pool: Pool) -> str:
    """The name of the backend that a pool is for."""
    return next(name for name, cls in BACKENDS.items() if isinstance(pool, cls))


def pool_to_mapping(pool: Pool) -> dict[str, Any]:
    """What a file has to say of a pool: its backend, and all that is not as by default, in plain values."""
    found: dict[str, Any] = {"backend": backend_of(pool)}
    for key in pool_keys(type(pool)):
        value: Any = pool
        for part in key.path:
            value = getattr(value, part)
        if value is None or (value == key.default and key.path[-1] not in _NEEDED):
            continue
        at = found
        for part in key.path[:-1]:
            at = at.setdefault(part, {})
        at[key.spelling] = _plain(key, value)
    return found


def pool_keys(cls: Any) -> list[Key]:
    """Every key of a kind of pool that holds a value, `defaults.partition` and its like included."""
    return [key for path, key in keys_of(cls).items() if path != ("name",)]


def pool_flags() -> list[SpecFlag]:
    """The options of `gangline pools add`: every key of a pool of any kind, those of its defaults included.

    What several kinds have is named once, and says what it means for each.
    """
    found: dict[Path, SpecFlag] = {}
    for name, cls in BACKENDS.items():
        for key in pool_keys(cls):
            if not key.flags or key.path[-1] in PER_RUN:
                continue
            flag, before = flag_of(key), found.get(key.path)
            if before is None:
                found[key.path] = flag
            elif before.help != flag.help:
                found[key.path] = replace(before, help=f"{before.help} With --backend {name}: {flag.help}")
    return list(found.values())


def settings_from_flags(values: Mapping[str, Any]) -> dict[str, Any]:
    """What options said of a pool, as a file would say it; None and empty sequences were not given.

    Args:
        values: by `SpecFlag.path`.
    Raises:
        SpecInvalid: a pair without a `=`.
    """
    found: dict[str, Any] = {}
    every = {key.path: key for cls in BACKENDS.values() for key in pool_keys(cls)}
    for key in every.values():
        value = values.get(".".join(key.path))
        if value is None or value == ():
            continue
        if key.kind is Kind.TABLE:
            value = read_pairs(key, value, f"`{key.flags[0]}`", {})
        at = found
        for part in key.path[:-1]:
            at = at.setdefault(part, {})
        at[key.spelling] = list(value) if key.kind is Kind.LIST else value
    return found


def _says_anything(path: FilePath) -> bool:
    """Whether there is a file, with more in it than remarks; what cannot be read is for `read_yaml` to tell."""
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return any(line.strip() and not line.lstrip().startswith(b"#") for line in lines)


def _read_pool(name: str, raw: object, path: Path, origin: Origin) -> Pool:
    with _pointing_at(path, origin):
        check_pool_name(name)
    if not isinstance(raw, Mapping):
        raise SpecInvalid(f"{_place(name, path, origin)} has no keys", fix=f"For example: {_EXAMPLE}")
    backend = raw.get("backend", "slurm")
    if backend not in BACKENDS:
        place = origin.place((*path, "backend"))
        raise SpecInvalid(f"{place} is `{backend}`, for which there is no backend", fix=nearest(str(backend), BACKENDS))
    rest = {key: value for key, value in raw.items() if key != "backend"}
    cls = BACKENDS[backend]
    values = _read_section(cls, rest, (path, ()), origin)
    for key, fix in _NEEDED.items():
        if any(one.path == (key,) for one in pool_keys(cls)) and key not in values:
            raise SpecInvalid(f"{_place(name, path, origin)} has no `{key}`", fix=fix)
    pool: Pool = cls(name=name, **values)
    with _pointing_at(path, origin):
        check_pool(pool)
    return pool


@contextmanager
def _pointing_at(path: Path, origin: Origin) -> Iterator[None]:
    """Say of what is refused where it stands in a file."""
    try:
        yield
    except SpecInvalid as error:
        if not path:
            raise
        raise SpecInvalid(f"{origin.place(path)}: {error.what}", why=error.why, fix=error.fix) from None


def _read_section(cls: Any, raw: Mapping[Any, object], at: tuple[Path, Path], origin: Origin) -> dict[str, Any]:
    """Values for the fields of a class.

    Args:
        at: where it stands in the file, and in the class.
    """
    above, section = at
    keys, sections = _keys_here(cls, section), sections_of(cls)
    found: dict[str, Any] = {}
    for written, value in raw.items():
        place = origin.place((*above, str(written)))
        inner = (*section, str(written))
        if inner in sections and section == ():
            if not isinstance(value, Mapping | None):
                raise SpecInvalid(f"{place} holds no keys", fix=nearest("", _keys_here(cls, inner)))
            values = _read_section(cls, value or {}, ((*above, str(written)), inner), origin)
            found[str(written)] = sections[inner][0](**values)
            continue
        key = keys.get(str(written))
        if key is None:
            raise SpecInvalid(f"{place} is not a key of a pool", fix=_where_it_belongs(cls, str(written), section))
        if key.path[-1] in found:
            raise SpecInvalid(f"{place} is given twice, under two spellings", fix="Keep one of them.")
        found[key.path[-1]] = _frozen(key, read_value(key, value, place, has_unit=str(written) != key.spelling))
    return found


def _keys_here(cls: Any, section: Path) -> dict[str, Key]:
    """Every spelling that is allowed in a section, best first."""
    here = [key for key in pool_keys(cls) if key.path[:-1] == section]
    return {key.path[-1]: key for key in here} | {key.spelling: key for key in here}


def _where_it_belongs(cls: Any, written: str, section: Path) -> str:
    for other in sections_of(cls):
        if other != section and written in _keys_here(cls, other):
            return f"It belongs under `{other[0]}:`." if other else "It belongs to the pool itself."
    flags = {flag.lstrip("-").replace("-", "_"): key for key in pool_keys(cls) for flag in key.flags}
    key = flags.get(written.lstrip("-").replace("-", "_"))
    if key is not None:
        return f"It is spelled `{key.dotted}`."
    for name, one in BACKENDS.items():
        if one is not cls and written in _keys_here(one, section):
            return f"It belongs to a pool with `backend: {name}`."
    sub = [name for path in sections_of(cls) if path[:-1] == section and path for name in path]
    spelled = {key.spelling for key in _keys_here(cls, section).values()}
    return nearest(written, {*spelled, *(sub if not section else [])})


def _frozen(key: Key, value: Any) -> Any:
    if key.enum is not None:
        return key.enum(value)
    return tuple(value) if key.kind is Kind.LIST else value


def _plain(key: Key, value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if key.unit == "seconds":
        return f"{value:.12g}s"
    return list(value) if isinstance(value, tuple) else dict(value) if isinstance(value, Mapping) else value


def _place(name: str, path: Path, origin: Origin) -> str:
    return origin.place(path) if path else f"Pool `{name}`"
