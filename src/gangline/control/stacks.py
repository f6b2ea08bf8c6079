"""Answers of leaders to requests for stacks, as they lie in the run directory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from gangline.domain.errors import Conflict, NotFound
from gangline.rundir.files import Unreadable, read_json
from gangline.rundir.layout import RunDir
from gangline.wire.views import StacksView

__all__ = ["find_answer", "newest_answer"]

_KEYS = tuple(StacksView.__annotations__)
_LOOKED_AT = 2
"""Attempts, from the newest: another may begin between the question and the answer."""


def find_answer(run_dir: RunDir, name: str) -> StacksView | None:
    """The answer to a request, or None while there is none.

    Raises:
        Conflict: the leader says that there is nothing to take stacks of.
    """
    for attempt in reversed(run_dir.attempts()[-_LOOKED_AT:]):
        found = _read(attempt.gang_stacks(name))
        if found is None:
            continue
        if "refused" in found:
            raise Conflict(f"No stacks can be taken: {found['refused']}", fix="Try again when its ranks run.")
        return _view(found)
    return None


def newest_answer(run_dir: RunDir, *, attempt: int | None) -> StacksView:
    """The newest stacks of a run, or of one attempt.

    Raises:
        NotFound: none were ever taken.
    """
    attempts = [one for one in run_dir.attempts() if attempt is None or one.number == attempt]
    for one in reversed(attempts):
        answers = [found for path in one.gang_stacks_taken() if (found := _read(path)) is not None]
        taken = [found for found in answers if "refused" not in found]
        if taken:
            return _view(max(taken, key=_moment))
    which = "" if attempt is None else f" in attempt {attempt}"
    raise NotFound(
        f"No stacks were taken of run `{run_dir.path.name}`{which}",
        fix="While it runs, `gangline stacks RUN` takes them; so does the watchdog when nothing moves.",
    )


def _moment(found: Mapping[str, Any]) -> float:
    """By the leader's clock. Ids do not tell: servers and leaders give them, to the second."""
    when = found.get("time")
    return float(when) if isinstance(when, int | float) else 0.0


def _read(path: Path) -> Mapping[str, Any] | None:
    try:
        return read_json(path)
    except Unreadable:  # a rank may write anything into its run directory; no answer is what it is
        return None


def _view(found: Mapping[str, Any]) -> StacksView:
    return cast("StacksView", {key: found.get(key) for key in _KEYS})
