"""The store: what the server knows of runs. Every method is one transaction and may be called from any thread.

A run's phase is changed by `Store.move` alone, through `domain.phase.advance`, guarded by the version that was read,
with its event in the same transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

from sqlalchemy import Connection, Row, Select, and_, delete, func, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from gangline.domain.errors import NotFound
from gangline.domain.phase import ACTIVE, TERMINAL, Phase, PhaseChange, Reason, advance
from gangline.store import appending, history, ingesting, marks, metrics
from gangline.store.chart import Cell
from gangline.store.database import Database
from gangline.store.migrate import prepare
from gangline.store.rows import (
    AttemptRow,
    CheckpointRow,
    EventRow,
    IngestBatch,
    Move,
    NewEvent,
    NewRun,
    NodeMark,
    RunRow,
    clean_text,
)
from gangline.store.schema import runs

__all__ = ["Store"]

_HEAVY = ("spec", "client")
_LIGHT = tuple(column for column in runs.c if column.name not in _HEAVY)
_HELD = or_(
    runs.c.phase.in_([phase.value for phase in ACTIVE]),
    runs.c.handle.is_not(None),
    runs.c.placement.is_not(None),
    runs.c.unread,
)
_WAITING = and_(runs.c.phase.in_([Phase.QUEUED.value, Phase.RESTARTING.value]), runs.c.placement.is_(None))
_HELD_RUNS = select(*_LIGHT).where(_HELD).order_by(runs.c.created, runs.c.id)
_LEASED_RUNS = select(*_LIGHT).where(runs.c.lease_s.is_not(None), or_(_HELD, _WAITING))
_WAITING_RUNS = select(*_LIGHT).where(_WAITING).order_by(runs.c.priority.desc(), runs.c.created, runs.c.id)
_WAITING_MARK = select(func.count(), func.max(runs.c.created), func.sum(runs.c.version), func.sum(runs.c.launch)).where(
    _WAITING
)
_PLACED_MARK = select(func.count(), func.sum(runs.c.launch)).where(runs.c.placement.is_not(None))
_T = TypeVar("_T")


class Store:
    """Runs, their history and their metrics."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._answers: dict[str, tuple[object, object]] = {}
        """The last answers to what is asked ten times a second, each with the version of the database before it."""
        self.on_changed: Callable[[str], None] = lambda _run_id: None
        """Called with a run's id after what the server decides of it was changed."""

    def on_damaged(self, call: Callable[[], None]) -> None:
        """Have `call` called when the database turns out to be damaged; from any thread, perhaps more than once."""
        self._database.on_damaged(call)

    @classmethod
    def open(cls, target: Path | str, *, thorough: bool = False) -> Store:
        """Open a database, and make or migrate its tables.

        Args:
            target: the file of an SQLite database, or the URL of another one.
            thorough: read all of it to find damage, which may take a while.
        Raises:
            DatabaseDamaged: what is in it cannot be read.
            DatabaseNewer: a newer Gangline has written it.
            GanglineError: the file is not a database of Gangline's.
        """
        database = Database(target)
        try:
            prepare(database, thorough=thorough)
        except BaseException:
            database.close()
            raise
        return cls(database)

    def close(self) -> None:
        """Let go of the database."""
        self._database.close()

    def version(self) -> object:
        """Equal to an earlier answer only if nothing has been changed since; asked in some microseconds."""
        return self._database.version()

    # runs

    def add_run(self, new: NewRun) -> RunRow:
        """Store a run as queued, with its first event.

        A second call with the same key answers with the first one's run.
        """
        values = {name: getattr(new, name) for name in NewRun.__dataclass_fields__}
        start = {"phase": Phase.QUEUED.value, "version": 0, "launch": 0, "launch_restarts": {}, "budget_from": 0}
        start["unread"] = False
        start |= {"branch_attempt": 0, "revision": 0}
        text = {"name": clean_text(new.name), "user": clean_text(new.user), "message": clean_text(new.message)}
        try:
            with self._database.writing() as conn:
                conn.execute(insert(runs).values(**{**values, **start, **text}))
                history.add_events(
                    conn,
                    new.id,
                    [NewEvent(time=new.created, kind="submitted", message=f"Submitted to pool `{new.pool}`.")],
                )
        except IntegrityError:
            found = self.run_by_key(new.key)
            if found is None:
                raise  # the id, not the key, was taken
            return found
        return self.run(new.id)

    def adopt(
        self,
        run: RunRow,
        *,
        spec: Mapping[str, Any],
        client: Mapping[str, Any],
        attempts: Sequence[AttemptRow],
        events: Sequence[NewEvent],
    ) -> bool:
        """Store a run as its folder remembers it, to be read from there.

        Returns:
            False: there is a run of this id or key already, and nothing was stored.
        """
        values = {name: getattr(run, name) for name in RunRow.__dataclass_fields__}
        text = {"phase": run.phase.value, "reason": None if run.reason is None else run.reason.value, "unread": True}
        try:
            with self._database.writing() as conn:
                conn.execute(insert(runs).values(**{**values, **text, "spec": dict(spec), "client": dict(client)}))
                history.put_attempts(conn, run.id, attempts)
                history.add_events(conn, run.id, events)
        except IntegrityError:
            return False
        return True

    def run(self, run_id: str) -> RunRow:
        """One run.

        Raises:
            NotFound: there is none of this id.
        """
        with self._database.reading() as conn:
            return _one(conn, run_id)

    def run_by_key(self, key: str) -> RunRow | None:
        """The run that was submitted with an idempotency key."""
        return next(iter(self._rows(select(*_LIGHT).where(runs.c.key == key))), None)

    def spec_and_client(self, run_id: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """What was submitted, and by whom."""
        with self._database.reading() as conn:
            row = conn.execute(select(runs.c.spec, runs.c.client).where(runs.c.id == run_id)).one_or_none()
        if row is None:
            raise NotFound(f"There is no run `{run_id}`")
        return row.spec, row.client or {}

    def list_runs(
        self,
        *,
        phase: str | None = None,
        name: str | None = None,
        project: str | None = None,
        labels: Mapping[str, str] | None = None,
        limit: int = 100,
    ) -> list[RunRow]:
        """Runs, newest first.

        Args:
            name: only runs whose name contains it, whatever the case of its letters.
            labels: only runs that have all of these.
        """
        query = select(*_LIGHT).order_by(runs.c.created.desc(), runs.c.id)
        for column, value in ((runs.c.phase, phase), (runs.c.project, project)):
            query = query if value is None else query.where(column == value)
        if name:
            query = query.where(runs.c.name.icontains(name, autoescape=True))
        if not labels:
            return self._rows(query.limit(limit))
        # Databases differ in how they are asked for a key in JSON, and some of them cannot find every key.
        return [run for run in self._rows(query) if labels.items() <= run.labels.items()][:limit]

    def held_runs(self) -> Sequence[RunRow]:
        """Runs for which a backend holds machines, or may hold them; oldest first."""
        return self._unchanged("held", lambda: self._rows(_HELD_RUNS))

    def waiting_runs(self) -> Sequence[RunRow]:
        """Runs that need a place: queued ones, and those between two launches. By priority, then oldest first."""
        return self._unchanged("waiting", lambda: self._rows(_WAITING_RUNS))

    def leased_runs(self) -> Sequence[RunRow]:
        """Runs that somebody has to want: those with a lease that are not over."""
        return self._unchanged("leased", lambda: self._rows(_LEASED_RUNS))

    def pools_in_use(self) -> set[str]:
        """Pools with runs that wait, or for which a backend holds machines, or may hold them."""
        with self._database.reading() as conn:
            return set(conn.scalars(select(runs.c.pool).where(or_(_HELD, _WAITING)).distinct()))

    def queue_mark(self) -> tuple[object, ...]:
        """Something small that differs whenever `waiting_runs` does, or a place is taken or becomes free."""
        return self._unchanged("mark", self._queue_mark)

    def _queue_mark(self) -> tuple[object, ...]:
        with self._database.reading() as conn:
            return (*conn.execute(_WAITING_MARK).one(), *conn.execute(_PLACED_MARK).one())

    def counts(self) -> tuple[int, int]:
        """Live runs and queued runs."""
        with self._database.reading() as conn:
            query = (
                select(runs.c.phase, func.count()).where(runs.c.phase.not_in(_values(TERMINAL))).group_by(runs.c.phase)
            )
            found: dict[str, int] = {phase: count for phase, count in conn.execute(query)}  # noqa: C416 - rows are no pairs
        queued = found.pop(Phase.QUEUED.value, 0)
        return sum(found.values()), queued

    def ids_like(self, word: str, *, limit: int = 20) -> list[str]:
        """Ids that begin with `word`, newest first."""
        query = select(runs.c.id).where(runs.c.id.startswith(word, autoescape=True))
        return self._ids(query.order_by(runs.c.created.desc(), runs.c.id).limit(limit))

    def ids_named(self, name: str, *, limit: int = 20) -> list[str]:
        """Ids of runs of this very name, newest first."""
        return self._ids(select(runs.c.id).where(runs.c.name == name).order_by(runs.c.created.desc()).limit(limit))

    def all_ids(self) -> set[str]:
        """Of every run."""
        return set(self._ids(select(runs.c.id)))

    def snapshots(self) -> dict[str, str]:
        """The snapshot of every run that has one, by run."""
        with self._database.reading() as conn:
            query = select(runs.c.id, runs.c.snapshot).where(runs.c.snapshot.is_not(None))
            return {run_id: digest for run_id, digest in conn.execute(query)}  # noqa: C416 - rows are no pairs

    def recent_ids(self, limit: int = 200) -> list[str]:
        """The newest runs."""
        return self._ids(select(runs.c.id).order_by(runs.c.created.desc(), runs.c.id).limit(limit))

    # changes

    def move(self, run: RunRow, move: Move, *, at: float) -> RunRow | None:
        """Move a run to another phase; the only way to change one.

        Args:
            run: as it was read; its version guards the write.
            at: seconds since the epoch.
        Returns:
            The run as it is now, or None if somebody else has moved it since it was read: nothing was written, drop
            the result.
        Raises:
            IllegalMove: `domain.phase` has no such edge.
        """
        message = clean_text(move.message)
        state, change = advance(run.state, move.phase, reason=move.reason, message=message, reopen=move.reopen)
        values = {"phase": state.phase.value, "message": state.message, "version": state.version, **move.changes}
        values["reason"] = None if state.reason is None else state.reason.value
        with self._database.writing() as conn:
            if not _guarded_update(conn, run, values):
                return None
            history.put_attempts(conn, run.id, move.attempts)
            history.add_events(conn, run.id, [_phase_event(change, at), *move.events])
            marks.add_marks(conn, move.marks)
            moved = _one(conn, run.id)
        self.on_changed(run.id)
        return moved

    def change(
        self,
        run: RunRow,
        columns: Mapping[str, Any],
        *,
        attempts: Sequence[AttemptRow] = (),
        events: Sequence[NewEvent] = (),
        evidence: Sequence[NodeMark] = (),
    ) -> bool:
        """Change what is not the phase, guarded as `move` is.

        False: somebody has moved the run, nothing was written.
        """
        if "phase" in columns or "version" in columns:
            raise ValueError("only `move` changes a phase")
        with self._database.writing() as conn:
            if not _guarded_update(conn, run, columns):
                return False
            history.put_attempts(conn, run.id, attempts)
            history.add_events(conn, run.id, events)
            marks.add_marks(conn, evidence)
        self.on_changed(run.id)
        return True

    def explain_waits(self, messages: Sequence[tuple[RunRow, str]]) -> None:
        """Say of each waiting run why it waits; those that were moved meanwhile keep what they have."""
        with self._database.writing(durable=False) as conn:
            for run, message in messages:
                _guarded_update(conn, run, {"message": clean_text(message)})

    def record_handle(self, run_id: str, launch: int, handle: Mapping[str, Any]) -> bool:
        """Note what a backend knows a launch by.

        Guarded by the launch alone: a handle must not be lost to a concurrent stop.
        """
        where = (runs.c.id == run_id, runs.c.launch == launch)
        with self._database.writing() as conn:
            is_recorded = conn.execute(update(runs).where(*where).values(handle=dict(handle))).rowcount == 1
        self.on_changed(run_id)
        return is_recorded

    def add_events(self, run_id: str, events: Sequence[NewEvent]) -> None:
        """Append to the history of a run."""
        with self._database.writing() as conn:
            history.add_events(conn, run_id, events)

    def ingest(self, run_id: str, batch: IngestBatch) -> bool:
        """Store what one reading of a run directory found, together with how far it has read: all of it, or nothing.

        Returns:
            False if another reader was faster: nothing was stored.
        """
        return bool(self.ingest_all({run_id: batch}))

    def ingest_all(self, batches: Mapping[str, IngestBatch]) -> set[str]:
        """The same of many run directories, in one transaction.

        Returns:
            The runs of which everything was stored; of the others another reader was faster, and nothing was stored.
        """
        with self._database.writing(durable=False) as conn:
            return ingesting.store_batches(conn, batches)

    def remove_run(self, run: RunRow) -> bool:
        """Forget an ended run and all that belongs to it; what it says against machines stays.

        False: it is not over, holds machines, or somebody has moved it; nothing was removed.
        """
        if run.phase not in TERMINAL or run.handle is not None or run.placement is not None:
            return False
        with self._database.writing() as conn:
            where = (runs.c.id == run.id, runs.c.version == run.version, runs.c.handle.is_(None))
            if conn.execute(select(runs.c.id).where(*where)).first() is None:
                return False
            appending.remove_series(conn, run.id)
            history.remove_history(conn, run.id)
            conn.execute(delete(runs).where(runs.c.id == run.id))
        return True

    # what belongs to a pool

    def add_marks(self, new: Sequence[NodeMark]) -> None:
        """Note evidence against machines; what is noted already is not doubled."""
        with self._database.writing() as conn:
            marks.add_marks(conn, new)

    def marks(self, pool: str, *, since: float) -> list[NodeMark]:
        """Evidence against the machines of a pool that is newer than `since` and was not cleared, oldest first."""
        with self._database.reading() as conn:
            return marks.mark_rows(conn, pool, since)

    def clear_marks(self, pool: str, host: str, *, at: float, by: str) -> None:
        """Count nothing against a machine that happened up to `at`."""
        with self._database.writing() as conn:
            marks.clear_marks(conn, pool, host, at=at, by=by)

    # what belongs to a run

    def events(self, run_id: str, *, after: int = -1) -> list[EventRow]:
        """Its history from the event after number `after` on."""
        with self._database.reading() as conn:
            return history.event_rows(conn, run_id, after)

    def attempts(self, run_id: str) -> list[AttemptRow]:
        """Its attempts, by number."""
        with self._database.reading() as conn:
            return history.attempt_rows(conn, run_id)

    def attempt_spans(self, run_ids: Sequence[str]) -> dict[str, list[tuple[float | None, float | None]]]:
        """Start and end of every attempt of these runs, by run."""
        with self._database.reading() as conn:
            return history.attempt_spans(conn, run_ids)

    def checkpoints(self, run_id: str) -> list[CheckpointRow]:
        """Its checkpoints, by step."""
        with self._database.reading() as conn:
            return history.checkpoint_rows(conn, run_id)

    def cursors(self, run_id: str) -> dict[str, int]:
        """How far each file of its directory has been ingested, by relative path."""
        with self._database.reading() as conn:
            return history.read_cursors(conn, run_id)

    def newest_metrics(self, run_id: str, *, rank: int = 0) -> dict[str, float | None]:
        """The newest value of each metric of a rank; None where it is not finite."""
        with self._database.reading() as conn:
            return metrics.newest_values(conn, run_id, rank)

    def chart(self, run_id: str, name: str, *, rank: int, buckets: int) -> list[Cell] | None:
        """Cells of one metric for `chart.decide_buckets`; None if the rank has no such metric."""
        with self._database.reading() as conn:
            return metrics.chart_cells(conn, run_id, name, rank=rank, buckets=buckets)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A read transaction, for tools that look at the tables themselves."""
        with self._database.reading() as conn:
            yield conn

    def _unchanged(self, what: str, ask: Callable[[], _T]) -> _T:
        """An answer, asked anew only if anything was committed since the last time. Nobody may change it."""
        version = self._database.version()
        known = self._answers.get(what)
        if known is not None and known[0] == version:
            return cast("_T", known[1])
        answer = ask()
        self._answers[what] = (version, answer)
        return answer

    def _rows(self, query: Select[Any]) -> list[RunRow]:
        with self._database.reading() as conn:
            return [_run_row(row) for row in conn.execute(query)]

    def _ids(self, query: Select[Any]) -> list[str]:
        with self._database.reading() as conn:
            return list(conn.execute(query).scalars())


def _one(conn: Connection, run_id: str) -> RunRow:
    row = conn.execute(select(*_LIGHT).where(runs.c.id == run_id)).one_or_none()
    if row is None:
        raise NotFound(f"There is no run `{run_id}`", fix="`gangline ps` lists the runs.")
    return _run_row(row)


def _run_row(row: Row[Any]) -> RunRow:
    values = dict(row._mapping)  # noqa: SLF001 - SQLAlchemy's public name for it
    reason = values["reason"]
    given = {"phase": Phase(values["phase"]), "reason": None if reason is None else Reason(reason)}
    return RunRow(
        **{**values, **given, "labels": values["labels"] or {}, "launch_restarts": values["launch_restarts"] or {}}
    )


def _guarded_update(conn: Connection, run: RunRow, values: Mapping[str, Any]) -> bool:
    where = (runs.c.id == run.id, runs.c.version == run.version)
    return conn.execute(update(runs).where(*where).values(**values)).rowcount == 1


def _phase_event(change: PhaseChange, at: float) -> NewEvent:
    data = {
        "old": change.old.value,
        "new": change.new.value,
        "reason": None if change.reason is None else change.reason.value,
    }
    return NewEvent(
        time=at, kind="phase", message=change.message or f"{change.old} → {change.new}", data={**data, **change.data}
    )


def _values(phases: frozenset[Phase]) -> list[str]:
    return sorted(phase.value for phase in phases)
