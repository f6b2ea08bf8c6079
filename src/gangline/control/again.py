"""Runs made from runs: `resume` with another checkpoint or size, `rerun`, `debug`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gangline.control.admission import Admission, Origin, render_spec
from gangline.control.lookup import find_run
from gangline.control.revise import World, check_resumable, derive_debug, derive_rerun, revise
from gangline.control.specs import Specs
from gangline.control.startpoint import SavedBy, choose_checkpoint, newest_of
from gangline.domain.errors import BackendError, InvalidRequest, NotFound, SnapshotRefused
from gangline.domain.naming import LOCAL
from gangline.domain.phase import Phase
from gangline.domain.spec import RunSpec
from gangline.ports import Clock
from gangline.rundir.checkpoints import FoundCheckpoint
from gangline.rundir.files import Unreadable, read_json, write_text
from gangline.rundir.home import Home
from gangline.snapshot.manifest import Manifest
from gangline.snapshot.objects import ObjectStore
from gangline.store.rows import Move, NewEvent, RunRow
from gangline.store.store import Store
from gangline.wire.difference import diff_specs
from gangline.wire.spec import spec_to_mapping

__all__ = ["Again", "DebugRequest", "RerunRequest", "ResumeRequest"]

_MOST_RANKS = 8
"""On one node of a smaller world, unless the person asks for more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeRequest:
    """How a run goes on."""

    checkpoint: str | None = None
    """A word for `choose_checkpoint`; None: the newest, as ever."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    lease_s: float | None = None
    """How long the run then goes on when nobody renews; None: it needs nobody, whatever was before."""
    """Nested, under the keys of the spec; see `Key.resumable`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RerunRequest:
    """What is other than in the run that is repeated."""

    changes: Mapping[str, Any] = field(default_factory=dict)
    args: Sequence[str] | None = None
    """None: the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DebugRequest:
    """The smaller world, and how it is looked at."""

    nodes: int = 1
    procs_per_node: int | None = None
    """None: two, one if the run had one rank, or as many as it takes for the rank that is debugged."""
    checkpoint: str | None = None
    """A word for `choose_checkpoint`; None: the newest, if there is any."""
    fresh: bool = False
    """Start from the beginning."""
    pdb: bool = False
    rank: int | None = None
    """Rank that is debugged; None: the one that failed first."""


class Again:
    """Derives and admits. Safe for threads."""

    def __init__(self, *, store: Store, home: Home, specs: Specs, admission: Admission, clock: Clock) -> None:
        self._store = store
        self._home = home
        self._specs = specs
        self._admission = admission
        self._clock = clock
        self._objects = ObjectStore(home.path)

    def reopen(self, run: RunRow, request: ResumeRequest, *, by: str, changes: Mapping[str, Any]) -> Move:
        """The move that queues an ended run again, with what was asked to be other from now on.

        Args:
            changes: columns that every resume changes.
        Raises:
            InvalidRequest, NotFound: the request cannot be met; nothing was changed.
        """
        check_resumable(request.changes)
        spec = self._specs.get(run)
        start = None if request.checkpoint is None else self._choose(request.checkpoint, run)
        wanted = revise(spec, request.changes, start_from=None if start is None else str(start.path))
        revised = self._admission.check_again(wanted)
        self._admission.check_python(revised, run.id)
        changes, events = dict(changes), []
        if start is not None:
            changes["branch_attempt"] = self._next_attempt(run)
        if revised != spec:
            changes |= _columns(revised, run.revision + 1)
            events = [_revision(run, spec, revised, self._clock.now())]
            self._write_revision(run, revised)
        message = f"Resumed by {by}.{_from(start, revised)}"
        return Move(phase=Phase.QUEUED, message=message, reopen=True, changes=changes, events=events)

    def rerun(self, run_id: str, request: RerunRequest, *, client: Mapping[str, Any], key: str) -> RunRow:
        """Queue a new run with the spec and the code of another one.

        Raises:
            InvalidRequest: what was asked for cannot be run; nothing is left behind.
            SnapshotRefused, NotFound: the code is not stored any more.
        """
        run = self._store.run(run_id)
        spec = derive_rerun(self._specs.get(run), request.changes, args=request.args)
        if spec.checkpoint.start_from is not None:
            chosen = self._choose_on(spec.pool, spec.checkpoint.start_from, self.saved_by(run))
            spec = replace(spec, checkpoint=replace(spec.checkpoint, start_from=str(chosen.path)))
        return self._queue(run, spec, client=client, key=key, origin=Origin(rerun_of=run.id))

    def debug(self, run_id: str, request: DebugRequest, *, client: Mapping[str, Any], key: str) -> RunRow:
        """Queue a run that repeats another one in a smaller world.

        Raises: as `rerun`.
        """
        run = self._store.run(run_id)
        original = self._specs.get(run)
        saved = self.saved_by(run)
        wanted = request.rank if request.rank is not None else self._failing_rank(run)
        procs = request.procs_per_node or _choose_size(run, request, wanted)
        ranks = max(1, request.nodes * procs)
        if request.rank is not None and not request.pdb:
            raise InvalidRequest("A rank is named, and no debugger is asked for", fix="Add --pdb, or leave out --rank.")
        if request.rank is not None and not 0 <= request.rank < ranks:
            raise InvalidRequest(
                f"Rank {request.rank} is not in a world of {ranks}",
                fix=f"Name one of 0 to {ranks - 1}, or a larger world with --nodes and --procs-per-node.",
            )
        if request.pdb:
            _check_rank(wanted, ranks)
        start = None
        if not request.fresh:
            start = self._newest_here(run, saved) if request.checkpoint is None else self._here(request.checkpoint, run)
        world = World(
            nodes=request.nodes,
            procs_per_node=procs,
            start_from=None if start is None else str(start.path),
            pdb_rank=wanted if request.pdb else None,
        )
        spec = derive_debug(original, run.id, world)
        return self._queue(run, spec, client=client, key=key, origin=Origin(debug_of=run.id))

    def saved_by(self, run: RunRow) -> SavedBy:
        """Where a run saves, and what of it counts."""
        spec = self._specs.get(run)
        return SavedBy(
            run_id=run.id,
            root=spec.checkpoint.path or self._admission.sites.checkpoints_of(run.pool, run.id),
            site=self._admission.sites.of(run.pool),
            branch_attempt=run.branch_attempt,
            start_from=spec.checkpoint.start_from,
        )

    def resolve_start(self, spec: RunSpec) -> RunSpec:
        """A spec as it is submitted, with its `start_from` as the folder of a complete checkpoint.

        A folder of a pool that cannot be asked now is left to its agents.

        Raises:
            InvalidRequest, NotFound: it names none.
            Transient, AuthFailed: which folder is meant can be told by the pool alone.
        """
        if spec.checkpoint.start_from is None:
            return spec
        try:
            chosen = self._choose_on(spec.pool, spec.checkpoint.start_from, None)
        except BackendError:
            if not spec.checkpoint.start_from.startswith("/"):
                raise
            return spec
        return replace(spec, checkpoint=replace(spec.checkpoint, start_from=str(chosen.path)))

    def _choose(self, word: str, run: RunRow) -> FoundCheckpoint:
        return self._choose_on(run.pool, word, self.saved_by(run))

    def _choose_on(self, pool: str, word: str, saved: SavedBy | None) -> FoundCheckpoint:
        """The checkpoint that a word stands for, on the machines of a pool.

        Raises:
            NotFound: that of a run on other machines, where these cannot see it.
        """
        site = self._admission.sites.of(pool)
        chosen = choose_checkpoint(word, saved, find=self._find_saved, site=site)
        there = chosen if saved is not None and saved.site is site else site.checkpoint(str(chosen.path))
        if there is None or not there.complete:
            raise NotFound(
                f"Pool `{pool}` does not have the checkpoint {chosen.path}",
                why="It was saved on the machines of another pool",
                fix="Copy it there, and name its folder.",
            )
        return chosen

    def _find_saved(self, word: str) -> SavedBy:
        return self.saved_by(self._store.run(find_run(self._store, word)))

    def _here(self, word: str, run: RunRow) -> FoundCheckpoint:
        return self._choose_on(LOCAL, word, self.saved_by(run))

    def _newest_here(self, run: RunRow, saved: SavedBy) -> FoundCheckpoint | None:
        """The same on the server's own machine; None too where it does not see what was saved elsewhere."""
        here = self._admission.sites.of(LOCAL)
        if saved.site is here:
            return self._newest(run, saved)
        try:
            newest = self._newest(run, saved)
        except BackendError:
            return None
        return newest if newest is not None and here.checkpoint(str(newest.path)) is not None else None

    def _newest(self, run: RunRow, saved: SavedBy) -> FoundCheckpoint | None:
        """Where the run would go on; one that has saved nothing, where its newest attempt began."""
        newest = newest_of(saved)
        if newest is not None:
            return newest
        begun = [one.resume for one in self._store.attempts(run.id) if one.resume]
        start = saved.site.checkpoint(begun[-1]) if begun else None
        return start if start is not None and start.complete else None

    def _next_attempt(self, run: RunRow) -> int:
        on_disk = [attempt.number for attempt in self._home.run(run.id).attempts()]
        return max([-1 if run.attempt is None else run.attempt, *on_disk]) + 1

    def _write_revision(self, run: RunRow, spec: RunSpec) -> None:
        write_text(self._home.run(run.id).spec_revision(run.revision + 1), render_spec(spec), mode=0o600)

    def _failing_rank(self, run: RunRow) -> int:
        """The rank that failed first; 0 where none has."""
        failures = [one.first_failure for one in self._store.attempts(run.id) if one.first_failure]
        return int(failures[-1].get("rank") or 0) if failures else 0

    def _queue(self, run: RunRow, spec: RunSpec, *, client: Mapping[str, Any], key: str, origin: Origin) -> RunRow:
        known = self._store.run_by_key(key)
        if known is not None:
            return known
        admitted = self._admission.admit(spec, client=client, manifest=self._manifest(run, spec))
        return self._admission.queue(admitted, client=client, key=key, origin=origin)

    def _manifest(self, run: RunRow, spec: RunSpec) -> Manifest | None:
        """The manifest that the run was submitted with, its contents all there.

        Raises:
            SnapshotRefused: some of its files are not stored any more, or the manifest is damaged.
        """
        if spec.snapshot is None:
            return None
        again = "The working tree can be submitted as it is now: gangline submit."
        try:
            raw = read_json(self._home.run(run.id).code_manifest)
            manifest = self._objects.get_manifest(spec.snapshot.digest) if raw is None else Manifest.from_dict(raw)
        except (Unreadable, NotFound, InvalidRequest, OSError) as error:
            raise SnapshotRefused(
                f"The list of files of run `{run.id}` cannot be read", why=str(error), fix=again
            ) from error
        missing = set(self._objects.missing(manifest.digests()))
        if missing:
            lost = [entry.path for entry in manifest.files if entry.digest in missing]
            raise SnapshotRefused(
                f"The code of run `{run.id}` is not stored any more",
                why=f"{len(lost)} of its files are gone from the store, {lost[0]} first",
                fix=again,
            )
        return manifest


