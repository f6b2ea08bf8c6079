"""What this machine has: cores, memory, accelerators, as far as this process may use them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from gangline.backends.local.parse import (
    parse_cgroups,
    parse_cpu_max,
    parse_kfd_properties,
    parse_limit_bytes,
    parse_mem_total,
    parse_nvidia_gpus,
    parse_nvidia_mig,
    parse_visible,
)
from gangline.domain.gang import PoolCapacity

__all__ = ["detect_capacity", "detect_cpus", "detect_devices", "detect_memory_bytes"]

_LEAST_RANKS, _RANKS_PER_CPU = 256, 32
"""Ranks at once: above what is sensible, below what takes the machine down, as a slip such as `--nodes 1000` would."""
_LEAST_NODES, _NODES_PER_CPU = 64, 4
"""The same for the nodes of one gang, each of which is an agent here."""
_TOOL_TIMEOUT_S = 20.0


def detect_capacity(env: Mapping[str, str], *, system: Path = Path("/")) -> PoolCapacity:
    """Ask the machine.

    Args:
        env: the server's environment; `CUDA_VISIBLE_DEVICES` and its kin limit what is handed out.
        system: where `proc` and `sys` lie.
    """
    kind, devices = detect_devices(env, system=system)
    cpus = detect_cpus(system)
    return PoolCapacity(
        nodes=max(_LEAST_NODES, _NODES_PER_CPU * cpus),
        ranks=max(_LEAST_RANKS, _RANKS_PER_CPU * cpus),
        cpus=cpus,
        memory_bytes=detect_memory_bytes(system),
        devices=devices,
        device_kind=kind,
        hosts=(os.uname().nodename,),
    )


def detect_cpus(system: Path) -> int:
    """Cores that this process may use: its affinity, and the quota of its control groups; at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = [
        quota
        for folder in _cgroup_folders(system, "cpu")
        if (quota := parse_cpu_max(_read(folder / "cpu.max") or _quota_v1(folder))) is not None
    ]
    return max(int(min([cores, *quotas])), 1)


def detect_memory_bytes(system: Path) -> int:
    """Memory that this process may use: the machine's, and the limit of its control groups."""
    total = parse_mem_total(_read(system / "proc/meminfo"))
    if total is None:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [
        limit
        for folder in _cgroup_folders(system, "memory")
        if (limit := parse_limit_bytes(_read(folder / "memory.max") or _read(folder / "memory.limit_in_bytes")))
        is not None
    ]
    return min([total, *limits])


def detect_devices(env: Mapping[str, str], *, system: Path) -> tuple[str, tuple[str, ...]]:
    """The kind of accelerators (`nvidia`, `amd` or "") and their ids as their visibility variable takes them."""
    nvidia = _nvidia(env)
    if nvidia:
        return "nvidia", tuple(nvidia)
    amd = parse_kfd_properties(dict(_kfd_nodes(system)))
    value = env.get("HIP_VISIBLE_DEVICES", env.get("ROCR_VISIBLE_DEVICES"))
    visible = parse_visible(value, [(index, "") for index in amd])
    return ("amd", tuple(visible)) if visible else ("", ())


def _nvidia(env: Mapping[str, str]) -> list[str]:
    gpus = parse_nvidia_gpus(_run("nvidia-smi", "--query-gpu=index,uuid,mig.mode.current", "--format=csv,noheader"))
    parts = parse_nvidia_mig(_run("nvidia-smi", "-L")) if any(mig for _, _, mig in gpus) else {}
    known: list[tuple[str, str]] = []
    for index, uuid, mig in gpus:
        if mig:
            known += ((part, part) for part in parts.get(index, []))
        else:
            known.append((index, uuid))
    return parse_visible(env.get("CUDA_VISIBLE_DEVICES"), known)


def _kfd_nodes(system: Path) -> Iterator[tuple[int, str]]:
    folder = system / "sys/class/kfd/kfd/topology/nodes"
    if folder.is_dir():
        yield from ((int(node.name), _read(node / "properties")) for node in folder.iterdir() if node.name.isdigit())


def _cgroup_folders(system: Path, controller: str) -> Iterator[Path]:
    """Folders of this process's control group and of those around it, in both versions."""
    groups = parse_cgroups(_read(system / "proc/self/cgroup"))
    mounts = {"": system / "sys/fs/cgroup", controller: system / "sys/fs/cgroup" / controller}
    for name, mount in mounts.items():
        if name not in groups:
            continue
        inner = Path(groups[name].lstrip("/"))
        for folder in (inner, *inner.parents):
            yield mount / folder


def _quota_v1(folder: Path) -> str:
    return f"{_read(folder / 'cpu.cfs_quota_us').strip()} {_read(folder / 'cpu.cfs_period_us').strip()}"


def _read(path: Path) -> str:
    """The text of a system file; "" where it is not there or not for us."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _run(*command: str) -> str:
    """What a tool prints; "" where it is missing, fails or hangs, which is how a machine without the hardware looks."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_TOOL_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
