"""The spec as JSON Schema, for editors that complete and check `run.yaml` and `gangline.yaml`. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gangline.domain.check import MOST
from gangline.wire.schema import Key, Kind, keys, sections

__all__ = ["render_json_schema"]

_TEXT: Mapping[str, Any] = {"type": ["string", "integer"]}
_ENTRIES: Mapping[str, Mapping[str, Any]] = {
    "script": {"type": "string", "description": "Python script that the ranks run."},
    "module": {"type": "string", "description": "Module that the ranks run, as `python -m` would."},
    "notebook": {"type": "string", "description": "Notebook that the ranks run from top to bottom."},
    "command": {
        "anyOf": [{"type": "string"}, {"type": "array", "items": _TEXT, "minItems": 1}],
        "description": "Any other program: a list of words, or one text for `bash -eo pipefail -c`.",
    },
}


def render_json_schema() -> dict[str, Any]:
    """JSON Schema (2020-12). Keys that the client fills in at submit are left out: no file may set them."""
    properties: dict[str, Any] = {name: dict(entry) for name, entry in _ENTRIES.items()}
    for key in keys().values():
        if key.filled_in:
            continue
        target = properties
        for section in key.path[:-1]:
            target = target.setdefault(section, _section(section))["properties"]
        target[key.spelling] = _property(key)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Gangline run spec",
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
    }


def _section(name: str) -> dict[str, Any]:
    summary = (sections()[name,][0].__doc__ or "").partition("\n")[0]
    return {"type": ["object", "null"], "description": summary, "additionalProperties": False, "properties": {}}


def _property(key: Key) -> dict[str, Any]:
    found = {**_shape(key), "description": key.help}
    if key.optional:
        found = {"anyOf": [_shape(key), {"type": "null"}], "description": key.help}
    if key.default not in (None, "", (), {}):
        found["default"] = str(key.default) if key.kind is Kind.CHOICE else key.default
    return found


def _shape(key: Key) -> dict[str, Any]:
    if key.unit == "bytes":
        return {"type": "string", "pattern": r"^\s*\d+(\.\d+)?\s*([kKmMgGtT]([iI]?[bB])?|[bB])\s*$"}
    if key.unit == "seconds":
        return {"type": ["string", "number"]}
    ranges: dict[str, Any] = {} if key.signed else {"exclusiveMinimum": 0} if key.positive else {"minimum": 0}
    if (most := MOST.get(key.path)) is not None:
        ranges = {**({"minimum": -most} if key.signed else ranges), "maximum": most}
    if key.path == ("resources", "nodes"):
        return {"anyOf": [{"type": "integer", **ranges}, {"type": "string", "pattern": r"^[1-9]\d*:[1-9]\d*$"}]}
    return {
        Kind.INTEGER: {"type": "integer", **ranges},
        Kind.NUMBER: {"type": "number", **ranges},
        Kind.TEXT: {"type": "string"},
        Kind.BOOLEAN: {"type": "boolean"},
        Kind.CHOICE: {"enum": list(key.choices)},
        Kind.LIST: {"type": "array", "items": dict(_TEXT)},
        Kind.TABLE: {"type": "object", "additionalProperties": dict(_TEXT)},
    }[key.kind]
