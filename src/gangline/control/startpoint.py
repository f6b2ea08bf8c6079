"""Which checkpoint a person means: a step, a folder, `latest`, or one of another run.

Looks into checkpoint folders, where the runs have their machines; only a complete checkpoint can be chosen.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gangline.domain.errors import InvalidRequest, NotFound
from gangline.ports import Site
from gangline.rundir.checkpoints import FoundCheckpoint, parse_folder_name

__all__ = ["SavedBy", "choose_checkpoint", "newest_of"]

_OF_RUN = re.compile(r"(.+):(\d+|latest)")
_MOST_NAMED = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedBy:
    """Where a run saves, and what of it counts."""

    run_id: str
    root: str
    site: Site
    """The machines on which the folder lies."""
    branch_attempt: int = 0
    start_from: str | None = None


def choose_checkpoint(
    word: str, saved: SavedBy | None, *, find: Callable[[str], SavedBy], site: Site
) -> FoundCheckpoint:
    """The complete checkpoint that a word stands for.

    Args:
        word: a step, `latest`, a folder (absolute, or a name in the run's own checkpoint path), `RUN:STEP` or
            `RUN:latest`.
        saved: the run whose steps are meant; None: there is none yet.
        find: looks another run up.
        site: the machines on which a folder lies that is named alone.
    Raises:
        NotFound, InvalidRequest: there is no such checkpoint, or it is not complete; it names those that are.
        Transient, AuthFailed: the machines cannot be asked now.
    """
    if saved is None and "/" in word and not word.startswith("/"):
        raise InvalidRequest(f"The checkpoint `{word}` is not an absolute folder", fix="Give the whole path.")
    if "/" in word or (saved is not None and parse_folder_name(word) is not None):
        folder = posixpath.join("" if saved is None else saved.root, word)
        return _complete(folder, (site if saved is None else saved.site).checkpoint(folder), saved)
    of_run = _OF_RUN.fullmatch(word)
    if of_run is not None:
        return _of_run(of_run[2], find(of_run[1]))
    if not word.isascii() or not (word.isdigit() or word == "latest"):
        raise InvalidRequest(
            f"`{word}` is no checkpoint",
            why="It takes a step, `latest`, the folder of a checkpoint, RUN:STEP or RUN:latest.",
            fix=_choices(saved),
        )
    if saved is None:
        raise InvalidRequest(
            f"`{word}` does not say of which run", fix=f"Write RUN:{word}, or the folder of a checkpoint."
        )
    return _of_run(word, saved)


def newest_of(saved: SavedBy) -> FoundCheckpoint | None:
    """The checkpoint from which the run would be resumed; None: it would start afresh."""
    mine = [one for one in saved.site.checkpoints(saved.root) if one.complete and one.run_id == saved.run_id]
    branch = [one for one in mine if one.attempt >= saved.branch_attempt]
    if branch or saved.start_from is None:
        return max(branch or mine, key=lambda one: one.order, default=None)
    start = saved.site.checkpoint(saved.start_from)
    return start if start is not None and start.complete else None


def _of_run(step: str, saved: SavedBy) -> FoundCheckpoint:
    if step == "latest":
        newest = newest_of(saved)
        if newest is None:
            raise NotFound(f"Run `{saved.run_id}` has no complete checkpoint", why=f"It saves in {saved.root}.")
        return newest
    found = [one for one in saved.site.checkpoints(saved.root) if one.step == int(step)]
    complete = [one for one in found if one.complete]
    own = [one for one in complete if one.run_id == saved.run_id] or complete
    if own:
        return max(own, key=lambda one: (one.attempt, one.save))
    why = found[-1].why_not if found else ""
    fault = "is not complete" if found else "is not there"
    raise NotFound(
        f"The checkpoint of step {step} of run `{saved.run_id}` {fault}",
        why=f"{why[:1].upper()}{why[1:]}" if why else f"It saves in {saved.root}",
        fix=_choices(saved),
    )


def _complete(folder: str, found: FoundCheckpoint | None, saved: SavedBy | None) -> FoundCheckpoint:
    if found is None:
        raise NotFound(f"{folder} is no complete checkpoint", why="There is no such folder", fix=_choices(saved))
    if found.complete:
        return found
    raise NotFound(
        f"{found.path} is no complete checkpoint",
        why=f"{found.why_not[:1].upper()}{found.why_not[1:]}",
        fix=_choices(saved),
    )


def _choices(saved: SavedBy | None) -> str:
    if saved is None:
        return ""
    steps = sorted({one.step for one in saved.site.checkpoints(saved.root) if one.complete})
    return describe_steps(steps, saved.run_id)


def describe_steps(steps: Sequence[int], run_id: str) -> str:
    """The steps that can be chosen, in words."""
    if not steps:
        return f"Run `{run_id}` has no complete checkpoint."
    shown = ", ".join(map(str, steps[-_MOST_NAMED:]))
    more = len(steps) - _MOST_NAMED
    return f"Complete ones of run `{run_id}`: {shown}{f', and {more} older ones' if more > 0 else ''}."
