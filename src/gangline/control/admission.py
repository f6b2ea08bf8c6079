"""From a spec to a queued run.

Every check, then the run directory, then the row. A failure half-way leaves nothing behind.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gangline.control.records import untouched, write_record
from gangline.control.sites import Sites, check_on_site
from gangline.control.specs import demand_of
from gangline.control.unserved import FaultOf, make_unserved, warn_of_fault
from gangline.domain.check import check_entry, check_spec, complete_spec, doubt_gpus
from gangline.domain.errors import BackendError, SnapshotRefused, SpecInvalid
from gangline.domain.gang import Capability
from gangline.domain.naming import run_id_from
from gangline.domain.pool import PoolStatus
from gangline.domain.spec import RunSpec
from gangline.ports import Backend, Clock
from gangline.queue.fit import check_feasible
from gangline.rundir.files import write_text
from gangline.rundir.home import Home
from gangline.snapshot.manifest import Manifest
from gangline.snapshot.objects import ObjectStore
from gangline.store.rows import NewEvent, NewRun, RunRow
from gangline.store.store import Store
from gangline.wire.spec import spec_to_mapping

__all__ = ["Admission", "Admitted", "Origin", "render_spec"]

_ID_BYTES = 4
_ID_TRIES = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """A spec that can be run, complete."""

    spec: RunSpec
    manifest: Manifest | None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The run that a run was made from; at most one of the two."""

    rerun_of: str | None = None
    debug_of: str | None = None


