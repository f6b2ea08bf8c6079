"""What the system's files and tools say about a machine, read without touching it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

__all__ = [
    "parse_cgroups",
    "parse_cpu_max",
    "parse_kfd_properties",
    "parse_limit_bytes",
    "parse_mem_total",
    "parse_nvidia_gpus",
    "parse_nvidia_mig",
    "parse_visible",
]

_UNLIMITED_BYTES = 1 << 60
"""What cgroup v1 says where there is no limit lies above this."""
_MIG = re.compile(r"^\s+MIG .*\(UUID: (MIG-[^)]+)\)")
_GPU = re.compile(r"^GPU (\d+):")


def parse_cgroups(text: str) -> dict[str, str]:
    """`/proc/self/cgroup` as controller to path; "" is the one hierarchy of version 2."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            found[controller] = path
    return found


def parse_cpu_max(text: str) -> float | None:
    """Cores from `cpu.max` (`200000 100000`), or from quota and period of version 1 in that form; None: no limit."""
    quota, _, period = text.strip().partition(" ")
    if quota == "max" or not period or int(quota) <= 0 or int(period) <= 0:
        return None
    return int(quota) / int(period)


def parse_limit_bytes(text: str) -> int | None:
    """Bytes from `memory.max` or `memory.limit_in_bytes`; None: no limit."""
    word = text.strip()
    if not word.isdigit() or int(word) >= _UNLIMITED_BYTES:
        return None
    return int(word)


def parse_mem_total(text: str) -> int | None:
    """Bytes from `/proc/meminfo`."""
    found = re.search(r"^MemTotal:\s+(\d+) kB", text, re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def parse_nvidia_gpus(text: str) -> list[tuple[str, str, bool]]:
    """Index, UUID and whether it is cut into MIG parts, for each GPU.

    Args:
        text: `nvidia-smi --query-gpu=index,uuid,mig.mode.current --format=csv,noheader`.
    """
    rows = ([cell.strip() for cell in line.split(",")] for line in text.splitlines())
    return [(row[0], row[1], row[2] == "Enabled") for row in rows if len(row) == 3 and row[0].isdigit()]  # noqa: PLR2004


def parse_nvidia_mig(text: str) -> dict[str, list[str]]:
    """UUIDs of the MIG parts of each GPU, by its index, from `nvidia-smi -L`."""
    parts: dict[str, list[str]] = {}
    index = ""
    for line in text.splitlines():
        if gpu := _GPU.match(line):
            index = gpu[1]
        elif mig := _MIG.match(line):
            parts.setdefault(index, []).append(mig[1])
    return parts


def parse_kfd_properties(nodes: Mapping[int, str]) -> list[str]:
    """Indices of AMD GPUs; nodes without SIMDs are CPUs.

    Args:
        nodes: the text of `/sys/class/kfd/kfd/topology/nodes/<n>/properties` by n.
    """
    gpus = [node for node in sorted(nodes) if re.search(r"^simd_count [1-9]", nodes[node], re.MULTILINE)]
    return [str(index) for index, _ in enumerate(gpus)]


def parse_visible(value: str | None, known: Sequence[tuple[str, str]]) -> list[str]:
    """The devices that a visibility variable leaves, in its order and in its words.

    As the vendor's runtime does, the list ends at the first entry that names no device, and a UUID may be cut short.

    Args:
        value: the variable; None: it is not set, and every device is visible.
        known: index and UUID of each device.
    """
    if value is None:
        return [index for index, _ in known]
    visible: list[str] = []
    for word in (part.strip() for part in value.split(",")):
        if not _is_one_of(word, known) or word in visible:
            break
        visible.append(word)
    return visible


def _is_one_of(word: str, known: Iterable[tuple[str, str]]) -> bool:
    if word.isdigit():
        return any(word == index for index, _ in known)
    return bool(word) and sum(uuid.startswith(word) for _, uuid in known) == 1
