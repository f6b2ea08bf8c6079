"""A gang in the container of its step: this process starts its agent, passes its words on, and waits.

There is no server: the container is the only machine, and when it ends nothing of the gang is left. What has to outlive
it lies in the folder that @gang calls `volume`.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from gangline.alone import Ended, Gang, Plan, read_end

from .compat import GangError
from .elsewhere import find_volume, run_folder
from .lines import ContainerLog
from .outcome import CONTAINER, describe_end, run_metadata
from .request import lease_of, make_container_spec
from .task import GangTask

__all__ = ["SPOT_NOTICE", "find_container_failure", "run_in_container"]

SPOT_NOTICE = Path("/tmp/spot_termination_notice")  # noqa: S108 - where Metaflow's monitor leaves it
"""There once a cloud has said that it takes the machine back."""
_ID_CHARS = 6


def run_in_container(step: Any, task: GangTask, *, note: Callable[..., None], is_wanted: Callable[[], bool]) -> None:
    """Run one task as a gang of this container.

    Args:
        note: registers metadata of the task.
        is_wanted: asked several times a second; once it is False, the gang saves and ends.
    Raises:
        GangError: it did not succeed.
        GanglineError: it cannot be run.
    """
    plan = _plan(step, task)
    gang = Gang(plan)
    log = ContainerLog()
    gang.start()
    log.say(f"run {plan.run_id} in this container; its folder is {plan.folder}")
    note(fields=run_metadata(_view(plan.run_id, plan.folder, None)))
    _see_through(gang, log, is_wanted)
    ended = read_end(plan.folder, first_attempt=gang.first_attempt)
    view = _view(plan.run_id, plan.folder, ended)
    note(fields=run_metadata(view))
    if ended.phase != "succeeded":
        raise GangError(describe_end(view, task.step, served=False))


def find_container_failure(step: Any, task: GangTask) -> Exception | None:
    """Why the gang of an earlier attempt has failed, for @catch; None where that has gone with its container."""
    folder = _folder(step, task)
    if not folder.is_dir():
        return None
    view = _view(_run_id(task), folder, read_end(folder))
    return GangError(describe_end(view, task.step, served=False))


def _see_through(gang: Gang, log: ContainerLog, is_wanted: Callable[[], bool]) -> None:
    is_told = False
    try:
        for rank, text in gang.follow():
            if rank is not None:
                log.take(rank, text)
            elif text:
                log.say(text)
            if not is_told and (not is_wanted() or SPOT_NOTICE.exists()):
                is_told = True
                log.say("This container is told to end: the gang saves, and ends.")
                gang.preempt()
    finally:
        log.close()


def _plan(step: Any, task: GangTask) -> Plan:
    return Plan(
        run_id=_run_id(task),
        spec=make_container_spec(step, replace(task, pool=CONTAINER), argv=sys.argv),
        folder=_folder(step, task),
        code=Path.cwd(),
        lease_s=lease_of(step),
    )


def _run_id(task: GangTask) -> str:
    """The same for all attempts of a task."""
    digest = hashlib.sha256(task.pathspec.encode()).hexdigest()[:_ID_CHARS]
    return f"{task.step.strip('_').lower().replace('_', '-')}-{digest}"


def _folder(step: Any, task: GangTask) -> Path:
    return run_folder(Path(find_volume(step) or tempfile.gettempdir()), task)


def _view(run_id: str, folder: Path, ended: Ended | None) -> dict[str, Any]:
    """As a server would show the run."""
    attempts = [
        {"number": one["attempt"], "first_failure": one.get("first_failure"), "hint": one.get("hint")}
        for one in ([] if ended is None else ended.attempts)
    ]
    latest = None if ended is None else ended.checkpoint
    return {
        "id": run_id,
        "pool": CONTAINER,
        "run_dir": str(folder),
        "backend": {},
        "phase": "running" if ended is None else ended.phase,
        "reason": None if ended is None else ended.reason,
        "message": "" if ended is None else ended.message,
        "attempts": attempts,
        "checkpoints": [] if latest is None else [{"path": str(latest), "latest": True}],
    }
