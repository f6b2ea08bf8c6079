"""Whether the whole gang is known to be good: for what may be kept only then, such as the results of a pipeline's step.

Standard library only.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from gangline.domain.errors import Conflict, GanglineError
from gangline.rundir.files import read_json
from gangline.rundir.journal import JournalReader
from gangline.rundir.layout import AttemptDir, RunDir
from gangline.training import session
from gangline.training.context import Context

__all__ = ["NotComplete", "wait_for_gang"]

_FIRST_LOOK_S, _LONGEST_LOOK_S = 0.01, 0.2


class NotComplete(Conflict):
    """The gang was told to end before it was done."""

    code = "not_complete"


def wait_for_gang(context: Context | None = None, *, pause: Callable[[float], None] = time.sleep) -> None:
    """Wait until every other rank of this attempt has ended with 0. Should one fail, the agent ends this one, too.

    Raises:
        NotComplete: the gang was told to stop meanwhile, so that ranks may have ended in the middle.
    """
    context = context or session.current()
    if context.run_dir is None or not context.is_gangline:
        return
    folder = RunDir(context.run_dir).attempt(context.attempt)
    _refuse_cut(folder)
    wanted = set(range(context.world_size)) - {context.rank}
    journals: dict[int, JournalReader] = {}
    delay_s = _FIRST_LOOK_S
    while wanted:
        for node in folder.nodes():
            journal = journals.setdefault(node, JournalReader(folder.events(node)))
            ended = [event for event in journal.read_all() if event.get("kind") == "rank_exited"]
            wanted -= {event.get("rank") for event in ended if event.get("exit_code") == 0}
        if wanted:
            _refuse_cut(folder)
            pause(delay_s)
            delay_s = min(_LONGEST_LOOK_S, delay_s * 1.5)
    _refuse_cut(folder)


def _refuse_cut(folder: AttemptDir) -> None:
    """Refuse when ranks were told to end: one that asks `should_stop()` then ends with 0 in the middle of its work."""
    try:
        notice = read_json(folder.notice)
    except (OSError, GanglineError):
        notice = {}
    if notice is None or (notice.get("kind") == "time_limit" and not folder.stop_at.exists()):
        return
    why = str(notice.get("kind") or "stop").replace("_", " ")
    raise NotComplete(
        f"The gang was told to end ({why}) before it was done",
        why="What its ranks had by then is in their checkpoints, and is no result",
    )
