"""What earlier attempts of a task have left: gangs that may still live, and the checkpoint to go on from.

Speaks to `gangline.client` alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gangline.client import Client, RunSummary

from .outcome import ENDED
from .request import LABEL
from .task import GangTask

__all__ = ["Earlier", "find_earlier"]

_ENDING_S = 600.0
_MOST = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """What this attempt takes over."""

    begun: int = 0
    """How often they have started a gang."""
    start_from: str | None = None
    words: Sequence[str] = ()
    """For people."""

    def begin(self, task: GangTask) -> GangTask:
        """The task, knowing how often its gang was started before."""
        return replace(task, begun=self.begun)


def find_earlier(client: Client, task: GangTask, *, clone: str | None, wants_checkpoint: bool) -> Earlier:
    """Look for runs of earlier attempts, end those that still live, and find the newest checkpoint.

    Args:
        clone: the flow's run that is being resumed.
    """
    if task.retry == 0 and clone is None:
        return Earlier()
    runs = _runs(client, task, clone)
    words = []
    for run in runs:
        if run["phase"] not in ENDED:
            words.append(f"Run {run['id']} of an earlier attempt is still there, and is stopped first.")
            client.stop(run["id"])
            client.wait(run["id"], timeout_s=_ENDING_S)
    begun = sum(len(client.run(run["id"])["attempts"]) for run in runs)
    start_from = None
    if wants_checkpoint:
        near = (run["id"] for run in runs if run["pool"] == task.pool)
        saved = next((run for run in near if any(one["latest"] for one in client.checkpoints(run))), None)
        start_from = None if saved is None else f"{saved}:latest"
    if start_from is not None:
        words.append(f"It goes on from the newest checkpoint of run {saved}, of an earlier attempt.")
    return Earlier(begun=begun, start_from=start_from, words=words)


def _runs(client: Client, task: GangTask, clone: str | None) -> list[RunSummary]:
    """Newest first."""
    mine = client.list_runs(labels=[f"{LABEL}.task={task.pathspec}"], limit=_MOST)
    found = [run for run in mine if run["labels"].get(f"{LABEL}.attempt") != str(task.retry)]
    if clone is not None:
        told = {"flow": task.flow, "run": clone, "step": task.step}
        if task.split is not None:
            told["split"] = str(task.split)
        theirs = client.list_runs(labels=[f"{LABEL}.{name}={value}" for name, value in told.items()], limit=_MOST)
        if len({run["labels"].get(f"{LABEL}.task") for run in theirs}) == 1:  # else several tasks, as in nested foreach
            found += theirs
    return found
