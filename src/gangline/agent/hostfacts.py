"""What a machine is, read from files of the system alone: no program is started, nothing takes time.

Standard library only.
"""

from __future__ import annotations

import os
import re
import resource
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

__all__ = ["find_driver", "read_host", "relevant_variables"]

_PREFIXES = (
    "NCCL_",
    "TORCH_",
    "CUDA_",
    "OMP_",
    "MKL_",
    "GLOO_",
    "FI_",
    "UCX_",
    "HIP_",
    "HSA_",
    "RCCL_",
    "NEURON_",
    "XLA_",
)
_NAMES = frozenset(
    {"LD_LIBRARY_PATH", "LD_PRELOAD", "LANG", "LC_ALL", "TZ", "PYTORCH_CUDA_ALLOC_CONF", "PYTHONHASHSEED"}
)
_OWN = frozenset({"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "NEURON_RT_VISIBLE_CORES"})
"""What the platform itself gives each node."""


def read_host(root: Path = Path("/")) -> dict[str, Any]:
    """Kernel, C library, processor, memory, limits and accelerator driver of this machine; None where unknown."""
    system = os.uname()
    return {
        "kernel": f"{system.sysname} {system.release}",
        "machine": system.machine,
        "libc": _libc(),
        "cpu_model": _cpu_model(root),
        "cpus": os.cpu_count(),
        "cpus_usable": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "shm_bytes": _volume_bytes(root / "dev/shm"),
        "limits": _limits(),
        "driver": find_driver(root),
        "device_models": _device_models(root),
    }


def find_driver(root: Path = Path("/")) -> dict[str, str]:
    """Version of each accelerator's kernel driver that is loaded, by vendor."""
    found = {}
    with suppress(OSError):
        match = re.search(r"Kernel Module.*?(\d+\.\d[\d.]*)", _text(root / "proc/driver/nvidia/version"))
        if match:
            found["nvidia"] = match[1]
    for vendor, module in (("amd", "amdgpu"), ("neuron", "neuron")):
        with suppress(OSError):
            found[vendor] = _text(root / "sys/module" / module / "version").strip()
    return found


def relevant_variables(env: Mapping[str, str]) -> dict[str, str]:
    """Variables of a rank that change how ranks compute and talk to one another."""
    return {
        name: value
        for name, value in sorted(env.items())
        if name not in _OWN and (name in _NAMES or name.startswith(_PREFIXES))
    }


def _libc() -> str | None:
    with suppress(AttributeError, ValueError, OSError):
        return os.confstr("CS_GNU_LIBC_VERSION") if sys.platform == "linux" else None
    return None


def _cpu_model(root: Path) -> str | None:
    with suppress(OSError), (root / "proc/cpuinfo").open("rb") as file:  # the first of maybe hundreds is enough
        first = file.read(4096).decode("utf-8", "replace")
        match = re.search(r"^(?:model name|Model|cpu model)\s*: *(.+)$", first, re.MULTILINE)
        return match[1].strip() if match else None
    return None


def _device_models(root: Path) -> list[str]:
    """Models of NVIDIA devices as their driver lists them, by bus; Neuron devices as it numbers them."""
    models = []
    for file in sorted(root.glob("proc/driver/nvidia/gpus/*/information")):
        with suppress(OSError):
            match = re.search(r"^Model:\s*(.+)$", _text(file), re.MULTILINE)
            models.append(match[1].strip() if match else "?")
    return [*models, *("neuron" for _ in root.glob("dev/neuron[0-9]*"))]


def _volume_bytes(path: Path) -> int | None:
    with suppress(OSError):
        volume = os.statvfs(path)
        return volume.f_blocks * volume.f_frsize
    return None


def _limits() -> dict[str, int]:
    """Soft limits; -1: none."""
    kinds = {"nofile": "RLIMIT_NOFILE", "memlock": "RLIMIT_MEMLOCK", "nproc": "RLIMIT_NPROC", "stack": "RLIMIT_STACK"}
    return {
        name: resource.getrlimit(getattr(resource, kind))[0] for name, kind in kinds.items() if hasattr(resource, kind)
    }


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")
