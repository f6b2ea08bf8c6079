"""What a scheduler has given the node that this agent runs on: a name, devices, time. Standard library only."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from gangline.agent.launchspec import LaunchSpec

__all__ = ["Allocation", "adopt_allocation", "find_program", "read_allocation"]

_IDS = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS")
_NONE = frozenset({"", "NoDevFiles", "-1"})
_AMD = Path("/dev/kfd")
_NVIDIA = Path("/dev/nvidiactl")


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """What the environment of an agent says; nothing where no scheduler has started it."""

    host: str = ""
    """The node, as the scheduler calls it."""
    devices: tuple[str, ...] = ()
    device_kind: str = ""
    end: float | None = None
    """When the machines are taken back, seconds since the epoch."""
    notice_s: float | None = None
    """How long before the end the scheduler says so, by SIGURG."""
    nodes: int = 0
    """Of the whole job; 0: not known."""
    tells: bool = False
    """The scheduler is to see how the run ended: its leader ends with the run's own code."""


def read_allocation(env: Mapping[str, str], *, exists: Callable[[Path], bool] = Path.exists) -> Allocation:
    """Read the environment.

    Args:
        exists: whether a device file is there.
    """
    devices = _devices(env, exists)
    is_amd = exists(_AMD) and not exists(_NVIDIA)
    return Allocation(
        host=env.get("SLURMD_NODENAME", ""),
        devices=devices,
        device_kind=("amd" if is_amd else "nvidia") if devices else "",
        end=_number(env.get("GANGLINE_JOB_END")),
        notice_s=_number(env.get("GANGLINE_NOTICE_S")),
        nodes=int(_number(env.get("GANGLINE_NODES")) or 0),
        tells=env.get("GANGLINE_TELL") == "run",
    )


def adopt_allocation(launch: LaunchSpec, node: int, allocation: Allocation) -> LaunchSpec:
    """The launch as this node sees it: with its own devices, where the server has handed out none.

    An elastic gang is as large as the scheduler has made it.
    """
    if launch.fewest_nodes <= allocation.nodes < launch.nodes:
        launch = replace(launch, nodes=allocation.nodes)
    if not allocation.devices or any(launch.devices):
        return launch
    devices: list[tuple[str, ...]] = [()] * launch.nodes
    devices[node] = allocation.devices
    return replace(launch, devices=tuple(devices), device_kind=allocation.device_kind)


def find_program(name: str, env: Mapping[str, str]) -> str:
    """The path of a program that is named as one types it; the name itself where there is none."""
    if "/" in name:
        return name
    for folder in env.get("PATH", os.defpath).split(os.pathsep):
        path = os.path.join(folder or ".", name)  # noqa: PTH118 - a path object each would cost an agent's start
        if os.path.isfile(path) and os.access(path, os.X_OK):  # noqa: PTH113 - the same
            return os.path.abspath(path)  # noqa: PTH100 - the same
    return name


def _devices(env: Mapping[str, str], exists: Callable[[Path], bool]) -> tuple[str, ...]:
    for variable in _IDS:
        value = env.get(variable)
        if value is None:
            continue
        words = tuple(word.strip() for word in value.split(",") if word.strip())
        if value.strip() in _NONE:
            return ()
        if variable.startswith("SLURM_") and exists(_NVIDIA):
            # Numbers of the machine; where the others are hidden from the job, its own are counted from 0.
            hidden = not all(exists(Path(f"/dev/nvidia{word}")) for word in words)
            return tuple(str(at) for at in range(len(words))) if hidden else words
        return words
    return ()


def _number(text: str | None) -> float | None:
    with suppress(ValueError, TypeError):
        return float(text or "") or None
    return None
