"""From a task of a flow to a run of Gangline: what is submitted, from where, with which options.

Speaks to `gangline.client` alone.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from metaflow import current

from gangline.client import RunSpec
from gangline.client.options import defaults_of, find_root, looks_secret, name_from, spec_from_options

from .asked import read_resources
from .compat import attributes_of, local_sysroot, named_decorator, username
from .elsewhere import HOSTS, in_container
from .shipped import shipped_defaults
from .task import OWN, VARIABLE, GangTask

__all__ = [
    "LABEL",
    "going_on",
    "lease_of",
    "make_container_spec",
    "make_spec",
    "options_of",
    "rank_arguments",
    "working_folder",
]

LABEL = "metaflow"
"""Begins the names of all labels that say which task a run belongs to."""
_LEASE_S = 120.0
_INPUTS_FILE = "--input-paths-filename"
_SHIPPED = ".mf_code"
_PASSED = ("METAFLOW_", "AWS_", "ARGO_WORKFLOW_", "SFN_")
_LOCAL_FOLDER = "METAFLOW_DATASTORE_SYSROOT_LOCAL"
_OF_THE_CONTAINER = (
    "METAFLOW_EXTRACTED_ROOT",
    _LOCAL_FOLDER,
    "METAFLOW_KUBERNETES_",
    "METAFLOW_INIT_SCRIPT",
    "AWS_BATCH_",
)
"""What holds for the container of a step alone, and for no machine of a pool."""
_SECRETS = frozenset({"METAFLOW_SERVICE_HEADERS"})
"""What holds a secret, and is not named as such."""
_TIME_LIMITS = frozenset({"time_limit", "time_limit_s"})


def rank_arguments(argv: list[str], step: str) -> list[str]:
    """The arguments of the flow's file with which a rank runs the step: the trampoline's own, without the detour."""
    for at in range(len(argv) - 3, 0, -1):
        if argv[at : at + 3] == ["gang", "step", step]:
            return [*argv[1:at], *argv[at + 1 :]]
    raise ValueError(f"no `gang step {step}` in {argv}")


def _with_inputs(arguments: list[str]) -> list[str]:
    """The same, with what a file of this container says in place of its name: ranks are on other machines."""
    if not in_container() or _INPUTS_FILE not in arguments:
        return arguments
    at = arguments.index(_INPUTS_FILE)
    told = Path(arguments[at + 1]).read_text(encoding="utf-8").strip(" \n\"'")
    return [*arguments[:at], "--input-paths", told, *arguments[at + 2 :]]


def working_folder(flow_file: Path) -> Path:
    """Where the ranks start: where the flow was started, or beside its file where that lies in another project."""
    here = Path.cwd()
    return here if flow_file.is_relative_to(find_root(here).absolute()) else flow_file.parent


def lease_of(step: Any) -> float:
    """How long the gang goes on when nobody waits for it."""
    return float(attributes_of(step, "gang").get("lease_s") or _LEASE_S)


def make_spec(step: Any, task: GangTask, *, argv: list[str], far: bool) -> RunSpec:
    """The spec of the run that the task becomes, should nothing be there of earlier ones.

    Args:
        far: the ranks see no folder of this machine.
    Raises:
        GanglineError: an option is wrong.
    """
    flow_file = Path(argv[0]).absolute()
    options = options_of(step)
    given = _given(step, task, options)
    given["environment"] = {"env": {**_passed(os.environ, far=far), **_environment(step), VARIABLE: task.to_text()}}
    if task.pool == "local":
        given["environment"]["python"] = sys.executable
    else:
        given["resources"] = read_resources(step, options, where=task.step)
    root = find_root(working_folder(flow_file))
    return spec_from_options(
        options,
        entry=str(flow_file),
        args=_with_inputs(rank_arguments(argv, task.step)),
        defaults=defaults_of(root),
        given=given,
        where=f"@gang of step {task.step}",
    )


def going_on(spec: RunSpec, task: GangTask, *, start_from: str | None, work: str) -> RunSpec:
    """The same, with what is known of earlier attempts.

    Args:
        start_from: the checkpoint of one of them.
        work: by which a run that does the same is known.
    """
    env = {**spec.environment.env, VARIABLE: task.to_text()}
    found = replace(spec, environment=replace(spec.environment, env=env))
    if work:
        found = replace(found, labels={**spec.labels, f"{LABEL}.work": work})
    if start_from is not None:
        found = replace(found, checkpoint=replace(spec.checkpoint, start_from=start_from))
    return found


def make_container_spec(step: Any, task: GangTask, *, argv: list[str]) -> RunSpec:
    """The spec of a gang that runs in this very container: its environment is the container's.

    Raises:
        GanglineError: an option is wrong.
    """
    options = {name: value for name, value in options_of(step).items() if name != "pool"}
    given = _given(step, task, options)
    given["environment"] = {"env": {VARIABLE: task.to_text()}, "python": sys.executable}
    if gpus := _gpus_of_container(step):
        given["resources"] = {"gpus_per_node": gpus}
    return spec_from_options(
        options,
        entry=Path(argv[0]).name,
        args=rank_arguments(argv, task.step),
        defaults=shipped_defaults(),
        given=given,
        where=f"@gang of step {task.step}",
    )


def options_of(step: Any) -> dict[str, Any]:
    """What @gang says that a spec takes."""
    return {name: value for name, value in attributes_of(step, "gang").items() if name not in OWN}


def _given(step: Any, task: GangTask, options: Mapping[str, Any]) -> dict[str, Any]:
    """What the task says of its run, whatever is asked for."""
    found: dict[str, Any] = {"name": name_from(f"{task.flow}.{task.step}"), "labels": _labels(task)}
    timeout = named_decorator(step, "timeout")
    if timeout is not None and not _TIME_LIMITS & options.keys():
        found["stop"] = {"time_limit_s": float(timeout.secs)}
    return found


def _gpus_of_container(step: Any) -> int:
    """What @kubernetes or @batch asks for, where Metaflow has put what @resources says."""
    asked = [attributes_of(step, host).get("gpu") for host in sorted(HOSTS)]
    return max((int(float(gpus)) for gpus in asked if gpus), default=0)


def _labels(task: GangTask) -> dict[str, str]:
    found = {
        "flow": task.flow,
        "run": task.run,
        "step": task.step,
        "task": task.pathspec,
        "attempt": str(task.retry),
        "split": "" if task.split is None else str(task.split),
        "part": task.part,
        "root": task.root,
        "user": username(),
        "project": current.get("project_name") or "",
        "branch": current.get("branch_name") or "",
        "production_token": os.environ.get("METAFLOW_PRODUCTION_TOKEN", ""),
        "workflow": os.environ.get("ARGO_WORKFLOW_NAME") or os.environ.get("SFN_STATE_MACHINE", ""),
        "tags": ",".join(sorted(task.tags)),
    }
    return {f"{LABEL}.{name}": value for name, value in found.items() if value}


def _passed(environ: Mapping[str, str], *, far: bool) -> dict[str, str]:
    """Settings of Metaflow and of its stores; none that looks like a secret, for a spec is no place for one."""
    found = {
        name: value
        for name, value in environ.items()
        if name.startswith(_PASSED)
        and not name.startswith(_OF_THE_CONTAINER)
        and name not in _SECRETS
        and not looks_secret(name)
    }
    if not in_container():
        found.pop(_LOCAL_FOLDER, None)
        return {**found, "METAFLOW_USER": username(), **({} if far else {_LOCAL_FOLDER: local_sysroot()})}
    # The code package is the tree of the run: ranks find Metaflow and Gangline where the container has found them.
    return {**found, "METAFLOW_USER": username(), "PYTHONPATH": _SHIPPED}


def _environment(step: Any) -> dict[str, str]:
    return {str(name): str(value) for name, value in (attributes_of(step, "environment").get("vars") or {}).items()}
