"""Remove ended runs: first the folder's name, then the rows, then the files.

Whoever is killed half-way leaves a run that can be removed again, or a folder that nothing names any more; such
folders are removed by the next removal of that run, or when the next server starts.
"""

from __future__ import annotations

import logging
import os
import shutil
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from sqlalchemy.exc import DBAPIError

from gangline.control.specs import Specs
from gangline.control.startpoint import SavedBy
from gangline.domain.errors import BackendError, Conflict, GanglineError, StillEnding
from gangline.domain.gang import Cleared
from gangline.domain.phase import TERMINAL, Phase
from gangline.ports import Backend, Clock
from gangline.rundir.checkpoints import find_checkpoints
from gangline.rundir.files import read_json
from gangline.rundir.home import Home
from gangline.rundir.layout import RunDir
from gangline.rundir.reserve import release_reserve
from gangline.snapshot.manifest import Manifest
from gangline.snapshot.objects import ObjectStore
from gangline.snapshot.sweep import sweep
from gangline.store.full import says_full
from gangline.store.rows import RunRow
from gangline.store.store import Store
from gangline.wire.removed import FreedView, RemovedView, RunSizeView

__all__ = ["Removal", "finish_removals"]

_log = logging.getLogger(__name__)
_GOING = ".removed-"
"""In front of a folder's name from when its run is being removed; folders that begin with a dot are never adopted."""
_SPARED_S = 3600.0
"""Contents that were asked for within this time may belong to a submit that is under way."""
_BLOCK_BYTES = 512


class Removal:
    """Measures and removes. Safe for threads; the caller sees to it that nobody resumes a run meanwhile."""

    def __init__(
        self, *, store: Store, home: Home, backends: Mapping[str, Backend], specs: Specs, clock: Clock
    ) -> None:
        self._store = store
        self._home = home
        self._backends = backends
        self._specs = specs
        self._clock = clock
        self._objects = ObjectStore(home.path)

    def measure(self, run: RunRow, saved: SavedBy) -> RunSizeView:
        """What removing a run would remove."""
        folder = self._home.run(run.id)
        inside = Path(saved.root) == folder.checkpoints
        return RunSizeView(
            id=run.id,
            size_bytes=_size_of(folder.path),
            checkpoints_bytes=_size_of(folder.checkpoints),
            num_checkpoints=len(find_checkpoints(folder.checkpoints)),
            checkpoint_path=None if inside else saved.root,
        )

    def remove(self, run: RunRow, *, keep_checkpoints: bool) -> RemovedView:
        """Remove a run that is over, and its folder.

        Raises:
            Conflict: it is not over, another run starts from one of its checkpoints, or it was changed just now.
            StillEnding: it still holds machines.
        """
        self._check(run)
        folder, going = self._home.run(run.id), self._home.runs / f"{_GOING}{run.id}"
        kept = _keep(folder.checkpoints, self._home.kept / run.id) if keep_checkpoints else None
        freed_bytes = _size_of(folder.path) + _size_of(going)
        is_moved = _move_away(folder.path, going)
        if not self._forget(run, going):
            if is_moved and going.exists():
                going.rename(folder.path)
            raise Conflict(f"Run `{run.id}` was changed by somebody else just now", fix="Look at it, and try again.")
        elsewhere = self._elsewhere(run, keep_checkpoints=keep_checkpoints)
        left = [*_delete(going), *([elsewhere.left] if elsewhere.left else [])]
        _log.info("run %s was removed", run.id)
        return RemovedView(
            id=run.id,
            freed_bytes=max(0, freed_bytes - _size_of(going)) + elsewhere.freed_bytes,
            kept=elsewhere.kept if kept is None else str(kept),
            left=left,
        )

    def free(self) -> FreedView:
        """Remove contents of code that no run uses any more.

        Raises:
            Conflict: what is used cannot be told, as a run's list of files cannot be read; nothing was removed.
        """
        snapshots = self._store.snapshots()
        try:
            swept = sweep(
                self._objects,
                snapshots=set(snapshots.values()),
                objects=self._used_by_folders(snapshots),
                before=self._clock.now() - _SPARED_S,
            )
        except (GanglineError, ValueError, OSError) as error:
            raise Conflict(
                "Nothing of the stored code was freed", why=f"What is used cannot be told: {error}"
            ) from error
        return FreedView(
            num_objects=swept.num_objects, num_snapshots=swept.num_snapshots, freed_bytes=swept.freed_bytes
        )

    def _forget(self, run: RunRow, going: Path) -> bool:
        """Remove the rows of a run; on a full disk its files go first, as they are the room that the rows need."""
        try:
            return self._store.remove_run(run)
        except DBAPIError as error:
            if not says_full(error):
                raise
            release_reserve(self._home.path)
            _delete(going)
            return self._store.remove_run(run)

    def _check(self, run: RunRow) -> None:
        holds = run.handle is not None or run.placement is not None  # without a handle: it was not noted yet
        if run.phase is Phase.STOPPING or (run.phase in TERMINAL and holds):
            raise StillEnding(f"Run `{run.id}` is still ending", fix="Try again once `gangline wait` has returned.")
        if run.phase not in TERMINAL:
            fix = f"Stop it first: gangline stop {run.id} --wait."
            raise Conflict(f"Run `{run.id}` is {run.phase}", why="Only what is over can be removed", fix=fix)
        inside = self._home.run(run.id).path
        for other in {one.id: one for one in (*self._store.held_runs(), *self._store.waiting_runs())}.values():
            start = self._specs.get(other).checkpoint.start_from
            if other.id != run.id and start is not None and Path(start).is_relative_to(inside):
                fix = f"Wait for that run, or stop it: gangline stop {other.id}."
                raise Conflict(f"Run `{other.id}` starts from a checkpoint of `{run.id}`", fix=fix)

    def _used_by_folders(self, snapshots: Mapping[str, str]) -> set[str]:
        """Contents that the folders of runs name, also those that the store does not know.

        Folders of runs whose manifest is stored name nothing else than that does, and are not read.
        """
        stored = {path.stem for path in self._objects.snapshot_files()}
        used = set[str]()
        for path in self._home.runs.iterdir():
            if path.name.startswith(".") or snapshots.get(path.name) in stored:
                continue
            raw = read_json(RunDir(path).code_manifest)
            if raw is not None:
                used.update(Manifest.from_dict(raw).digests())
        return used

    def _elsewhere(self, run: RunRow, *, keep_checkpoints: bool) -> Cleared:
        """What becomes of the folder of the run on the machines of its pool, if that is another one."""
        backend = self._backends.get(run.pool)
        if backend is None:
            return Cleared(left=f"What it may have left in pool `{run.pool}`, which there is no more, stays.")
        try:
            cleared = backend.clear(run.id, keep_checkpoints=keep_checkpoints)
        except BackendError as error:
            why = str(error).rstrip(".")
            return Cleared(left=f"Its folder in pool `{run.pool}` is removed as soon as the pool answers ({why}).")
        except (GanglineError, OSError) as error:
            return Cleared(left=f"Its folder in pool `{run.pool}` stays: {error}")
        far = f"Not all of its folder in pool `{run.pool}` could be removed: {cleared.left}."
        return replace(cleared, left=far) if cleared.left else cleared


