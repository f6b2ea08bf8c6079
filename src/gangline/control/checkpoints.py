"""The checkpoints of a run: what its ranks have recorded, and what lies in the checkpoint folder, as one list.

Either alone is not enough: a rank may be killed between the commit and its record, and what was recorded may be damaged
since. What a resume would take is found by the very function that a resume uses.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gangline.domain.errors import BackendError, SpecInvalid
from gangline.ports import Site
from gangline.rundir.checkpoints import FoundCheckpoint, parse_folder_name, pick_newest
from gangline.store.rows import CheckpointRow
from gangline.wire.views import CheckpointView

__all__ = ["CheckpointFolder", "list_checkpoints"]

_State = Literal["complete", "damaged", "incomplete", "removed", "unseen"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFolder:
    """Where a run saves, and what of it a resume may take."""

    root: str
    run_id: str
    own_only: bool = False
    """Resume takes what this run has saved itself, and nothing else (`resume: never`)."""
    branch_attempt: int = 0
    """First attempt that began at `start_from`."""
    start_from: str | None = None
    """The checkpoint that a person has chosen: only what was saved from there on is newer."""


def list_checkpoints(rows: Sequence[CheckpointRow], folder: CheckpointFolder, site: Site) -> list[CheckpointView]:
    """All checkpoints of a run by step, each with its state; the one that a resume would take is marked.

    What other runs have saved into the same folder is left out, unless a resume would take it.

    Args:
        site: the machines on which the folder lies. Where they cannot be asked, the list is what the run has recorded.
    """
    try:
        found = site.checkpoints(folder.root)
        chosen = _choose(folder, found, site)
        by_path = {_key(one.path): one for one in found}
        others = {row.path: _elsewhere(row.path, site) for row in rows if _key(Path(row.path)) not in by_path}
    except SpecInvalid as error:
        return _as_recorded(rows, "damaged", f"the checkpoint folder cannot be read ({error.why.rstrip('.')})")
    except BackendError as error:
        return _as_recorded(rows, "unseen", f"the pool cannot be asked now ({error.what})")
    views, target = [], None if chosen is None else _key(chosen.path)
    for row in rows:
        one = by_path.pop(_key(Path(row.path)), None) or others[row.path]
        views.append(_seen(row, one, latest=_key(Path(row.path)) == target))
    for key, one in by_path.items():
        if key == target or one.run_id in {"", folder.run_id}:
            views.append(_unrecorded(one, folder.run_id, latest=key == target))
    return sorted(views, key=lambda view: (view["step"], view["attempt"], view["time"]))


def _choose(folder: CheckpointFolder, found: Sequence[FoundCheckpoint], site: Site) -> FoundCheckpoint | None:
    """What a resume would take; `agent/storage.py: resolve_resume` does the same."""
    newest_first = reversed(found)
    if folder.start_from is None:
        return pick_newest(newest_first, run_id=folder.run_id if folder.own_only else None)[0]
    newest, _ = pick_newest(newest_first, run_id=folder.run_id, since_attempt=folder.branch_attempt)
    return newest or site.checkpoint(folder.start_from)


def _as_recorded(rows: Sequence[CheckpointRow], state: _State, why: str) -> list[CheckpointView]:
    return [_recorded(row, state, why) if row.kept else _recorded(row, "removed", "") for row in rows]


def _key(path: Path) -> str:
    """The same for one folder, by whatever links it is reached."""
    return os.path.join(os.path.realpath(path.parent), path.name)  # noqa: PTH118 - realpath gives text


def _elsewhere(path: str, site: Site) -> FoundCheckpoint | None:
    """A checkpoint that training code saved in a folder of its own choice; None where it is not there any more."""
    return None if parse_folder_name(posixpath.basename(path)) is None else site.checkpoint(path)


def _seen(row: CheckpointRow, one: FoundCheckpoint | None, *, latest: bool) -> CheckpointView:
    if one is None:
        return _recorded(row, "removed", "its folder is gone" if row.kept else "")
    return _recorded(row, _state_of(one), one.why_not, latest=latest)


def _state_of(one: FoundCheckpoint) -> _State:
    if one.complete:
        return "complete"
    return "damaged" if one.committed else "incomplete"


def _recorded(row: CheckpointRow, state: _State, why: str, *, latest: bool = False) -> CheckpointView:
    return CheckpointView(
        step=row.step,
        attempt=row.attempt,
        path=row.path,
        size_bytes=row.size_bytes,
        num_files=row.num_files,
        time=row.time,
        duration_s=row.duration_s,
        state=state,
        why=why,
        latest=latest,
    )


def _unrecorded(one: FoundCheckpoint, run_id: str, *, latest: bool) -> CheckpointView:
    foreign = one.run_id not in {"", run_id}
    return CheckpointView(
        step=one.step,
        attempt=one.attempt,
        path=str(one.path),
        size_bytes=one.size_bytes,
        num_files=one.num_files,
        time=one.time,
        duration_s=None,
        state=_state_of(one),
        why=f"saved by run {one.run_id}" if foreign and one.complete else one.why_not,
        latest=latest,
    )
