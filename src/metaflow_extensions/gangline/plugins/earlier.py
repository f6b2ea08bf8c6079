"""What earlier attempts of a task have left: gangs that may still live, and the checkpoint to go on from.

Speaks to `gangline.client` alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gangline.client import Client, RunSummary

from .outcome import ENDED
from .parts import UNKNOWN, is_certain
from .request import LABEL
from .task import GangTask

__all__ = ["Earlier", "find_earlier"]

_ENDING_S = 600.0
_MOST = 50
_NOT_TOLD_APART = (
    "Gangs of this step were started in run {run}, and it cannot be told which of them was of this very task: "
    "nothing of theirs is taken or stopped, and it starts anew. `start_from` of @gang names a checkpoint to begin with."
)


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
    runs = _own(client, task)
    words = []
    if clone is not None:
        theirs, is_sure = _of_part(client, task, clone)
        runs += theirs
        words += [] if is_sure else [_NOT_TOLD_APART.format(run=clone)]
    for run in runs:
        if run["phase"] not in ENDED:
            words.append(f"Run {run['id']} of an earlier attempt is still there, and is stopped first.")
            client.stop(run["id"])
            client.wait(run["id"], timeout_s=_ENDING_S)
    begun = sum(len(client.run(run["id"])["attempts"]) for run in runs)
    start_from = None
    if wants_checkpoint:
        start_from, told = _choose_checkpoint(client, task, runs)
        words += told
    return Earlier(begun=begun, start_from=start_from, words=words)


def _choose_checkpoint(client: Client, task: GangTask, runs: Sequence[RunSummary]) -> tuple[str | None, list[str]]:
    """The newest checkpoint that the pool of this attempt can read, and what to say."""
    saved = [run for run in runs if any(one["latest"] for one in client.checkpoints(run["id"]))]
    near = next((run["id"] for run in saved if run["pool"] == task.pool), None)
    if near is not None:
        return f"{near}:latest", [f"It goes on from the newest checkpoint of run {near}, of an earlier attempt."]
    if not saved:
        return None, []
    far = ", ".join(sorted({run["pool"] for run in saved}))
    return None, [f"What was saved on pool {far} cannot be read on pool {task.pool}: it starts anew."]


def _own(client: Client, task: GangTask) -> list[RunSummary]:
    """Of this task, newest first."""
    mine = _labelled(client, task=task.pathspec)
    return [run for run in mine if run["labels"].get(f"{LABEL}.attempt") != str(task.retry)]


def _of_part(client: Client, task: GangTask, clone: str) -> tuple[list[RunSummary], bool]:
    """Of the same part of the step in the flow's run that is being resumed, newest first.

    Returns:
        Also whether those of other parts are known to be of other tasks.
    """
    told = {"flow": task.flow, "run": clone, "step": task.step}
    same = _labelled(client, **told, **({"part": task.part} if task.part else {}))
    same = [run for run in same if _part(run) == task.part != UNKNOWN]
    if same:
        return same, True
    parts = [_part(run) for run in _labelled(client, **told)]
    return [], not parts or all(map(is_certain, [task.part, *parts]))


def _labelled(client: Client, **labels: str) -> list[RunSummary]:
    return client.list_runs(labels=[f"{LABEL}.{name}={value}" for name, value in labels.items()], limit=_MOST)


def _part(run: RunSummary) -> str:
    return run["labels"].get(f"{LABEL}.part", "")
