"""How busy the accelerators of a node are: nvidia-smi and neuron-monitor, which go on telling, and amdgpu's files.

The parsers follow what the vendors document. Standard library only.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from gangline.agent.loop import Loop

__all__ = ["Accelerators", "parse_neuron", "parse_nvidia", "read_amd"]

_PERIOD_S = 5
_NVIDIA = (
    "index,utilization.gpu,memory.used,memory.total,temperature.gpu,power.draw,clocks.sm,"
    "clocks_throttle_reasons.active,ecc.errors.uncorrected.volatile.total"
)
_NVIDIA_CELLS = 9
_NVIDIA_REASONS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "heat (driver)",
    0x40: "heat (hardware)",
    0x80: "power brake",
}
"""Bits of the reasons that mean less speed than the device could have; from nvml.h."""
_COMMANDS = {
    "nvidia": ["nvidia-smi", f"--query-gpu={_NVIDIA}", "--format=csv,noheader,nounits", "-l", str(_PERIOD_S)],
    "neuron": ["neuron-monitor"],
}
_LONGEST_BYTES = 1 << 20
_LOWEST_PRIORITY = 19


class Accelerators:
    """The newest numbers of this node's accelerators.

    Args:
        kind: `nvidia`, `amd` or `neuron`; of others nothing is known.
        helpers: takes the pid of the tool, so that ending an attempt spares it.
    """

    def __init__(self, kind: str, loop: Loop, *, helpers: set[int]) -> None:
        self._kind = kind
        self._loop = loop
        self._helpers = helpers
        self._child: subprocess.Popen[bytes] | None = None
        self._received = b""
        self._failed = False
        self._devices: dict[str, dict[str, Any]] = {}

    def sample(self) -> list[dict[str, Any]]:
        """What is known now, by device; starts the vendor's tool at the first call."""
        if self._kind == "amd":
            return read_amd()
        if self._kind in _COMMANDS and self._child is None and not self._failed:
            self._start(_COMMANDS[self._kind])
        return [self._devices[name] for name in sorted(self._devices)]

    def close(self) -> None:
        """End the tool."""
        child, self._child = self._child, None
        if child is None or child.stdout is None:
            return
        self._loop.unwatch(child.stdout)
        child.stdout.close()
        child.kill()
        child.wait()
        self._helpers.discard(child.pid)

    def _start(self, command: list[str]) -> None:
        try:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError:
            self._failed = True  # there is no such tool here, and will not be
            return
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, child.pid, _LOWEST_PRIORITY)
        assert child.stdout is not None  # noqa: S101 - a pipe was asked for
        os.set_blocking(child.stdout.fileno(), False)
        self._child = child
        self._helpers.add(child.pid)
        self._loop.watch(child.stdout, self._read)

    def _read(self) -> None:
        child = self._child
        if child is None or child.stdout is None:
            return
        data = child.stdout.read(1 << 16)
        if data is None:
            return
        if not data:
            self._failed = True
            self.close()
            return
        parse: Callable[[str], list[dict[str, Any]]] = parse_nvidia if self._kind == "nvidia" else parse_neuron
        *lines, self._received = (self._received + data).split(b"\n")
        self._received = self._received[-_LONGEST_BYTES:]
        for line in lines:
            for device in parse(line.decode("utf-8", "replace")):
                self._devices[device["id"]] = device


def parse_nvidia(text: str) -> list[dict[str, Any]]:
    """Lines of `nvidia-smi --query-gpu`; what a device does not tell (`[N/A]`) is null, other lines are left out."""
    found = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != _NVIDIA_CELLS or not cells[0].isdigit():
            continue
        used, total = _number(cells[2]), _number(cells[3])
        found.append(
            {
                "id": cells[0],
                "use_percent": _number(cells[1]),
                "memory_used_bytes": None if used is None else int(used) << 20,
                "memory_total_bytes": None if total is None else int(total) << 20,
                "temperature_c": _number(cells[4]),
                "power_w": _number(cells[5]),
                "clock_mhz": _number(cells[6]),
                "throttled": _reasons(cells[7]),
                "ecc_errors": _number(cells[8]),
            }
        )
    return found


def parse_neuron(text: str) -> list[dict[str, Any]]:
    """One report of `neuron-monitor`: cores in use by all runtimes; [] where it is none."""
    try:
        report = json.loads(text)
    except (ValueError, RecursionError):
        return []
    found: dict[str, dict[str, Any]] = {}
    runtimes = report.get("neuron_runtime_data") if isinstance(report, dict) else None
    for runtime in runtimes or ():
        with suppress(AttributeError, TypeError, KeyError, ValueError):
            cores = runtime["report"]["neuroncore_counters"]["neuroncores_in_use"]
            for name, core in cores.items():
                use = float(core["neuroncore_utilization"])
                known = found.setdefault(name, {"id": name, "use_percent": 0.0})
                known["use_percent"] = max(known["use_percent"], use)
    return [found[name] for name in sorted(found)]


def read_amd(drm: Path = Path("/sys/class/drm")) -> list[dict[str, Any]]:
    """What the amdgpu driver says of each device."""
    found = []
    for folder in sorted(drm.glob("card[0-9]*/device")):
        use = _file(folder / "gpu_busy_percent")
        if use is None:
            continue
        temperature = next((_file(path) for path in folder.glob("hwmon/hwmon*/temp1_input")), None)
        power = next((_file(path) for path in folder.glob("hwmon/hwmon*/power1_average")), None)
        found.append(
            {
                "id": folder.parent.name.removeprefix("card"),
                "use_percent": float(use),
                "memory_used_bytes": _file(folder / "mem_info_vram_used"),
                "memory_total_bytes": _file(folder / "mem_info_vram_total"),
                "temperature_c": None if temperature is None else temperature / 1000,
                "power_w": None if power is None else power / 1e6,
            }
        )
    return found


def _number(cell: str) -> float | None:
    with suppress(ValueError):
        return float(cell)
    return None


def _reasons(cell: str) -> list[str]:
    try:
        bits = int(cell, 16)
    except ValueError:
        return []
    return [text for bit, text in _NVIDIA_REASONS.items() if bits & bit]


def _file(path: Path) -> int | None:
    with suppress(OSError, ValueError):
        return int(path.read_text(encoding="ascii"))
    return None