class Admission:
    """Lets runs into the queue. Safe for threads."""

    def __init__(
        self,
        *,
        store: Store,
        backends: Mapping[str, Backend],
        home: Home,
        clock: Clock,
        fault_of: FaultOf = lambda _: None,
    ) -> None:
        self._store = store
        self._fault_of = fault_of
        self._backends = backends
        self._home = home
        self._clock = clock
        self._objects = ObjectStore(home.path)
        self.sites = Sites(backends, home)

    def admit(
        self, spec: RunSpec, *, client: Mapping[str, Any], dry: bool = False, manifest: Manifest | None = None
    ) -> Admitted:
        """Check everything that can be checked before a run waits.

        Args:
            dry: nothing was uploaded; the client has looked for the entry in the tree that it has packed.
            manifest: of another run's snapshot, all of whose files are here; None: what the spec names was uploaded.
        Raises:
            InvalidRequest: what is wrong, and what would be right.
            NotFound: the snapshot was not uploaded.
        """
        spec, doubt = self._complete(spec)
        stale = warn_of_fault(spec.pool, self._fault_of(spec.pool))
        warning = None
        if not dry or spec.snapshot is not None:
            manifest, warning = self._check_code(spec, manifest)
        spec, doubts = check_on_site(spec, self.sites.of(spec.pool), client)
        return Admitted(spec=spec, manifest=manifest, warnings=tuple(filter(None, (stale, warning, doubt, *doubts))))

    def check_again(self, spec: RunSpec) -> RunSpec:
        """The spec, complete; every check that looks at nothing but the spec and its pool.

        Raises:
            InvalidRequest: what is wrong, and what would be right.
        """
        return self._complete(spec)[0]

    def _complete(self, spec: RunSpec) -> tuple[RunSpec, str | None]:
        """As `check_again`, and what there is to warn of."""
        backend = self._backends.get(spec.pool)
        offered = [name for name, one in self._backends.items() if one.state().status is not PoolStatus.REMOVED]
        if backend is None or spec.pool not in offered:
            raise make_unserved(SpecInvalid, spec.pool, offered, self._fault_of(spec.pool))
        check_spec(spec)
        capacity = backend.capacity()
        doubt, spec = doubt_gpus(spec, capacity), complete_spec(spec, capacity)
        check_spec(spec)
        is_open = Capability.OWN_QUEUE in backend.capabilities
        check_feasible(capacity, demand_of(spec), pool=spec.pool, zero_is_unknown=is_open)
        return spec, doubt

    def check_python(self, spec: RunSpec, run_id: str) -> None:
        """Refuse to go on with a run whose interpreter is gone.

        Raises:
            SpecInvalid
        """
        try:
            self.sites.of(spec.pool).python(spec.environment.python, {})
        except BackendError:
            return  # the agents will see
        except SpecInvalid as error:
            fix = f"Bring it back, or make a new run with another one: gangline rerun {run_id} --python PATH."
            raise SpecInvalid(f"Run `{run_id}` cannot go on: {error.what}", fix=fix) from error

    def imagine(self, admitted: Admitted) -> RunRow:
        """The row that a run of this spec would have, for a dry run; its id ends in `xxxx`."""
        run_id = f"{run_id_from(admitted.spec.name or '', bytes(4))[:-4]}xxxx"
        return untouched(self._new_run(admitted, run_id=run_id, key=""))

    def queue(
        self,
        admitted: Admitted,
        *,
        client: Mapping[str, Any],
        key: str,
        origin: Origin | None = None,
        lease_s: float | None = None,
    ) -> RunRow:
        """Make the run directory and the row.

        Args:
            lease_s: how long the run goes on when nobody renews; None: it needs nobody.
            origin: the run that this one was made from.
        Raises:
            OSError: the run directory cannot be written.
        """
        run_id = self._make_folder(admitted.spec.name or "run")
        folder = self._home.run(run_id)
        try:
            write_text(folder.spec, render_spec(admitted.spec), mode=0o600)
            if admitted.manifest is not None:
                write_text(folder.code_manifest, _ascii(admitted.manifest.to_dict()))
            new = replace(self._new_run(admitted, run_id=run_id, key=key), client=dict(client), lease_s=lease_s)
            new = replace(new, user=str(client.get("user") or ""))
            if origin is not None:
                new = replace(new, rerun_of=origin.rerun_of, debug_of=origin.debug_of)
            write_record(folder, untouched(new), client=new.client)  # last: with it, the run can be adopted
            run = self._store.add_run(new)
        except BaseException:
            shutil.rmtree(folder.path, ignore_errors=True)
            raise
        if run.id != run_id:  # the same submit came in twice at once, and the other one was faster
            shutil.rmtree(folder.path, ignore_errors=True)
            return run
        now = self._clock.now()
        warned = [NewEvent(time=now, kind="warning", message=text) for text in admitted.warnings]
        self._store.add_events(run.id, warned)
        return run

    def _check_code(self, spec: RunSpec, manifest: Manifest | None) -> tuple[Manifest | None, str | None]:
        if spec.snapshot is None:
            return None, check_entry(spec, ())
        manifest = manifest or self._objects.get_manifest(spec.snapshot.digest)
        paths = {entry.path for entry in manifest.files if entry.kind != "dir"}
        warning = check_entry(spec, paths)
        _check_workdir(spec.snapshot.workdir, manifest)
        missing = self._objects.missing(manifest.digests())
        if missing:
            raise SnapshotRefused(
                f"{len(missing)} files of the snapshot were not uploaded", fix="Submit again: only they are sent."
            )
        return manifest, warning

    def _make_folder(self, name: str) -> str:
        """A new id; making its folder is what takes it."""
        for _ in range(_ID_TRIES):
            run_id = run_id_from(name, os.urandom(_ID_BYTES))
            try:
                self._home.run(run_id).path.mkdir(mode=0o700, parents=True)
            except FileExistsError:
                continue
            return run_id
        raise FileExistsError(f"no free id for a run named {name!r} in {self._home.runs}")

    def _new_run(self, admitted: Admitted, *, run_id: str, key: str) -> NewRun:
        spec = admitted.spec
        return NewRun(
            id=run_id,
            key=key,
            name=spec.name or "",
            project=spec.project,
            user="",
            pool=spec.pool,
            priority=spec.priority,
            nodes=spec.resources.nodes,
            procs_per_node=spec.resources.procs_per_node or 1,
            gpus_per_node=spec.resources.gpus_per_node or 0,
            labels=dict(spec.labels),
            spec=spec_to_mapping(spec),
            client={},
            snapshot=None if spec.snapshot is None else spec.snapshot.digest,
            created=self._clock.now(),
            message="Waits for a place.",
        )


def render_spec(spec: RunSpec) -> str:
    """The content of `spec.json`."""
    return _ascii(spec_to_mapping(spec))


def _ascii(obj: Mapping[str, Any]) -> str:
    """JSON in which bytes that are no UTF-8 survive."""
    return json.dumps(obj, indent=1) + "\n"


def _check_workdir(workdir: str, manifest: Manifest) -> None:
    if workdir == "." or any(entry.path.startswith(f"{workdir}/") for entry in manifest.files):
        return
    if not any(entry.path == workdir and entry.kind == "dir" for entry in manifest.files):
        raise SpecInvalid(f"The packed tree has no folder `{workdir}`", fix="Submit from a folder inside the tree.")
