"""Hand a launch to its backend: code restored, `launch.json` written, agents started, handle noted.

Every step may be repeated after a kill -9 at any point: what is there already is kept, and the backend's key makes
one launch of two submits.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from gangline.control.health import NodeBook
from gangline.control.launchfile import LaunchTerms, render_launch_text
from gangline.control.requests import control_size
from gangline.control.specs import gang_of
from gangline.domain.errors import Conflict, NotFound, SpecInvalid
from gangline.domain.gang import Capability, GangSpec, Handle, Launch
from gangline.domain.phase import Budget
from gangline.domain.spec import RunSpec
from gangline.ports import Backend
from gangline.queue.health import Exclusion
from gangline.rundir.files import read_json, write_json, write_text
from gangline.rundir.home import Home
from gangline.rundir.layout import RunDir
from gangline.snapshot.manifest import Manifest
from gangline.snapshot.objects import ObjectStore
from gangline.snapshot.restore import restore
from gangline.store.rows import RunRow
from gangline.store.store import Store

__all__ = ["Launched", "Launcher", "dry_launch", "launch_key", "next_attempt_number"]

_TOKEN_BYTES = 32


def launch_key(run: RunRow) -> str:
    """What makes a repeated submit the same launch."""
    return f"{run.id}/{run.launch}"


def next_attempt_number(run_dir: RunDir) -> int:
    """Attempts are counted when they start: the number after the last one on disk."""
    begun = run_dir.attempts()
    return begun[-1].number + 1 if begun else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """A launch that its backend has taken."""

    handle: Handle
    exclusion: Exclusion


class Launcher:
    """Starts launches. Safe for threads, one launch in each."""

    def __init__(self, *, store: Store, home: Home, book: NodeBook) -> None:
        self._store = store
        self._home = home
        self._book = book
        self._objects = ObjectStore(home.path)

    def launch(self, run: RunRow, spec: RunSpec, backend: Backend, *, used: Mapping[Budget, int]) -> Launched:
        """Start the launch that `run` names, or find that it was started.

        Raises:
            BackendError: as the backend says.
            NotFound, SnapshotRefused: the code cannot be restored, or the run directory was removed.
            OSError: the run directory cannot be written.
        """
        run_dir = self._home.run(run.id)
        if not run_dir.spec.exists():
            raise NotFound(f"The run directory {run_dir.path} was removed", fix="Submit the run again.")
        if Capability.SHARED_FILES in backend.capabilities:
            self._restore_code(run_dir, spec)  # elsewhere the leader does that
        first_attempt = self._write_launch_file(run, spec, backend, used)
        gang = gang_of(spec, run, run_dir=run_dir.path, first_attempt=first_attempt)
        exclusion = self._book.exclusion(run.pool, nodes=gang.nodes)
        launch = backend.render(replace(gang, exclude_hosts=exclusion.hosts))
        _write_files(run_dir, launch)
        return Launched(handle=backend.submit(launch, key=launch_key(run)), exclusion=exclusion)

    def next_gang(self, run: RunRow, spec: RunSpec) -> GangSpec:
        """The launch after the one that `run` names, of which no attempt is known yet."""
        following = replace(run, launch=run.launch + 1)
        gang = gang_of(spec, following, run_dir=self._home.run(run.id).path, first_attempt=0)
        return replace(gang, exclude_hosts=self._book.exclusion(run.pool, nodes=gang.nodes).hosts)

    def note(self, run: RunRow, launched: Launched) -> None:
        """Note what the backend knows the launch by, in the store and beside the launch."""
        handle = launched.handle.to_dict()
        self._store.record_handle(run.id, run.launch, handle)
        with suppress(OSError):  # it is read where the store is lost; then run.json has it, too
            write_json(self._home.run(run.id).launch(run.launch).handle, handle)
        self._book.tell(run, launched.exclusion)

    def was_prepared(self, run: RunRow, backend: Backend | None) -> bool:
        """Whether agents of the launch that `run` names may exist; None: nobody knows its pool any more."""
        if not self._home.run(run.id).launch(run.launch).spec.exists():
            return False
        return backend is None or backend.may_have_started(run.id, run.launch)

    def discard(self, run: RunRow) -> None:
        """Forget what was prepared for a launch of which the backend has started nothing."""
        self._home.run(run.id).launch(run.launch).spec.unlink(missing_ok=True)

    def _restore_code(self, run_dir: RunDir, spec: RunSpec) -> None:
        if run_dir.code.exists():
            return
        raw = read_json(run_dir.code_manifest) if spec.snapshot is not None else None
        if raw is None:
            run_dir.code.mkdir(parents=True)
            return
        try:
            restore(Manifest.from_dict(raw), self._objects, run_dir.code)
        except Conflict:
            if not run_dir.code.is_dir():
                raise
        run_dir.code_restored.touch()

    def _write_launch_file(self, run: RunRow, spec: RunSpec, backend: Backend, used: Mapping[Budget, int]) -> int:
        """Write `launch.json`, unless agents may have read it already; returns the launch's first attempt."""
        run_dir = self._home.run(run.id)
        path = run_dir.launch(run.launch).spec
        told = read_json(path)
        if told is not None:
            return int(told["first_attempt"])
        first_attempt = next_attempt_number(run_dir)
        places = backend.places(run.id)
        terms = LaunchTerms(
            run_id=run.id,
            launch=run.launch,
            first_attempt=first_attempt,
            nodes=len(run.placement or ()) or spec.resources.nodes,
            devices=(run.placement or ()) if Capability.DEVICES in backend.capabilities else (),
            device_kind=backend.capacity().device_kind,
            token=secrets.token_hex(_TOKEN_BYTES),
            restarts_used=used,
            control_offset=control_size(run_dir),
            branch_attempt=run.branch_attempt,
            lease_s=run.lease_s,
            default_checkpoints=str(RunDir(Path(places.run_dir)).checkpoints),
            answers=places.answers,
            objects=places.objects,
        )
        write_text(path, render_launch_text(spec, terms), mode=0o600)
        return first_attempt


def _write_files(run_dir: RunDir, launch: Launch) -> None:
    root = run_dir.path
    for name, text in launch.files.items():
        path = Path(root, name)
        if (path.is_absolute() and not path.is_relative_to(root)) or ".." in path.parts:
            raise SpecInvalid(f"Backend `{launch.backend}` wants to write `{name}`, outside the run directory")
        write_text(path, text)


def dry_launch(
    backend: Backend, spec: RunSpec, run: RunRow, run_dir: RunDir, *, exclude_hosts: tuple[str, ...] = ()
) -> Launch:
    """What the first launch of a run would hand to its backend, the token left out; nothing is written."""
    terms = LaunchTerms(
        run_id=run.id,
        nodes=len(run.placement or ()) or spec.resources.nodes,
        devices=(run.placement or ()) if Capability.DEVICES in backend.capabilities else (),
        device_kind=backend.capacity().device_kind,
        default_checkpoints=str(RunDir(Path(backend.places(run.id).run_dir)).checkpoints),
    )
    gang = gang_of(spec, run, run_dir=run_dir.path, first_attempt=0)
    launch = backend.render(replace(gang, exclude_hosts=exclude_hosts))
    name = str(run_dir.launch(0).spec.relative_to(run_dir.path))
    return replace(launch, files={**launch.files, name: render_launch_text(spec, terms)})
