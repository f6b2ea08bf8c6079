"""Steps that run in a container, where an orchestrator starts them as `python flow.py … step NAME …`. Pure.

No runtime of Metaflow stands above such a process, so nobody has started the trampoline: the process becomes it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from .compat import attributes_of, others
from .task import GangTask

__all__ = [
    "HOSTS",
    "ORCHESTRATORS",
    "find_volume",
    "in_container",
    "is_there",
    "mounts_of",
    "run_folder",
    "trampoline_arguments",
]

HOSTS = frozenset({"batch", "kubernetes"})
"""Decorators that put a step into a container."""
ORCHESTRATORS = frozenset({"argo_workflows_internal", "step_functions_internal"})
"""Those by which a container tells its orchestrator what comes next."""
_MARKS = ("METAFLOW_KUBERNETES_WORKLOAD", "AWS_BATCH_JOB_ID")
_COMMANDS = frozenset({"batch", "gang", "kubernetes"})
"""They have a `step` of their own."""
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+|^\.+")


def in_container(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this process, or what has started it, is a step that an orchestrator has put into a container."""
    return any(environ.get(name) for name in _MARKS)


def trampoline_arguments(argv: Sequence[str], step: str) -> list[str] | None:
    """The arguments with which a process that was to run the step itself runs it as a gang instead.

    Returns:
        None where it was not to run this step, or as the fallback of @catch, which is no gang.
    """
    at = next((at for at in range(len(argv) - 2, 0, -1) if list(argv[at : at + 2]) == ["step", step]), None)
    if (
        at is None
        or argv[at - 1] in _COMMANDS
        or _number(argv, "--retry-count") > _number(argv, "--max-user-code-retries")
    ):
        return None
    return [*argv[:at], "gang", *argv[at:]]


def _number(argv: Sequence[str], option: str) -> int:
    for word, following in zip(argv, [*argv[1:], ""], strict=True):
        value = following if word == option else word.removeprefix(f"{option}=")
        if value is not word and value.isdecimal():
            return int(value)
    return 0


def mounts_of(step_decorators: Sequence[object]) -> list[str]:
    """Folders of the container that outlive it, as @kubernetes and @batch name them."""
    found: list[str] = []
    for host in others(step_decorators, HOSTS):
        claims = host.attributes.get("persistent_volume_claims") or {}
        found.extend(str(path) for path in claims.values())
        found.extend(name.rpartition(":")[2] for name in _listed(host.attributes.get("host_volumes")))
        efs = _listed(host.attributes.get("efs_volumes"))
        found.extend(name.partition(":")[2] or f"/mnt/{name}" for name in efs)
    return found


def _listed(value: object) -> list[str]:
    return [value] if isinstance(value, str) else [str(one) for one in value] if isinstance(value, list | tuple) else []


def is_there(path: str, folders: Sequence[str]) -> bool:
    """Whether a path lies in one of the folders."""
    whole = Path(os.path.normpath(path))
    return any(whole.is_relative_to(os.path.normpath(folder)) for folder in folders)


def find_volume(step: object) -> str | None:
    """The folder that @gang names for what has to outlive a container."""
    named = attributes_of(step, "gang").get("volume")
    return None if named is None else str(named)


def run_folder(volume: Path, task: GangTask) -> Path:
    """The run directory of a task, the same for all its attempts."""
    return volume.joinpath(
        "gangline", *(_UNSAFE.sub("-", part) for part in (task.flow, task.run, task.step, task.task))
    )