def _choose_size(run: RunRow, request: DebugRequest, wanted: int) -> int:
    """Ranks on each node, unless the person says how many: two, or as many as it takes for the rank to be debugged."""
    ranks = run.nodes * run.procs_per_node
    needed = wanted // max(1, request.nodes) + 1 if request.pdb and wanted < ranks else 1
    return max(min(2, ranks), needed if needed <= max(_MOST_RANKS, run.procs_per_node) else 1)


def _check_rank(wanted: int, ranks: int) -> None:
    """Refuse to debug the rank that failed first in a world that has no such rank.

    Raises:
        InvalidRequest: it has none.
    """
    if wanted >= ranks:
        raise InvalidRequest(
            f"Rank {wanted}, which failed first, is not in a world of {ranks}",
            fix=f"Ask for a larger world with --nodes and --procs-per-node, or name another rank: --rank {ranks - 1}.",
        )


def _columns(spec: RunSpec, revision: int) -> dict[str, Any]:
    """Columns of a run that repeat what its spec says."""
    return {
        "spec": spec_to_mapping(spec),
        "revision": revision,
        "priority": spec.priority,
        "nodes": spec.resources.nodes,
        "procs_per_node": spec.resources.procs_per_node or 1,
        "gpus_per_node": spec.resources.gpus_per_node or 0,
    }


def _revision(run: RunRow, old: RunSpec, new: RunSpec, at: float) -> NewEvent:
    rows = diff_specs([spec_to_mapping(old), spec_to_mapping(new)])
    told = "; ".join(f"{row['key']} {_shown(row['values'][0])} → {_shown(row['values'][1])}" for row in rows)
    data = {"revision": run.revision + 1, "changes": [dict(row) for row in rows]}
    return NewEvent(time=at, kind="revised", message=f"The spec was changed: {told}.", data=data)


def _shown(value: object) -> str:
    return "none" if value is None else str(value)


def _from(start: FoundCheckpoint | None, spec: RunSpec) -> str:
    if start is None:
        return ""
    ranks = spec.resources.nodes * (spec.resources.procs_per_node or 1)
    other = (
        f", which {start.world_size} ranks saved; there are {ranks} now" if start.world_size not in {0, ranks} else ""
    )
    return f" It goes on from the checkpoint of step {start.step}{other}."
