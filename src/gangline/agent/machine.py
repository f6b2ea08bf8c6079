"""What a machine does: processors, memory, disks, network, pressure, throttling, from the kernel's files.

`read_counters` reads, `decide_rates` makes of two readings what happened between them. Standard library only.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Counters", "decide_rates", "read_counters", "read_gauges"]

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_SECTOR_BYTES = 512
_CPU = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
_WHOLE_DISK = re.compile(rb"(?:sd[a-z]+|vd[a-z]+|xvd[a-z]+|hd[a-z]+|nvme\d+n\d+|mmcblk\d+|pmem\d+)")
_THROTTLED_UNITS = {b"throttled_usec": 1e6, b"throttled_time": 1e9}
_THERMAL = "sys/devices/system/cpu/cpu0/thermal_throttle/package_throttle_count"


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Sums since the machine started; what a system does not tell is missing."""

    time: float
    """Monotonic clock."""
    cpu: Mapping[str, float] = field(default_factory=dict)
    """Seconds of all processors, by state."""
    sums: Mapping[str, float] = field(default_factory=dict)
    """Other counters, by the name of their rate."""


def read_counters(now: float, root: Path = Path("/")) -> Counters:
    """One reading.

    Args:
        now: monotonic clock.
        root: where `proc` and `sys` are.
    """
    found: dict[str, float] = {}
    for reader in (_network, _disks, _swap, _throttling, _thermal):
        with suppress(OSError, ValueError, IndexError, KeyError):
            found.update(reader(root))
    return Counters(time=now, cpu=_cpu(root), sums=found)


def decide_rates(before: Counters, after: Counters) -> dict[str, Any]:
    """What happened between two readings. Pure.

    Returns:
        `cpu`: shares of the machine's processors, by state and `busy`; and each counter per second.
    """
    took_s = after.time - before.time
    if took_s <= 0:
        return {}
    spent = {name: max(0.0, used - before.cpu.get(name, used)) for name, used in after.cpu.items()}
    total = sum(spent.values())
    rates: dict[str, Any] = {
        name: round(max(0.0, value - before.sums[name]) / took_s, 4)
        for name, value in after.sums.items()
        if name in before.sums
    }
    if total > 0:
        shares = {
            name: round(used / total, 4)
            for name, used in spent.items()
            if name in {"user", "system", "iowait", "steal"}
        }
        idle = spent.get("idle", 0.0) + spent.get("iowait", 0.0)
        rates["cpu"] = {"busy": round(1 - idle / total, 4), **shares}
    return rates


def read_gauges(root: Path = Path("/")) -> dict[str, Any]:
    """How the machine stands now: load, memory, pressure."""
    found: dict[str, Any] = {"load": list(os.getloadavg())}
    with suppress(OSError, ValueError, KeyError):
        rows = dict(line.split(b":", 1) for line in _bytes(root / "proc/meminfo").splitlines())
        kib = {
            name: int(rows[name].split()[0]) * 1024
            for name in (b"MemTotal", b"MemAvailable", b"SwapTotal", b"SwapFree")
        }
        found["memory_total_bytes"], found["memory_available_bytes"] = kib[b"MemTotal"], kib[b"MemAvailable"]
        found["swap_used_bytes"] = kib[b"SwapTotal"] - kib[b"SwapFree"]
    pressure = {}
    for name in ("cpu", "memory", "io"):
        with suppress(OSError, ValueError, IndexError):
            pressure[name] = _pressure(_bytes(root / "proc/pressure" / name))
    if pressure:
        found["pressure"] = pressure
    return found


def _pressure(text: bytes) -> float:
    """Percent of the last 10 s in which something waited: `some avg10=1.53 avg60=...`."""
    return float(text.split(None, 2)[1].partition(b"=")[2])


def _cpu(root: Path) -> dict[str, float]:
    with suppress(OSError, ValueError):
        with (root / "proc/stat").open("rb") as file:
            numbers = file.readline().split()[1:]
        return {name: int(ticks) / _TICKS_PER_S for name, ticks in zip(_CPU, numbers, strict=False)}
    return {}


def _network(root: Path) -> dict[str, float]:
    """Of all interfaces but the loopback."""
    received = sent = 0
    for line in _bytes(root / "proc/net/dev").splitlines()[2:]:
        name, _, rest = line.partition(b":")
        if name.strip() != b"lo":
            numbers = rest.split()
            received, sent = received + int(numbers[0]), sent + int(numbers[8])
    return {"received_bytes_s": received, "sent_bytes_s": sent}


def _disks(root: Path) -> dict[str, float]:
    """Of whole disks: partitions and mapped devices would count everything twice."""
    read = written = 0
    for line in _bytes(root / "proc/diskstats").splitlines():
        cells = line.split()
        if _WHOLE_DISK.fullmatch(cells[2]):
            read, written = read + int(cells[5]), written + int(cells[9])
    return {"disk_read_bytes_s": read * _SECTOR_BYTES, "disk_written_bytes_s": written * _SECTOR_BYTES}


def _swap(root: Path) -> dict[str, float]:
    rows = dict(line.split() for line in _bytes(root / "proc/vmstat").splitlines())
    return {"swap_in_bytes_s": int(rows[b"pswpin"]) * _PAGE_BYTES}


def _throttling(root: Path) -> dict[str, float]:
    """Seconds for which a control group around this process was held back, by each of them, most first."""
    found = [seconds for path in _cpu_groups(root) for seconds in _throttled_s(path)]
    return {"throttled_s_per_s": max(found)} if found else {}


def _throttled_s(path: Path) -> Iterator[float]:
    with suppress(OSError, ValueError):
        for line in _bytes(path).splitlines():
            name, _, number = line.partition(b" ")
            if name in _THROTTLED_UNITS:
                yield int(number) / _THROTTLED_UNITS[name]


def _cpu_groups(root: Path) -> Iterator[Path]:
    for line in (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / ("cpu" if controllers else "")
        folder = mount / path.strip("/")
        for place in dict.fromkeys([folder, *folder.parents]):
            if not place.is_relative_to(mount):
                break
            yield place / "cpu.stat"


def _thermal(root: Path) -> dict[str, float]:
    return {"thermal_throttles_s": int(_bytes(root / _THERMAL))}


def _bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read()