def finish_removals(home: Home) -> None:
    """Remove the folders of removals that were cut off."""
    for path in sorted(home.runs.glob(f"{_GOING}*")):
        for text in _delete(path):
            _log.warning("%s", text)


def _keep(checkpoints: Path, kept: Path) -> Path | None:
    """Move checkpoints where they stay; None where there are none, nor were when this was tried before."""
    if not checkpoints.is_dir() or not any(checkpoints.iterdir()):
        return kept if kept.exists() else None
    number, place = 0, kept
    while os.path.lexists(place):
        number += 1
        place = kept.with_name(f"{kept.name}.{number}")
    kept.parent.mkdir(mode=0o700, exist_ok=True)
    return checkpoints.rename(place)


def _move_away(folder: Path, going: Path) -> bool:
    """Take a folder's name from it, which decides that it is removed; a link is moved, not what it leads to."""
    if not os.path.lexists(folder):
        return False
    _delete(going)  # of an earlier removal of this run, whose folder came back
    folder.rename(going)
    return True


def _delete(path: Path) -> list[str]:
    """Remove a file, link or folder, never what a link leads to; a sentence if something of it stays."""
    if not path.is_dir() or path.is_symlink():
        path.unlink(missing_ok=True)
        return []
    shutil.rmtree(path, ignore_errors=True)
    if not path.exists():
        return []
    _open_up(path)
    try:
        shutil.rmtree(path)
    except OSError as error:
        return [f"Not all of {path} could be removed: {error}. The next start of the server tries again."]
    return []


def _open_up(path: Path) -> None:
    """Let its owner remove what is in folders that training code has made read-only."""
    for folder, _, _ in os.walk(path):
        with suppress(OSError):
            Path(folder).chmod(stat.S_IRWXU)


def _size_of(path: Path) -> int:
    """Bytes that a folder takes on the disk, links not followed."""
    if path.is_symlink():
        return 0
    found = [Path(folder, name) for folder, _, names in os.walk(path) for name in names]
    return sum(_taken(file) for file in found)


def _taken(path: Path) -> int:
    with suppress(OSError):
        return path.lstat().st_blocks * _BLOCK_BYTES
    return 0
