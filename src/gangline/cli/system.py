"""Samples of machines and ranks as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gangline.cli.table import Column, render_table
from gangline.cli.terminal import Terminal
from gangline.cli.text import render_number, render_size
from gangline.wire.views import SystemView

__all__ = ["render_system"]

_NODES = (
    Column(title="node", right=True),
    Column(title="host", shrink_to=10),
    Column(title="cpu", right=True),
    Column(title="steal", right=True, drop=4),
    Column(title="memory", right=True),
    Column(title="disk read/s", right=True, drop=2),
    Column(title="written/s", right=True, drop=2),
    Column(title="received/s", right=True, drop=1),
    Column(title="sent/s", right=True, drop=1),
    Column(title="waits cpu/mem/io", right=True, drop=3),
)
_RANKS = (
    Column(title="rank", right=True),
    Column(title="node", right=True, drop=1),
    Column(title="cores", right=True),
    Column(title="kept waiting", right=True),
    Column(title="memory", right=True),
    Column(title="read/s", right=True, drop=2),
    Column(title="written/s", right=True, drop=2),
    Column(title="state", drop=3),
)
_DEVICES = (
    Column(title="node", right=True),
    Column(title="device"),
    Column(title="use", right=True),
    Column(title="memory", right=True),
    Column(title="temperature", right=True, drop=2),
    Column(title="power", right=True, drop=1),
    Column(title="held back by"),
)
_STATES = {"R": "runs", "S": "sleeps", "D": "waits for a disk", "T": "stopped", "t": "traced", "Z": "ended"}


def render_system(views: Sequence[SystemView], terminal: Terminal) -> list[str]:
    """The newest sample of every node: machines, their accelerators, their ranks."""
    newest = [(view, view["samples"][-1]) for view in views if view["samples"]]
    if not newest:
        return ["No samples yet. Agents take one every 2 s while ranks run."]
    lines = render_table(_NODES, [_node_row(view, sample) for view, sample in newest], terminal)
    devices = [_device_row(view["node"], device) for view, sample in newest for device in sample.get("devices") or ()]
    if devices:
        lines += ["", *render_table(_DEVICES, devices, terminal)]
    ranks = [
        _rank_row(int(rank), view["node"], load)
        for view, sample in newest
        for rank, load in (sample.get("ranks") or {}).items()
    ]
    if ranks:
        lines += ["", *render_table(_RANKS, [row for _, row in sorted(ranks)], terminal)]
    return lines


def _node_row(view: SystemView, sample: Mapping[str, Any]) -> tuple[str, ...]:
    cpu, memory, pressure = sample.get("cpu") or {}, sample.get("memory") or {}, sample.get("pressure") or {}
    waits = "/".join(render_number(pressure.get(name)) for name in ("cpu", "memory", "io"))
    return (
        str(view["node"]),
        view["host"],
        _percent(cpu.get("busy")),
        _percent(cpu.get("steal")),
        _of(memory.get("used_bytes"), memory.get("limit_bytes")),
        *(
            render_size(sample.get(name))
            for name in ("disk_read_bytes_s", "disk_written_bytes_s", "received_bytes_s", "sent_bytes_s")
        ),
        f"{waits} %" if pressure else "-",
    )


def _rank_row(rank: int, node: int, load: Mapping[str, Any]) -> tuple[int, tuple[str, ...]]:
    state = str(load.get("state") or "")
    return rank, (
        str(rank),
        str(node),
        render_number(load.get("cpu")),
        _percent(load.get("delay")),
        render_size(load.get("rss_bytes")),
        render_size(load.get("read_bytes_s")),
        render_size(load.get("written_bytes_s")),
        _STATES.get(state, state or "-"),
    )


def _device_row(node: int, device: Mapping[str, Any]) -> tuple[str, ...]:
    use, heat, power = device.get("use_percent"), device.get("temperature_c"), device.get("power_w")
    return (
        str(node),
        str(device.get("id")),
        "-" if use is None else f"{use:.0f} %",
        _of(device.get("memory_used_bytes"), device.get("memory_total_bytes")),
        "-" if heat is None else f"{heat:.0f} C",
        "-" if power is None else f"{power:.0f} W",
        ", ".join(device.get("throttled") or ()) or "-",
    )


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _of(used: float | None, limit: float | None) -> str:
    return "-" if used is None or limit is None else f"{render_size(used)} of {render_size(limit)}"
