"""What @resources beside @gang asks for, as keys of a spec. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from .compat import GangError, named_decorator

__all__ = ["read_resources"]

_MEGABYTE = 1024 * 1024
_SAID_BY_GANG = {
    "gpu": ("gpus_per_node",),
    "memory": ("memory", "memory_bytes"),
    "cpu": ("cpus_per_rank",),
}


def read_resources(step: Any, options: Mapping[str, Any], *, where: str) -> dict[str, Any]:
    """What @resources says of each node: devices, memory, and processors, which its ranks share.

    Args:
        options: of @gang.
        where: the step, for people.
    Raises:
        GangError: @gang says the same in its own way, or it is no number that a gang can have.
    """
    asked = named_decorator(step, "resources")
    if asked is None:
        return {}
    named = {name: asked.attributes.get(name) for name in asked._user_defined_attributes}  # noqa: SLF001
    told = {name: value for name in _SAID_BY_GANG if (value := _number(named, name, where)) is not None}
    for name in told:
        _refuse_both(name, named[name], options, where)
    if told.get("gpu", 0) % 1:
        raise GangError(
            f"Step *{where}* asks for gpu={named['gpu']!r} in @resources. Ranks of a gang have whole devices: give it "
            "a whole number."
        )
    found = {"gpus_per_node": int(told.get("gpu", 0)), "memory_bytes": int(told.get("memory", 0) * _MEGABYTE)}
    if told.get("cpu"):
        found["cpus_per_rank"] = max(1, math.floor(told["cpu"] / int(options.get("procs_per_node") or 1)))
    return {name: value for name, value in found.items() if value}


def _number(named: Mapping[str, Any], name: str, where: str) -> float | None:
    value = named.get(name)
    if value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not (math.isfinite(number) and number >= 0):
        raise GangError(f"Step *{where}* asks for {name}={value!r} in @resources. Give it a number from 0 up.")
    return number


def _refuse_both(name: str, value: Any, options: Mapping[str, Any], where: str) -> None:
    both = next((key for key in _SAID_BY_GANG[name] if options.get(key) is not None), None)
    if both is not None:
        raise GangError(
            f"Step *{where}* asks for {name}={value!r} in @resources and {both}={options[both]!r} in @gang: on a pool "
            "both say the same. Keep one of them."
        )
