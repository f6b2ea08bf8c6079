"""What runs a task with @gang in place of its step: as a run of a server, or in this container, which it waits for.

It ends the gang when it is told to end, and when the runtime above it is gone; when it is killed itself, the lease of
the gang ends it.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from types import FrameType
from typing import Any

from metaflow import current

from gangline.client import GanglineError

from .compat import (
    GangError,
    attributes_of,
    clone_task,
    digest_inputs,
    frames_of,
    input_paths,
    is_one_of_many,
    origins_of,
    register,
    rounds_of,
)
from .container import SPOT_NOTICE, find_container_failure, run_in_container
from .elsewhere import in_container
from .hooks import orchestrated
from .parts import UNKNOWN, name_part
from .reach import bring_metadata_home
from .task import LOCAL, TOLD, GangTask, ToldToEndError

__all__ = ["find_failure", "run_gang"]


def run_gang(obj: Any, params: dict[str, Any]) -> None:
    """Run one task as a gang; returns when it has succeeded.

    Args:
        obj: Metaflow's state of this process.
        params: of the command `step`.
    Raises:
        GangError: it did not succeed.
    """
    runtime = os.getppid()
    for number in TOLD:
        signal.signal(number, _on_signal)
    task = _task_of(obj, params)
    note = _noting(obj.metadata, task)
    try:
        if not in_container():
            _serve(obj, params, task, note, lambda: os.getppid() == runtime)
            return
        with orchestrated(obj, task, params):
            if task.pool == LOCAL:
                run_in_container(getattr(obj.flow, task.step), task, note=note, is_wanted=_collect_signals())
            else:
                _serve(obj, params, task, note, lambda: not SPOT_NOTICE.exists())
    except GanglineError as error:
        raise GangError(str(error)) from None
    except ToldToEndError:
        raise GangError("The flow was told to end; so was the gang, which saves a checkpoint first.") from None


def find_failure(flow: Any, step: str) -> Exception | None:
    """Why the gang of the task of this process has failed, for @catch."""
    options = attributes_of(getattr(flow, step), "gang")
    task = GangTask(flow=flow.name, run=current.run_id, step=step, task=current.task_id, retry=0)
    if in_container() and (options.get("pool") or LOCAL) == LOCAL:
        return find_container_failure(getattr(flow, step), task)
    from .served import find_served_failure  # noqa: PLC0415 - needs packages that a container may lack

    return find_served_failure(task)


def _noting(metadata: Any, task: GangTask) -> Callable[..., None]:
    """What registers metadata of the task. It never decides how a task ends: where it fails, that is said."""

    def note(fields: dict[str, str]) -> None:
        try:
            register(metadata, run=task.run, step=task.step, task=task.task, attempt=task.retry, fields=fields)
        except Exception as error:  # noqa: BLE001 - whatever a metadata service raises
            sys.stderr.write(f"Metadata of this task could not be registered ({error}): {', '.join(fields)}.\n")

    return note


def _serve(
    obj: Any,
    params: dict[str, Any],
    task: GangTask,
    note: Callable[..., None],
    is_wanted: Callable[[], bool],
) -> None:
    try:
        from .served import ServedGang  # noqa: PLC0415 - as above
    except ImportError as error:
        raise GangError(
            f"@gang of step *{task.step}* names the pool `{task.pool}`, and this Python cannot speak to a server of "
            f"Gangline: {error}. Install Gangline into the image, or name no pool: then the gang runs in the container."
        ) from None
    origins = _read(lambda: origins_of(obj, clone), [clone]) if (clone := params.get("clone_run_id")) else []
    task = replace(task, root=[task.run, *origins][-1], part=_read(lambda: _part_of(obj, params), UNKNOWN))
    ServedGang(
        obj.flow,
        obj.flow_datastore,
        task,
        origins=origins,
        inputs=_read(lambda: digest_inputs(obj, params), None),
        note=note,
        is_wanted=is_wanted,
        take_over=lambda origin: clone_task(obj, task, origin),
    ).run()
    bring_metadata_home(task, obj.metadata, obj.flow_datastore)


def _task_of(obj: Any, params: dict[str, Any]) -> GangTask:
    options = attributes_of(getattr(obj.flow, params["step_name"]), "gang")
    return GangTask(
        flow=obj.flow.name,
        run=str(params["run_id"]),
        step=params["step_name"],
        task=str(params["task_id"]),
        retry=int(params["retry_count"] or 0),
        pool=str(options.get("pool") or LOCAL),
        split=params.get("split_index"),
        tags=tuple(params.get("opt_tag") or ()),
    )


def _part_of(obj: Any, params: dict[str, Any]) -> str:
    step, paths = params["step_name"], input_paths(params)
    if not paths or not is_one_of_many(obj.graph, step):
        return ""
    frames = frames_of(obj, step, input_path=paths[0], split=params.get("split_index"))
    return name_part(frames, rounds_of(obj, step, input_path=paths[0]))


def _read(ask: Callable[[], Any], otherwise: Any) -> Any:
    """What Metaflow knows of the task; it tells what earlier attempts have left, and never decides whether it runs."""
    try:
        return ask()
    except Exception as error:  # noqa: BLE001 - whatever a store, a metadata service or a class of the flow raises
        sys.stderr.write(f"What this task has to do with earlier ones could not be read ({error}).\n")
        return otherwise


def _collect_signals() -> Callable[[], bool]:
    """From now on signals raise nothing; whether none has come."""
    told: list[int] = []
    for number in TOLD:
        signal.signal(number, lambda number, _frame: told.append(number))
    return lambda: not told


def _on_signal(_number: int, _frame: FrameType | None) -> None:
    raise ToldToEndError
