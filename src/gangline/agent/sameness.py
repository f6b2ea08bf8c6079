"""Do the nodes of a gang fit together? What of a node is compared, and what is said of differences. Pure.

Standard library only.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Comparison", "decide_comparison", "render_fingerprint"]

_MOST_NAMED = 8
_ROUGHLY = 0.03
"""Machines of one kind report sizes of memory that differ by less than this."""
NOT_THERE = "not installed"


@dataclass(frozen=True, slots=True)
class Comparison:
    """How the nodes of a gang differ, in words."""

    mismatches: tuple[str, ...] = ()
    """In what must be equal: `torch: 2.13.0 on nodes 0-2, 2.12.1 on node 3 (host7)`."""
    differences: tuple[str, ...] = ()
    """In what may differ but rarely should."""
    unknown: tuple[int, ...] = ()
    """Nodes whose interpreter has not answered."""


def render_fingerprint(facts: Mapping[str, Any], packages: Sequence[str]) -> dict[str, Any]:
    """What a node tells its leader of its `environment.json`.

    Args:
        packages: those that the spec wants equal, besides torch and NCCL.
    """
    python = facts.get("python") or {}
    installed: Mapping[str, str] = python.get("packages") or {}
    answered = "version" in python
    must: dict[str, str | None] = {}
    if answered:
        torch = python.get("torch") or {}
        must["interpreter"] = f"{python.get('implementation')} {python['version']}"
        must["torch"] = torch.get("__version__") or installed.get("torch", NOT_THERE)
        must["CUDA"] = torch.get("cuda") or torch.get("hip") or NOT_THERE
        must["NCCL"] = next((text for name, text in installed.items() if name.startswith("nvidia-nccl")), NOT_THERE)
        must.update({name: installed.get(_normal(name), NOT_THERE) for name in packages})
    for vendor, version in (facts.get("driver") or {}).items():
        must[f"{vendor} driver"] = version
    must["snapshot"] = facts.get("snapshot")
    missing = [name for name in packages if answered and must[name] == NOT_THERE]
    listing = json.dumps(sorted(installed.items())).encode()
    may = {
        key: facts.get(key) for key in ("kernel", "libc", "machine", "cpu_model", "cpus", "memory_bytes", "shm_bytes")
    }
    may["devices"] = facts.get("device_models") or []
    may.update({f"limit {name}": value for name, value in (facts.get("limits") or {}).items()})
    may.update({f"variable {name}": value for name, value in (facts.get("variables") or {}).items()})
    seen = {"packages": zlib.crc32(listing), "count": len(installed), "missing": missing}
    return {"answered": answered, "must": must, "may": may, **seen}


def decide_comparison(seen: Mapping[int, Mapping[str, Any]], hosts: Mapping[int, str]) -> Comparison:
    """Compare the fingerprints of all nodes of a gang.

    Args:
        seen: by node, from `render_fingerprint`.
        hosts: name of each node's machine.
    """
    answered = {node: one for node, one in seen.items() if one.get("answered")}
    keys = dict.fromkeys(key for one in answered.values() for key in one["must"])
    mismatches = [
        _differ(key, {node: _shown(one["must"].get(key, "none")) for node, one in answered.items()}, hosts)
        for key in keys
    ]
    keys = dict.fromkeys(key for one in answered.values() for key in one["may"])
    differences = [
        _differ(key, _alike({node: one["may"].get(key) for node, one in answered.items()}), hosts) for key in keys
    ]
    listings = {node: f"{one['count']} ({one['packages']:08x})" for node, one in answered.items()}
    differences.append(_differ("installed packages", listings, hosts))
    nowhere = set.intersection(*(set(one["missing"]) for one in answered.values())) if answered else set()
    differences += [f"{name}: installed on no node" for name in sorted(nowhere)]
    return Comparison(
        mismatches=tuple(text for text in mismatches if text),
        differences=tuple(text for text in differences if text),
        unknown=tuple(sorted(set(seen) - set(answered))),
    )


def _differ(key: str, values: Mapping[int, str], hosts: Mapping[int, str]) -> str:
    """`key: a on nodes 0-2, b on node 3 (host7)`; "" where all are equal."""
    by_value: dict[str, list[int]] = {}
    for node, value in sorted(values.items()):
        by_value.setdefault(value, []).append(node)
    if len(by_value) < 2:  # noqa: PLR2004 - one value: all agree
        return ""
    groups = sorted(by_value.items(), key=lambda group: -len(group[1]))
    named = [f"{value} on {_nodes(nodes, hosts)}" for value, nodes in groups[:_MOST_NAMED]]
    more = len(groups) - len(named)
    return f"{key}: {', '.join(named)}{f', and {more} more values' if more else ''}"


def _nodes(nodes: Sequence[int], hosts: Mapping[int, str]) -> str:
    """`node 3 (host7)`, `nodes 0-2`, `nodes 1, 4 and 12 more`."""
    if len(nodes) == 1:
        return f"node {nodes[0]} ({hosts.get(nodes[0], '?')})"
    spans: list[list[int]] = []
    for node in nodes:
        if spans and node == spans[-1][1] + 1:
            spans[-1][1] = node
        else:
            spans.append([node, node])
    shown = [str(first) if first == last else f"{first}-{last}" for first, last in spans[:_MOST_NAMED]]
    more = len(spans) - len(shown)
    return f"nodes {', '.join(shown)}{' and others' if more else ''}"


def _alike(values: Mapping[int, Any]) -> dict[int, str]:
    """As text, numbers that are nearly equal as the same one."""
    numbers = [value for value in values.values() if isinstance(value, int) and value > 1 << 20]
    if len(numbers) == len(values) and numbers and max(numbers) - min(numbers) <= _ROUGHLY * max(numbers):
        return dict.fromkeys(values, str(numbers[0]))
    return {node: _shown(value) for node, value in values.items()}


def _shown(value: object) -> str:
    text = "none" if value is None else ", ".join(map(str, value)) or "none" if isinstance(value, list) else str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."  # noqa: PLR2004 - a line for people


def _normal(name: str) -> str:
    """How package names are compared: `Foo_Bar.baz` is `foo-bar-baz`."""
    return "-".join(part for part in name.lower().replace("_", "-").replace(".", "-").split("-") if part)
