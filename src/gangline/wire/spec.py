"""Run specs to and from what travels and what people write: JSON bodies, YAML files, tables in Python.

One schema, derived in `wire/schema.py` from the classes of `domain/spec.py`; read in `wire/reading.py`. A command that
submits waits for this module, so it imports the standard library alone; YAML is loaded once there is a file to read.
"""

from __future__ import annotations

import dataclasses
import posixpath
from collections.abc import Mapping
from enum import Enum
from pathlib import Path as FilePath
from typing import Any

from gangline.domain.check import resolve_checkpoints
from gangline.domain.errors import SpecInvalid
from gangline.domain.faults import Faults
from gangline.domain.spec import EntryKind, RunSpec
from gangline.wire.reading import Origin, read_spec
from gangline.wire.schema import Key, Kind, Path, keys, sections
from gangline.wire.units import parse_bytes, parse_duration

__all__ = [
    "json_schema",
    "list_keys",
    "merge_layers",
    "parse_bytes",
    "parse_duration",
    "partial_from_yaml",
    "spec_from_mapping",
    "spec_from_yaml",
    "spec_to_mapping",
]


def spec_from_mapping(raw: Mapping[str, Any], *, source: str = "") -> RunSpec:
    """The spec that a mapping describes; what is left out has its default.

    Args:
        source: the name of the file or body, for errors.
    Raises:
        SpecInvalid: an unknown key, a wrong value, or nothing to run; it names the key, the value and what is valid.
    """
    return _build_spec(read_spec(raw, Origin(source)), source)


def spec_from_yaml(path: FilePath) -> RunSpec:
    """The spec in a YAML file.

    Raises:
        SpecInvalid: as `spec_from_mapping`, with the line; or no readable YAML.
    """
    return _build_spec(partial_from_yaml(path), path.name)


def partial_from_yaml(path: FilePath, *, may_be_empty: bool = False) -> dict[str, Any]:
    """What a YAML file sets, checked, under canonical keys; a layer for `merge_layers`.

    A relative checkpoint path in it starts from the folder of the file and comes out absolute.

    Args:
        may_be_empty: a file that holds nothing sets nothing, as a `gangline.yaml` that only marks the project's root.
    Raises:
        SpecInvalid: as `spec_from_yaml`, but nothing needs to be complete.
    """
    from gangline.wire.yaml_file import read_yaml  # noqa: PLC0415 - PyYAML costs 20 ms that most commands need not pay

    faults, layer = Faults(), dict[str, Any]()
    raw, lines = read_yaml(path, may_be_empty=may_be_empty, faults=faults)
    with faults.gathered():
        layer = read_spec(raw, Origin(path.name, lines, by_hand=True))
    faults.raise_all(path.name)
    checkpoint = layer.get("checkpoint") or {}
    if checkpoint.get("path") is not None:
        folder = str(path.absolute().parent)
        checkpoint["path"] = resolve_checkpoints(checkpoint["path"], folder=folder)
    return layer


def spec_to_mapping(spec: RunSpec) -> dict[str, Any]:
    """The spec as plain JSON values, complete; `spec_from_mapping` reads it back to an equal spec."""
    found: dict[str, Any] = _plain(spec)
    return found


def merge_layers(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Lay mappings over one another: later ones win, tables are merged by key, lists are replaced.

    A layer that names another entry brings its own arguments: those of the layers below are dropped.
    """
    merged: dict[str, Any] = {}
    for layer in layers:
        if layer.get("entry", merged.get("entry")) != merged.get("entry"):
            merged = {key: value for key, value in merged.items() if key not in {"entry_kind", "args"}}
        merged = _merge(merged, layer)
    return merged


def list_keys(layer: Mapping[str, Any], prefix: Path = ()) -> list[str]:
    """Every key that a layer sets, dotted."""
    found = []
    for name, value in layer.items():
        if name == "min_nodes" and value is None:  # comes along with `nodes`
            continue
        here = (*prefix, name)
        inner = here in sections() and isinstance(value, Mapping)
        found += list_keys(value, here) if inner else [".".join(here)]
    return found


def json_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of a spec file, for editors."""
    from gangline.wire.json_schema import render_json_schema  # noqa: PLC0415 - only editors and docs ask for it

    return render_json_schema()


def _build_spec(values: Mapping[str, Any], source: str) -> RunSpec:
    values = _with_script(values)
    if not values.get("entry"):
        name = f" in {source}" if source else ""
        raise SpecInvalid(
            f"There is nothing to run{name}",
            fix="Name a script (`script: train.py`), a module (`module: pkg.train`) or a command (`command: [...]`).",
        )
    spec: RunSpec = _build(RunSpec, (), values)
    return spec


def _with_script(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """A batch script is what runs: a command by the same name.

    Raises:
        SpecInvalid: something else is named as well.
    """
    script = (values.get("slurm") or {}).get("script")
    entry = values.get("entry")
    if script is None or (entry and posixpath.normpath(entry) == posixpath.normpath(script)):
        return values
    if entry:
        raise SpecInvalid(
            f"--sbatch names `{script}`, and `{entry}` is to run as well",
            why="A batch script takes the place of what runs",
            fix="Keep one of them; arguments of the batch script stand behind `--`.",
        )
    return {**values, "entry": script, "entry_kind": EntryKind.COMMAND.value}


def _build(cls: type[Any], path: Path, values: Mapping[str, Any]) -> Any:
    """An object of `cls` from canonical values."""
    made: dict[str, Any] = {}
    for name, value in values.items():
        here = (*path, name)
        if here in sections() and value is not None:
            made[name] = _build(sections()[here][0], here, value)
        else:
            made[name] = _frozen(keys()[here], value) if here in keys() else value
    missing = [field.name for field in dataclasses.fields(cls) if field.name not in made and _needed(field)]
    if missing:
        raise SpecInvalid(
            f"`{'.'.join((*path, missing[0]))}` is missing", fix=f"`{'.'.join(path)}` cannot go without it."
        )
    return cls(**made)


def _needed(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _frozen(key: Key, value: Any) -> Any:
    if key.enum is not None:
        return key.enum(value)
    return tuple(value) if key.kind is Kind.LIST else value


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, tuple) else value


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for name, value in above.items():
        old = merged.get(name)
        merged[name] = _merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged
