"""Storage before and after an attempt: the checkpoint folder, the checkpoint to resume from, the declared outputs.

Standard library only.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gangline.agent.launchspec import LaunchSpec
from gangline.agent.memory import format_bytes
from gangline.domain.spec import ResumeMode

__all__ = [
    "LEAST_FREE_BYTES",
    "Resume",
    "find_missing_interpreter",
    "find_missing_outputs",
    "probe_checkpoint_folder",
    "resolve_resume",
]

LEAST_FREE_BYTES = 16 << 20
"""Less than this cannot hold a checkpoint worth its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """Where an attempt starts from."""

    path: str = ""
    """Absolute, or "" to start fresh."""
    step: int | None = None
    notes: tuple[str, ...] = ()
    """What people should know: checkpoints that were passed over."""
    fresh: str = ""
    """Why it starts without a checkpoint; "" where it has one."""
    refused: str = ""
    """Why the attempt must not start; "" when it may."""


def resolve_resume(launch: LaunchSpec, attempt: int) -> Resume:
    """Choose the checkpoint for all ranks of an attempt.

    `never` speaks of the first attempt of a run: a restart goes on from what the run itself has saved. `required` holds
    for every attempt: none starts afresh. A checkpoint that a person chose (`start_from`) holds until an attempt that
    began there has saved one of its own; what older attempts saved, also of later steps, counts no more.
    """
    from gangline.rundir.checkpoints import PASSED_OVER, newest_complete  # noqa: PLC0415 - costs memory, and is needed once an attempt

    policy = launch.checkpoint
    if policy.start_from:
        return _resume_on_branch(launch, policy.start_from)
    first = attempt == 0
    if first and policy.resume is ResumeMode.NEVER:
        return Resume(fresh="--resume never")
    root = policy.path or ""
    own_only = policy.resume is ResumeMode.NEVER
    found, skipped = newest_complete(root, run_id=launch.run_id if own_only else None)
    notes = tuple(f"Checkpoint {one.path}{PASSED_OVER}{one.why_not}." for one in skipped)
    if found is not None:
        return Resume(path=str(Path(found.path).absolute()), step=found.step, notes=notes)
    if policy.resume is ResumeMode.REQUIRED:
        return Resume(notes=notes, refused=f"a checkpoint is required and {root} holds no complete one")
    return Resume(notes=notes, fresh="no complete checkpoint" if skipped else "no checkpoint yet")


def _resume_on_branch(launch: LaunchSpec, chosen: str) -> Resume:
    from gangline.rundir.checkpoints import PASSED_OVER, judge_folder, newest_complete  # noqa: PLC0415 - as above

    root = launch.checkpoint.path or ""
    found, skipped = newest_complete(root, run_id=launch.run_id, since_attempt=launch.branch_attempt)
    notes = tuple(f"Checkpoint {one.path}{PASSED_OVER}{one.why_not}." for one in skipped)
    if found is not None:
        return Resume(path=str(Path(found.path).absolute()), step=found.step, notes=notes)
    start = judge_folder(Path(chosen))
    if not start.complete:
        return Resume(notes=notes, refused=f"the chosen checkpoint {chosen} cannot be used: {start.why_not}")
    return Resume(path=chosen, step=start.step, notes=notes)


def probe_checkpoint_folder(path: str) -> str:
    """Try to write where checkpoints will go; "" when all is well, else what is wrong, with the path."""
    probe = Path(path) / f".gangline-probe.{os.uname().nodename}.{os.getpid()}"
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
        with probe.open("wb") as file:
            file.write(b"\0" * 4096)
        probe.unlink()
        volume = os.statvfs(path)
    except OSError as error:
        return f"checkpoint folder {path} cannot be written: {error.strerror or error}"
    free_bytes = volume.f_bavail * volume.f_frsize
    if volume.f_blocks and free_bytes < LEAST_FREE_BYTES:
        left, least = format_bytes(free_bytes), format_bytes(LEAST_FREE_BYTES)
        return f"checkpoint folder {path} has {left} left; a save needs at least {least}"
    return ""


def find_missing_interpreter(python: str) -> str:
    """What is wrong with an interpreter that was there at submit, or with a name, looked up here; "": nothing."""
    if Path(python).is_file() and os.access(python, os.X_OK):
        return ""
    if "/" not in python:
        where = "on the search path of this node, after the set-up lines"
        return f"there is no `{python}` {where}; name another one with --python, or make it known there with --setup"
    what = "cannot be executed any more" if os.path.lexists(python) else "is not there any more"
    return f"the interpreter {python} {what}; make its environment again, then `gangline resume`"


def find_missing_outputs(outputs: Sequence[str], folder: Path) -> list[str]:
    """Declared outputs that are not there, or hold nothing, each with what is wrong."""
    faults = ((output, _fault_of(folder / output)) for output in outputs)
    return [f"{output} {fault}" for output, fault in faults if fault]


def _fault_of(path: Path) -> str:
    if path.is_dir():
        return "" if any(file.is_file() and file.stat().st_size for file in path.rglob("*")) else "is empty"
    if not path.exists():
        return "is missing"
    return "" if path.stat().st_size else "is empty"
