"""What earlier attempts of a task have left: gangs that may still live, and the checkpoint to go on from.

Speaks to `gangline.client` alone.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gangline.client import Client, RunSummary

from .outcome import ENDED
from .parts import UNKNOWN, is_certain
from .request import LABEL
from .task import BEGAN, GangTask

__all__ = ["Earlier", "find_earlier"]

_ENDING_S = 600.0
_MOST = 50
_NOT_TOLD_APART = (
    "Gangs of this step were started in run {run}, and it cannot be told which of them was of this very task: "
    "nothing of theirs is taken or stopped, and it starts anew. `start_from` of @gang names a checkpoint to begin with."
)


_LIVES = frozenset({"queued", "starting", "running", "restarting", "preempted", "unknown"})
_TAKEN = (
    "Run {run} does the very same for this task, and is {phase}: it is taken up, with its log and its results. Nothing "
    "is started."
)
_ANOTHER_RESUME = (
    "Run {run} belongs to another resume of this flow, and goes on; should nobody be there for it, its lease ends it."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """What this attempt takes over."""

    taken: str | None = None
    """A run that does the very same, and lives, or has succeeded while nobody looked: nothing is started."""
    begun: int = 0
    """How often they have started a gang."""
    start_from: str | None = None
    words: Sequence[str] = ()
    """For people."""


def find_earlier(
    client: Client,
    task: GangTask,
    *,
    origins: Sequence[str],
    work: str,
    wants_checkpoint: bool,
    environ: Mapping[str, str] = os.environ,
) -> Earlier:
    """Look for runs of earlier attempts: one to take up, those to end, the newest checkpoint.

    Args:
        origins: the flow's run that is being resumed, and those which that one resumes.
        work: what the task's own run would do (`work.py`).
    """
    if task.retry == 0 and not origins:
        return Earlier()
    family, is_sure = _family(client, task)
    words = [] if is_sure else [_NOT_TOLD_APART.format(run=task.root)]
    began = float(environ.get(BEGAN) or "inf")
    taken = next((run for run in family if _does_the_same(run, work, began=began)), None)
    if taken is not None and task.retry == 0:
        return Earlier(taken=taken["id"], words=[*words, _TAKEN.format(run=taken["id"], phase=taken["phase"])])
    words += _end_living(client, task, family, origins)
    begun = sum(len(client.run(run["id"])["attempts"]) for run in family)
    start_from = None
    if wants_checkpoint:
        start_from, told = _choose_checkpoint(client, task, family)
        words += told
    return Earlier(begun=begun, start_from=start_from, words=words)


def _does_the_same(run: RunSummary, work: str, *, began: float) -> bool:
    """Whether a run can be taken in place of a new one.

    One that had succeeded before this flow began was not taken by Metaflow either: a person wants it run again.
    """
    if not work or run["labels"].get(f"{LABEL}.work") != work or run["revision"]:
        return False
    return run["phase"] in _LIVES or (run["phase"] == "succeeded" and (run["ended"] or 0.0) >= began)


def _end_living(client: Client, task: GangTask, family: Sequence[RunSummary], origins: Sequence[str]) -> list[str]:
    """End what lives of runs of the flow that this one goes back to; says so, and of others that they live."""
    words = []
    for run in family:
        if run["phase"] in ENDED:
            continue
        if run["labels"].get(f"{LABEL}.run") not in {task.run, *origins}:
            words.append(_ANOTHER_RESUME.format(run=run["id"]))
            continue
        words.append(f"Run {run['id']} of an earlier attempt is still there, and is stopped first.")
        client.stop(run["id"])
        client.wait(run["id"], timeout_s=_ENDING_S)
    return words


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


def _family(client: Client, task: GangTask) -> tuple[list[RunSummary], bool]:
    """Of this task in all runs of the flow that go back to the same one, newest first; without its own run.

    Returns:
        Also whether those of other parts of the step are known to be of other tasks.
    """
    told = {"flow": task.flow, "step": task.step, "root": task.root}
    mine = {"task": task.pathspec, "attempt": str(task.retry)}
    own = {run["id"] for run in _labelled(client, **mine)}
    same = _labelled(client, **told, **({"part": task.part} if task.part else {}))
    same = [run for run in same if run["id"] not in own and _part(run) == task.part != UNKNOWN]
    same += [run for run in _labelled(client, task=task.pathspec) if run["id"] not in own.union(_ids(same))]
    if same:
        return same, True
    parts = [_part(run) for run in _labelled(client, **told) if run["id"] not in own]
    return [], not parts or all(map(is_certain, [task.part, *parts]))


def _ids(runs: Sequence[RunSummary]) -> set[str]:
    return {run["id"] for run in runs}


def _labelled(client: Client, **labels: str) -> list[RunSummary]:
    return client.list_runs(labels=[f"{LABEL}.{name}={value}" for name, value in labels.items()], limit=_MOST)


def _part(run: RunSummary) -> str:
    return run["labels"].get(f"{LABEL}.part", "")
