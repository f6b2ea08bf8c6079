"""What people ask of the server, one method for each verb.

Called from any thread; slow work is left to the reconciler.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from threading import Lock
from typing import Any

from sqlalchemy.exc import DBAPIError

from gangline.control.admission import Admission, Admitted
from gangline.control.again import Again, DebugRequest, RerunRequest, ResumeRequest
from gangline.control.checkpoints import CheckpointFolder, list_checkpoints
from gangline.control.compare import Comparer
from gangline.control.facts import STOPPED_EXIT_CODE
from gangline.control.health import NodeBook, node_views
from gangline.control.launching import dry_launch
from gangline.control.lookup import find_run
from gangline.control.queueing import live_gangs
from gangline.control.removal import Removal
from gangline.control.reporting import Reporter, ReportFile
from gangline.control.requests import ask_stop, renew_lease
from gangline.control.specs import Specs
from gangline.control.system import system_views
from gangline.control.unserved import FaultOf
from gangline.control.views import (
    attempt_view,
    bucket_view,
    code_view,
    duration_s,
    event_view,
    part_views,
    read_launch_log,
    summary_view,
    tokens_per_s,
)
from gangline.domain.errors import AuthFailed, Conflict, NotFound, StillEnding, StorageFull, Transient, nearest
from gangline.domain.gang import Capability, Handle, Launch
from gangline.domain.phase import TERMINAL, Phase, Reason
from gangline.domain.pool import PoolStatus
from gangline.domain.spec import ResumeMode, RunSpec
from gangline.ports import Backend, Clock
from gangline.queue.fit import free_devices
from gangline.queue.health import HealthPolicy, NodeState
from gangline.rundir.files import Unreadable, read_json
from gangline.rundir.home import Home
from gangline.store.chart import decide_buckets
from gangline.store.full import says_full
from gangline.store.rows import Move, RunRow
from gangline.store.store import Store
from gangline.wire.compared import CompareView, RanksView
from gangline.wire.removed import FreedView, RemovedView, RunSizeView
from gangline.wire.views import (
    CheckpointView,
    ClearedView,
    EventView,
    MetricView,
    NodeHealthView,
    PoolPartView,
    PoolView,
    RunDetail,
    RunSummary,
    SystemView,
)

__all__ = ["Commands"]

_MOST_TRIES = 20
"""How often a command that lost a race with the reconciler looks again."""


_AS_IT_WAS = ResumeRequest()


class Commands:
    """The verbs of the HTTP API.

    Args:
        backends: by the name of their pool.
        poke: wakes the reconciler at once.
    """

    def __init__(
        self,
        *,
        store: Store,
        backends: Mapping[str, Backend],
        home: Home,
        clock: Clock,
        poke: Callable[[], None],
        health: HealthPolicy | None = None,
        fault_of: FaultOf = lambda _: None,
    ) -> None:
        self._store = store
        self._backends = backends
        self._home = home
        self._clock = clock
        self._poke = poke
        self._specs = Specs(store)
        self._book = NodeBook(store=store, backends=backends, clock=clock, policy=health, fault_of=fault_of)
        self._admission = Admission(store=store, backends=backends, home=home, clock=clock, fault_of=fault_of)
        self._reporter = Reporter(
            home=home,
            clock=clock,
            detail=self.detail,
            metric=lambda run_id, name, buckets: self.metric(run_id, name, rank=0, buckets=buckets),
        )
        self._comparer = Comparer(store=store, home=home, detail=self.detail)
        self._again = Again(store=store, home=home, specs=self._specs, admission=self._admission, clock=clock)
        self._removal = Removal(store=store, home=home, backends=backends, specs=self._specs, clock=clock)
        self._reopening = Lock()
        """A run is not removed while it is opened again: its folder would be gone for a moment."""

    # submit

    def check(self, spec: RunSpec) -> Launch:
        """Everything that `submit` checks, and what the backend would get; nothing is stored.

        Raises:
            InvalidRequest, NotFound: as `submit`.
        """
        return self._try_on(self._admission.admit(self._again.resolve_start(spec), client={}, dry=True))

    def submit(self, spec: RunSpec, *, client: Mapping[str, Any], key: str, lease_s: float | None = None) -> RunDetail:
        """Check a spec and queue it as a run; with a key that was used before, answer with that run.

        Args:
            lease_s: how long the run goes on when nobody renews; None: it needs nobody.

        Raises:
            InvalidRequest: the spec cannot be run; nothing is left behind.
            NotFound: the snapshot was not uploaded.
            Rejected: the scheduler of the pool would not take it.
        """
        run = self._store.run_by_key(key)
        if run is None:
            admitted = self._admission.admit(self._again.resolve_start(spec), client=client)
            self._ask_scheduler(admitted)
            run = self._admission.queue(admitted, client=client, key=key, lease_s=lease_s)
            self._poke()
        return self.detail(run.id)

    def _ask_scheduler(self, admitted: Admitted) -> None:
        """Refuse what the pool's own scheduler would never take, where it can be asked now; a run may wait for it.

        Raises:
            Rejected
        """
        backend = self._backends[admitted.spec.pool]
        if Capability.OWN_QUEUE in backend.capabilities and backend.state().status is PoolStatus.READY:
            with suppress(Transient, AuthFailed):
                self._try_on(admitted)

    def _try_on(self, admitted: Admitted) -> Launch:
        """What the backend would get, after it has had a look at it, where it can be asked now."""
        run = self._admission.imagine(admitted)
        backend, exclusion = self._backends[run.pool], self._book.exclusion(run.pool, nodes=run.nodes)
        launch = dry_launch(backend, admitted.spec, run, self._home.run(run.id), exclude_hosts=exclusion.hosts)
        backend.check(launch)
        return launch

    def rerun(self, run_id: str, request: RerunRequest, *, client: Mapping[str, Any], key: str) -> RunDetail:
        """Queue a new run with the spec and the code of another one.

        Raises:
            InvalidRequest, NotFound: nothing is left behind.
        """
        run = self._again.rerun(run_id, request, client=client, key=key)
        self._poke()
        return self.detail(run.id)

    def debug(self, run_id: str, request: DebugRequest, *, client: Mapping[str, Any], key: str) -> RunDetail:
        """Queue a run that repeats another one in a smaller world, for a person to look at.

        Raises:
            InvalidRequest, NotFound: nothing is left behind.
        """
        run = self._again.debug(run_id, request, client=client, key=key)
        self._poke()
        return self.detail(run.id)

    # look

    def find(self, run: str) -> str:
        """The id that an id, a unique prefix of one, a unique name, or `latest` stands for.

        Raises:
            NotFound: nothing does; it names near ones.
            Conflict: several do.
        """
        return find_run(self._store, run)

    def list_runs(
        self,
        *,
        phase: str | None = None,
        name: str | None = None,
        project: str | None = None,
        labels: Mapping[str, str] | None = None,
        limit: int = 100,
    ) -> list[RunSummary]:
        """Runs, newest first; see `Store.list_runs`."""
        rows = self._store.list_runs(phase=phase, name=name, project=project, labels=labels, limit=limit)
        return self._summaries(rows)

    def version(self) -> object:
        """Equal to an earlier answer only if nothing that is known of any run has changed since."""
        return self._store.version()

    def summary(self, run_id: str) -> RunSummary:
        """One row of `gangline ps`."""
        return self._summary(self._store.run(run_id))

    def detail(self, run_id: str) -> RunDetail:
        """All that is known of a run."""
        run, run_dir = self._store.run(run_id), self._home.run(run_id)
        spec, client = self._store.spec_and_client(run_id)
        newest, attempts = self._store.newest_metrics(run_id), self._store.attempts(run_id)
        had_ranks = any(rank.get("started") for row in attempts for rank in row.ranks)
        return RunDetail(
            **self._summary(run),
            spec=spec,
            run_dir=str(run_dir.path),
            attempts=[attempt_view(row, run_dir.attempt(row.number)) for row in attempts],
            checkpoints=self.checkpoints(run_id),
            code=code_view(run_dir, spec.get("snapshot") or {}),
            events=self.events(run_id),
            metrics=newest,
            tokens_per_s=tokens_per_s(newest),
            client=client,
            backend=self._describe(run),
            job_log=read_launch_log(run_dir) if run.phase in TERMINAL and not had_ranks else "",
            room=self._room(run),
        )

    def _room(self, run: RunRow) -> list[PoolPartView]:
        """What is free where a run waits."""
        backend = self._backends.get(run.pool)
        if backend is None or run.phase is not Phase.QUEUED or Capability.OWN_QUEUE not in backend.capabilities:
            return []
        asked = backend.lane(self._specs.get(run)).split(",")
        parts = part_views(backend.capacity().parts)
        return [part for part in parts if (part["name"] in asked if any(asked) else part["is_usual"])]

    def _describe(self, run: RunRow) -> dict[str, str]:
        """What its backend says of the newest launch, also of one that is over."""
        backend = self._backends.get(run.pool)
        try:
            handle = run.handle or read_json(self._home.run(run.id).launch(run.launch).handle)
            return {} if backend is None or handle is None else dict(backend.describe(Handle.from_dict(handle)))
        except (Unreadable, OSError, KeyError):
            return {}

    def compare(self, run_ids: Sequence[str], *, code: bool) -> CompareView:
        """What differs between runs; see `Comparer.compare`."""
        return self._comparer.compare(run_ids, code=code)

    def compare_ranks(self, run_id: str, *, attempt: int | None) -> RanksView:
        """What differs between the workers of a run; see `Comparer.compare_ranks`."""
        return self._comparer.compare_ranks(run_id, attempt=attempt)

    def report(self, run_id: str, *, form: str) -> ReportFile:
        """All that is known of a run as one file, without its secrets; see `Reporter.report`."""
        return self._reporter.report(run_id, form)

    def events(self, run_id: str, *, after: int = -1) -> list[EventView]:
        """The history of a run, from the event after number `after` on."""
        return [event_view(event) for event in self._store.events(run_id, after=after)]

    def checkpoints(self, run_id: str) -> list[CheckpointView]:
        """Checkpoints of a run, by step, each with its state; what a resume would take is the latest."""
        run = self._store.run(run_id)
        saved, policy = self._again.saved_by(run), self._specs.get(run).checkpoint
        folder = CheckpointFolder(
            root=saved.root,
            run_id=run_id,
            own_only=policy.resume is ResumeMode.NEVER,
            branch_attempt=saved.branch_attempt,
            start_from=saved.start_from,
        )
        return list_checkpoints(self._store.checkpoints(run_id), folder, saved.site)

    def metrics(self, run_id: str) -> dict[str, float | None]:
        """The newest value of each metric of rank 0; null where it is not finite."""
        return self._store.newest_metrics(run_id)

    def system(self, run_id: str, *, attempt: int | None, samples: int) -> list[SystemView]:
        """The newest samples of each node's machine, of an attempt or of the newest one.

        Raises:
            NotFound: there is no such attempt.
        """
        rows = {row.number: row for row in self._store.attempts(run_id)}
        number = max(rows, default=None) if attempt is None else attempt
        if number is None and attempt is None:
            return []
        if number is None or number not in rows:
            raise NotFound(f"Run `{run_id}` has no attempt {attempt}", fix=f"It has {len(rows)}, counted from 0.")
        return system_views(self._home.run(run_id).attempt(number), rows[number], samples)

    def metric(self, run_id: str, name: str, *, rank: int, buckets: int) -> MetricView:
        """One metric as a chart needs it: at most `buckets` buckets.

        Raises:
            NotFound: the rank has logged no such metric; it names those that there are.
        """
        cells = self._store.chart(run_id, name, rank=rank, buckets=max(1, buckets))
        if cells is None:
            known = self._store.newest_metrics(run_id, rank=rank)
            fix = nearest(name, known) if known else "Log one by gangline.log({...}, step=...)."
            raise NotFound(f"Rank {rank} of run `{run_id}` has logged no metric `{name}`", fix=fix)
        found = [bucket_view(cell) for cell in decide_buckets(cells, max(1, buckets))]
        return MetricView(name=name, rank=rank, count=sum(cell[2] for cell in cells), buckets=found)

    def pools(self) -> list[PoolView]:
        """The configured pools, and what is free in them."""
        held = self._store.held_runs()
        waiting = self._store.waiting_runs()
        return [self._pool(name, held, waiting) for name in self._backends]

    def nodes(self, pool: str | None = None) -> list[NodeHealthView]:
        """The machines of a pool, or of all, that are known by name, and what speaks against them.

        Raises:
            NotFound: there is no such pool.
        """
        if pool is not None:
            self._book.check_pool(pool)
        names = self._backends if pool is None else [pool]
        return [view for name in names for view in node_views(name, self._book.judge(name))]

    def clear_node(self, host: str, *, pool: str | None, by: str) -> ClearedView:
        """Count nothing against a machine that happened so far.

        Raises:
            NotFound: there is no such pool or machine.
        """
        cleared = self._book.clear(host, pool=pool, by=by)
        self._poke()
        return ClearedView(host=host, pools=cleared)

    def counts(self) -> tuple[int, int]:
        """Live runs and queued runs."""
        return self._store.counts()

    # change

    def stop(self, run_id: str, *, grace_s: float | None, by: str) -> RunSummary:
        """Ask a run to stop; one that holds no machines stops at once. A run that is over stays as it is.

        Args:
            grace_s: from the signal until processes are killed; None: as the spec says.
            by: who asks.
        Raises:
            StorageFull: the stop could not be stored; the agents were told all the same.
        """
        for _ in range(_MOST_TRIES):
            run = self._store.run(run_id)
            try:
                stopped = run if run.phase in TERMINAL else self._stop_once(run, grace_s, by)
            except (OSError, DBAPIError) as error:
                if not says_full(error):
                    raise
                raise self._stop_unstored(run, grace_s, by, error) from error
            if stopped is not None:
                self._poke()
                return self._summary(stopped)
        raise Conflict(f"Run `{run_id}` kept changing while it was to be stopped", fix="Try again.")

    def renew(self, run_id: str) -> RunSummary:
        """Say that the run is still wanted. Does nothing where it is over, or has no lease."""
        run = self._store.run(run_id)
        if run.lease_s is not None and run.phase not in TERMINAL:
            renew_lease(self._home.run(run_id))
        return self._summary(run)

    def resume(self, run_id: str, request: ResumeRequest = _AS_IT_WAS, *, by: str) -> RunSummary:
        """Queue a run again that has failed or was stopped.

        Next attempt, from its newest checkpoint or the one that is named, with fresh budgets.

        Raises:
            InvalidRequest, NotFound: the request cannot be met.
            StillEnding: it was asked to stop, or still holds machines.
            Conflict: the run is not over, or has succeeded.
        """
        with self._reopening:
            run = self._store.run(run_id)
            holds = run.handle is not None or run.placement is not None  # without a handle: it was not noted yet
            if run.phase is Phase.STOPPING or (run.phase in TERMINAL and holds):
                raise StillEnding(f"Run `{run_id}` is still ending", fix="Try again once `gangline wait` has returned.")
            if run.phase not in {Phase.FAILED, Phase.STOPPED}:
                onwards = f"Train on in a new run: gangline rerun {run_id} --from-checkpoint latest -- ARGS."
                fix = onwards if run.phase is Phase.SUCCEEDED else "Stop it first."
                stands = "has succeeded" if run.phase is Phase.SUCCEEDED else f"is {run.phase}"
                raise Conflict(f"Run `{run_id}` {stands}", why="Only what failed or was stopped is resumed", fix=fix)
            move = self._again.reopen(run, request, by=by, changes={**_reopened(run), "lease_s": request.lease_s})
            moved = self._store.move(run, move, at=self._clock.now())
        if moved is None:
            raise Conflict(f"Run `{run_id}` was changed by somebody else just now", fix="Look at it, and try again.")
        self._poke()
        return self._summary(moved)

    # remove

    def measure(self, run_id: str) -> RunSizeView:
        """What removing a run would remove."""
        run = self._store.run(run_id)
        return self._removal.measure(run, self._again.saved_by(run))

    def remove(self, run_id: str, *, keep_checkpoints: bool) -> RemovedView:
        """Remove an ended run, and its folder; see `Removal.remove`."""
        with self._reopening:
            return self._removal.remove(self._store.run(run_id), keep_checkpoints=keep_checkpoints)

    def free(self) -> FreedView:
        """Remove contents of code that no run uses any more; see `Removal.free`."""
        return self._removal.free()

    def _summary(self, run: RunRow) -> RunSummary:
        return self._summaries([run])[0]

    def _summaries(self, rows: Sequence[RunRow]) -> list[RunSummary]:
        spans, now = self._store.attempt_spans([run.id for run in rows]), self._clock.now()
        return [summary_view(run, duration_s=duration_s(run, spans[run.id], now)) for run in rows]

    def _stop_once(self, run: RunRow, grace_s: float | None, by: str) -> RunRow | None:
        """One try; None: the run was moved meanwhile."""
        now = self._clock.now()
        asked = {"stop_asked": now, "stop_grace_s": grace_s, "stop_by": by, "stop_cause": "stop"}
        if run.phase is Phase.STOPPING:
            return self._hurry(run, asked) if grace_s is not None else run
        if run.phase is Phase.PREEMPTED or (run.placement is None and run.handle is None):
            stopped = Move(
                phase=Phase.STOPPED,
                reason=Reason.STOPPED_BY_USER,
                message=f"Stopped by {by} while it held no machines.",
                changes={**asked, "ended": now, "exit_code": STOPPED_EXIT_CODE},
            )
            return self._store.move(run, stopped, at=now)
        stopping = Move(phase=Phase.STOPPING, message=f"Stopping: asked by {by}.", changes=asked)
        moved = self._store.move(run, stopping, at=now)
        if moved is not None:
            self._tell(moved)
        return moved

    def _hurry(self, run: RunRow, asked: Mapping[str, Any]) -> RunRow | None:
        """A second stop, with another grace."""
        if not self._store.change(run, asked):
            return None
        hurried = replace(run, **asked)
        self._tell(hurried)
        return hurried

    def _tell(self, run: RunRow) -> None:
        """Write the request now; should the server be killed before, the reconciler writes it."""
        policy = self._specs.get(run).stop.grace_s
        ask_stop(self._home.run(run.id), run, grace_s=policy if run.stop_grace_s is None else run.stop_grace_s)

    def _stop_unstored(self, run: RunRow, grace_s: float | None, by: str, error: Exception) -> StorageFull:
        """End the gang although the database takes nothing: by a line for its leader, else by its backend."""
        now = self._clock.now()
        asked = replace(run, stop_asked=now, stop_grace_s=grace_s, stop_by=by, stop_cause="stop")
        told = "It holds no machines."
        if run.handle is not None:
            try:
                self._tell(asked)
                told = "Its leader was asked to stop all the same."
            except OSError:
                self._backends[run.pool].cancel(Handle.from_dict(run.handle))
                told = "Its agents were told to end it all the same."
        return StorageFull(
            f"The stop of run `{run.id}` could not be stored: the disk takes no more",
            why=f"{getattr(error, 'orig', None) or error}. {told}",
            fix=f"Make room in {self._home.path}, then stop it once more.",
        )

    def _pool(self, name: str, held: Sequence[RunRow], waiting: Sequence[RunRow]) -> PoolView:
        backend = self._backends[name]
        capacity, state = backend.capacity(), backend.state()
        judged = self._book.judge(name)
        mine = [run for run in held if run.pool == name]
        passed_on = sum(run.phase is Phase.QUEUED and run.placement is not None for run in mine)
        gangs = live_gangs(mine, self._specs)
        return PoolView(
            name=name,
            backend=backend.name,
            nodes=capacity.nodes,
            ranks=capacity.ranks,
            cpus=capacity.cpus,
            memory_bytes=capacity.memory_bytes,
            devices=list(capacity.devices),
            device_kind=capacity.device_kind,
            free_devices=list(free_devices(capacity, gangs)),
            free_cpus=max(0, capacity.cpus - sum(gang.demand.cpus for gang in gangs)),
            running=len(gangs) - passed_on,
            queued=sum(run.pool == name for run in waiting) + passed_on,
            avoided_nodes=sum(node.state is NodeState.AVOIDED for node in judged),
            warnings=[
                f"Node {node.host} ought to be avoided ({node.why}), but is used: pool `{name}` has too few others."
                for node in judged
                if node.state is NodeState.KEPT
            ],
            state=state.status.value,
            state_text=state.text,
            command=state.command,
            since=state.since,
            jobs=sum(run.handle is not None for run in mine),
            parts=part_views(capacity.parts),
        )


def _reopened(run: RunRow) -> dict[str, Any]:
    """What `resume` changes beside the phase."""
    return {
        "launch": run.launch + 1,
        "handle": None,
        "placement": None,
        "launch_restarts": {},
        "budget_from": 0 if run.attempt is None else run.attempt + 1,
        "ended": None,
        "exit_code": None,
        "not_before": None,
        "stop_asked": None,
        "stop_grace_s": None,
        "stop_by": None,
        "stop_cause": None,
    }
