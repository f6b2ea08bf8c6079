"""The loop that keeps runs moving: load, decide, apply. One thread calls `tick`; commands run beside it.

Nothing is remembered between ticks that a restarted server would miss: decisions rest on the store, the run
directories and what backends say. What `Watch` and `HandOvers` hold only spaces things out.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from gangline.control.ahead import Aheads
from gangline.control.decide import decide, decide_used
from gangline.control.facts import (
    LEADER_PATIENCE_S,
    Cancel,
    Change,
    Explain,
    Facts,
    Step,
    exit_code_for,
)
from gangline.control.handover import HandOvers, in_a_thread
from gangline.control.health import NodeBook, closing_marks
from gangline.control.ingest import LIMIT_BYTES, Follower, Found, Ingested
from gangline.control.launching import Launched, Launcher, launch_key
from gangline.control.leases import Leases
from gangline.control.queueing import Queue
from gangline.control.requests import ask_stop, tell_end
from gangline.control.specs import Specs
from gangline.control.watch import Watch, has_passed
from gangline.domain.errors import BackendError, GanglineError, NoCapacity, Rejected, StorageFull, Transient
from gangline.domain.gang import Capability, Handle, Liveness, Observation
from gangline.domain.phase import TERMINAL, Phase, Reason
from gangline.ports import Backend, Clock
from gangline.queue.health import HealthPolicy
from gangline.rundir.home import Home
from gangline.rundir.layout import RunDir
from gangline.rundir.space import STORAGE_WORDS, describe_full, is_full, probe_folder
from gangline.store.full import says_full
from gangline.store.rows import AttemptRow, Move, NewEvent, RunRow
from gangline.store.store import Store

__all__ = ["Reconciler"]

_log = logging.getLogger(__name__)

_CANCEL_AGAIN_S = 5.0
_SAY_AGAIN_S = 60.0
"""How soon the same trouble of a run is noted again."""
_FIRST_RETRY_S = 1.0
_LONGEST_RETRY_S = 30.0
_MOST_STORAGE_TRIES = 4
_MOST_AT_ONCE = 100
"""Runs of which what is new is stored in one transaction, before any of them is decided about."""
_NO_CAPACITY_RETRY_S = 2.0
_AGENT_WORDS_BYTES = 2000
_TO_BEGIN = frozenset({Phase.STARTING, Phase.QUEUED, Phase.RESTARTING})
"""Phases of a run that waits for its launch to begin."""
_T = TypeVar("_T")


class Reconciler:
    """Moves runs on. All its methods belong to one thread.

    Args:
        leader_patience_s: how long a leader may show no sign of life.
        beside: has work done beside the reconciler: launches are handed over there where that takes its time.
        longest_look_s: what is not reached within this time comes first in the next tick, so that the queue is looked
            at, and commands are followed, however many runs have much to say at once.
    """

    def __init__(
        self,
        *,
        store: Store,
        backends: Mapping[str, Backend],
        home: Home,
        clock: Clock,
        leader_patience_s: float = LEADER_PATIENCE_S,
        health: HealthPolicy | None = None,
        beside: Callable[[Callable[[], None]], None] = in_a_thread,
        longest_look_s: float = 1.0,
    ) -> None:
        self._leader_patience_s = leader_patience_s
        self._store = store
        self._backends = backends
        self._home = home
        self._clock = clock
        self._specs = Specs(store)
        book = NodeBook(store=store, backends=backends, clock=clock, policy=health)
        self._launcher = Launcher(store=store, home=home, book=book)
        self._queue = Queue(store=store, backends=backends, specs=self._specs, clock=clock, book=book)
        self._leases = Leases(store=store, home=home, clock=clock)
        self._hand_overs: HandOvers[Launched] = HandOvers(beside)
        self._aheads = Aheads(store=store, backends=backends, clock=clock, beside=beside)
        self._watches: dict[str, Watch] = {}
        self._explained: list[tuple[RunRow, str]] = []
        self._longest_look_s = longest_look_s
        self._put_off: dict[str, int] = {}
        """Runs that the last look did not get to, in their order."""
        self._is_busy = False
        self._unstored: Exception | None = None

    def tick(self) -> None:
        """Look at everything once. Trouble with one run is noted in its history and stops no other."""
        self._unstored = None
        held = self._store.held_runs()
        seen = self._observe(held)
        until = self._clock.monotonic() + self._longest_look_s
        late = deque(sorted(held, key=lambda run: self._put_off.get(run.id, len(held))))  # who had to wait comes first
        is_first = True
        while late and (is_first or self._clock.monotonic() < until):
            is_first = False
            for run, ingested in self._ingest(late, seen, until):
                self._guarded(run, partial(self._reconcile, run, seen.get(run.id), ingested))
        self._put_off = {run.id: place for place, run in enumerate(late)}
        for run_id in set(self._watches) - {run.id for run in held}:
            del self._watches[run_id]
        self._leases.look()
        self._aheads.look()
        for run in self._queue.place():
            self._guarded(run, partial(self._submit, run))
        if self._explained:
            news, self._explained = self._explained, []
            self._store.explain_waits(news)
        self._is_busy = bool(held) or self._queue.is_waiting

    def busy(self) -> bool:
        """Whether anything is to be watched or waits for a place."""
        return self._is_busy

    def unstored(self) -> Exception | None:
        """What the disk of the store did not take in the newest tick; no run's history can say it."""
        return self._unstored

    # load

    def _observe(self, held: Sequence[RunRow]) -> dict[str, Observation]:
        """What backends say of everything that is held; one call for each backend."""
        seen: dict[str, Observation] = {}
        for name, backend in list(self._backends.items()):
            runs = [run for run in held if run.pool == name and run.handle is not None]
            if runs:
                seen.update(zip((run.id for run in runs), _observe_all(backend, runs), strict=True))
        return seen

    def _ingest(
        self, late: deque[RunRow], seen: Mapping[str, Observation], until: float
    ) -> Iterator[tuple[RunRow, Ingested]]:
        """Read what is new of the next runs, which leave `late`, and store it in one transaction."""
        looked: list[tuple[RunRow, Found | Ingested]] = []
        num_bytes = 0
        for _ in range(min(len(late), _MOST_AT_ONCE)):
            if looked and (num_bytes >= LIMIT_BYTES or self._clock.monotonic() >= until):
                break
            run = late.popleft()
            look = self._guarded(run, partial(self._look, run, seen.get(run.id)))
            if look is not None:
                looked.append((run, look))
                num_bytes += look.num_bytes if isinstance(look, Found) else 0
        stored = self._store_all([(run, look) for run, look in looked if isinstance(look, Found) and look.has_news])
        for run, look in looked:
            if isinstance(look, Ingested):
                yield run, look
            elif not look.has_news or run.id in stored:
                yield run, self._watch(run).keep(look, is_stored=stored.get(run.id, True))

    def _store_all(self, news: Sequence[tuple[RunRow, Found]]) -> dict[str, bool]:
        """Whether what was found of a run was stored; a run that there is trouble with is missing."""
        if not news:
            return {}
        try:
            stored = self._store.ingest_all({run.id: found.batch for run, found in news})
        except Exception:  # noqa: BLE001 - it is found out below of which run, and recorded
            alone = {
                run.id: self._guarded(run, partial(self._store.ingest, run.id, found.batch)) for run, found in news
            }
            return {run_id: is_stored for run_id, is_stored in alone.items() if is_stored is not None}
        return {run.id: run.id in stored for run, _ in news}

    def _look(self, run: RunRow, observation: Observation | None) -> Found | Ingested:
        watch, now = self._watch(run), self._clock.now()
        watch.begin(run.launch)
        watch.see(observation, now)
        watch.listen(self._home.run(run.id).launch(run.launch).alive, observation, now)
        return watch.look(run, observation, now)

    def _reconcile(self, run: RunRow, observation: Observation | None, ingested: Ingested) -> None:
        watch = self._watch(run)
        if run.unread and ingested.is_drained:
            self._store.change(run, {"unread": False})
        if run.phase is Phase.STOPPING and run.handle is None:
            self._hand_overs.withdraw(run.pool, launch_key(run))
            if not self._may_have_begun(run):
                self._launcher.discard(run)
        facts = self._facts(run, observation, watch, ingested)
        if run.phase is Phase.STOPPING and run.handle is not None and not facts.gone:
            self._ask_stop(run, watch, facts.grace_s)
        self._tell_end(run, observation, watch)
        self._aheads.consider(run, facts, gang=lambda: self._launcher.next_gang(run, self._specs.get(run)))
        self._apply(run, decide(facts), watch)

    def _tell_end(self, run: RunRow, observation: Observation | None, watch: Watch) -> None:
        """What agents know of the end of their time is what it was when they started."""
        end = None if observation is None else observation.ends_at
        if end is not None and end != watch.told_end:
            tell_end(self._home.run(run.id), run, end)
            watch.told_end = end

    def _facts(self, run: RunRow, observation: Observation | None, watch: Watch, ingested: Ingested) -> Facts:
        spec, now = self._specs.get(run), self._clock.now()
        attempts = [attempt for attempt in ingested.attempts if attempt.launch == run.launch]
        is_lost = watch.times_gone > 1 and ingested.is_drained
        words = _agent_words(self._home.run(run.id), run) if is_lost else ""
        return Facts(
            run=run,
            attempts=attempts,
            observation=observation,
            confirmed_gone=is_lost,
            cut_off=watch.cut_off(attempts, observation, patience_s=self._leader_patience_s, now=now),
            has_queue=self._can(run, Capability.OWN_QUEUE),
            unknown_for_s=0.0 if watch.unknown_since is None else now - watch.unknown_since,
            over_for_s=watch.over_for_s(run, attempts, now),
            leader_silent_s=watch.silent_s,
            leader_patience_s=watch.patience_s(observation, nodes=run.nodes, most_s=self._leader_patience_s),
            was_prepared=run.handle is not None or self._may_have_begun(run),
            policy=spec.restarts,
            stop=spec.stop,
            saved_step=self._saved_step(run, attempts) if is_lost else None,
            used=decide_used(run, ingested.attempts),
            grace_s=spec.stop.grace_s if run.stop_grace_s is None else run.stop_grace_s,
            agent_words=words,
            storage_fault=_storage_fault(self._home.run(run.id), words, is_far=watch.is_far) if is_lost else "",
            now=now,
        )

    def _watch(self, run: RunRow) -> Watch:
        watch = self._watches.get(run.id)
        if watch is None:
            is_far = not self._can(run, Capability.SHARED_FILES)
            watch = Watch(Follower(self._store, run.id, self._home.run(run.id)), is_far=is_far)
            self._watches[run.id] = watch
        return watch

    def _can(self, run: RunRow, capability: Capability) -> bool:
        backend = self._backends.get(run.pool)
        return backend is not None and capability in backend.capabilities

    def _may_have_begun(self, run: RunRow) -> bool:
        backend = self._backends.get(run.pool)
        return self._launcher.was_prepared(run, backend) or self._hand_overs.is_under_way(run.pool, launch_key(run))

    def _saved_step(self, run: RunRow, attempts: Sequence[AttemptRow]) -> int | None:
        """Step of the newest checkpoint of the newest attempt."""
        if not attempts:
            return None
        saved = [one.step for one in self._store.checkpoints(run.id) if one.attempt == attempts[-1].number]
        return max(saved, default=None)

    # apply

    def _apply(self, run: RunRow, steps: Sequence[Step], watch: Watch) -> None:
        for step in steps:
            if isinstance(step, Move):
                marks = [mark for attempt in step.attempts for mark in closing_marks(run, attempt)]
                moved = self._store.move(run, replace(step, marks=marks), at=self._clock.now())
                if moved is None:
                    return
                run = moved
                watch.forget()
            elif isinstance(step, Change):
                watch.forget()
                marks = [mark for attempt in step.attempts for mark in closing_marks(run, attempt)]
                if not self._store.change(run, step.changes, attempts=step.attempts, evidence=marks):
                    return
            elif isinstance(step, Explain):
                self._explained.append((run, step.message))
            elif isinstance(step, Cancel):
                self._cancel(run, step.why, watch)
            else:
                self._submit(run)

    def _ask_stop(self, run: RunRow, watch: Watch, grace_s: float) -> None:
        if watch.asked != run.stop_asked:
            ask_stop(self._home.run(run.id), run, grace_s=grace_s)
            watch.asked = run.stop_asked

    def _cancel(self, run: RunRow, why: str, watch: Watch) -> None:
        now = self._clock.now()
        if run.handle is None or (
            watch.cancelled is not None and not has_passed(watch.cancelled, _CANCEL_AGAIN_S, now)
        ):
            return
        is_first, watch.cancelled = watch.cancelled is None, now
        try:
            self._backend(run).cancel(Handle.from_dict(run.handle))
        except BackendError as error:  # it is tried again
            why = f"{why} {error}"
        if is_first:
            self._store.add_events(run.id, [NewEvent(time=now, kind="cancelled", message=why)])

    def _submit(self, run: RunRow) -> None:
        """Hand a launch to its backend, and act on the class of what it answers."""
        watch, now = self._watch(run), self._clock.now()
        if now < watch.retry_at <= now + _LONGEST_RETRY_S:  # a later one is of before the clock was set back
            return
        try:
            launched = self._hand_over(run)
        except NoCapacity as error:
            self._no_room(run, error)
        except Rejected as error:
            self._nothing_started(run, _failed(error, now, Reason.BACKEND_REJECTED))
        except BackendError as error:
            self._retry(run, watch, error)
        except GanglineError as error:
            self._nothing_started(run, _failed(error, now, Reason.STORAGE))
        except OSError as error:
            self._retry(run, watch, error)
            if watch.tries >= _MOST_STORAGE_TRIES:
                self._nothing_started(run, _failed(self._not_written(run, error), now, Reason.STORAGE))
        else:
            if launched is not None:
                watch.tries = 0
                self._queue.went_well(run)
                self._launcher.note(run, launched)

    def _not_written(self, run: RunRow, error: OSError) -> StorageFull | OSError:
        """What a run failed of at its start: where there was no room, and what helps."""
        if not is_full(error):
            return error
        path = self._home.run(run.id).path
        return StorageFull(
            "Nothing could be started",
            why=describe_full(path, error),
            fix=f"Make room, then `gangline resume {run.id}`",
        )

    def _hand_over(self, run: RunRow) -> Launched | None:
        """The launch, once its backend has taken it; None while it is on its way."""
        backend = self._backend(run)

        def work() -> Launched:
            used = decide_used(run, self._store.attempts(run.id))
            return self._launcher.launch(run, self._specs.get(run), backend, used=used)

        if Capability.SHARED_FILES in backend.capabilities and Capability.OWN_QUEUE not in backend.capabilities:
            return work()  # it is this machine: nobody else is asked
        is_new = not self._launcher.was_prepared(run, backend)
        lane = backend.lane(self._specs.get(run))
        return self._hand_overs.ask(run.pool, launch_key(run), work, is_new=is_new, lane=lane)

    def _backend(self, run: RunRow) -> Backend:
        """The backend of a run's pool.

        Raises:
            Transient: the pool is not configured any more.
        """
        backend = self._backends.get(run.pool)
        if backend is None:
            fix = "Add it again, or stop the run."
            raise Transient(f"Pool `{run.pool}` of this run is not configured any more", fix=fix)
        return backend

    def _no_room(self, run: RunRow, error: NoCapacity) -> None:
        """The run goes back to the head of Gangline's own queue."""
        if not self._can(run, Capability.OWN_QUEUE):
            self._nothing_started(run, _requeued(error, self._clock.now() + _NO_CAPACITY_RETRY_S))
            return
        self._queue.hold(run.pool, str(error), lane=error.lane)
        self._launcher.discard(run)
        if run.phase is Phase.STARTING:
            self._store.move(run, _requeued(error, None), at=self._clock.now())
        else:
            said = {} if run.phase in TERMINAL else {"message": str(error)}
            self._store.change(run, {"placement": None, **said})

    def _retry(self, run: RunRow, watch: Watch, error: Exception) -> None:
        """Try again later. The run keeps its place: the backend may have started the launch all the same."""
        delay_s = min(_FIRST_RETRY_S * 2**watch.tries, _LONGEST_RETRY_S)
        watch.tries += 1
        watch.retry_at = self._clock.now() + delay_s
        said = error.for_run if isinstance(error, BackendError) else str(error)
        if said != run.message:
            self._store.change(run, {"message": said})

    def _nothing_started(self, run: RunRow, move: Move) -> None:
        """No agents of the launch exist. A run that is to stop, or is over, needs no more than to know that."""
        self._launcher.discard(run)
        if run.phase in TERMINAL:
            self._store.change(run, {"placement": None})
        elif run.phase in _TO_BEGIN:
            self._store.move(run, move, at=self._clock.now())

    def _guarded(self, run: RunRow, work: Callable[[], _T]) -> _T | None:
        """What it gives; None: there was trouble."""
        try:
            return work()
        except Exception as error:  # noqa: BLE001 - noted in the run's history, and no other run may suffer
            self._note(run, error)
            return None

    def _note(self, run: RunRow, error: Exception) -> None:
        if says_full(error):
            self._unstored = error
        said, now = self._watch(run).said, self._clock.now()
        text = f"{type(error).__name__}: {error}"
        if now - said.get(text, -_SAY_AGAIN_S) < _SAY_AGAIN_S:
            return
        said[text] = now
        _log.error("run %s could not be reconciled", run.id, exc_info=error)
        try:
            message = f"The server could not look after this run: {text}"
            self._store.add_events(run.id, [NewEvent(time=now, kind="error", message=message)])
        except Exception:  # noqa: BLE001 - the log is the last place to record it
            _log.exception("and that could not be noted in its history")


def _requeued(error: NoCapacity, not_before: float | None) -> Move:
    return Move(phase=Phase.QUEUED, message=str(error), changes={"placement": None, "not_before": not_before})


def _failed(error: Exception, now: float, reason: Reason) -> Move:
    changes = {"ended": now, "exit_code": exit_code_for(reason), "placement": None}
    return Move(phase=Phase.FAILED, reason=reason, message=str(error), changes=changes)


def _observe_all(backend: Backend, runs: Sequence[RunRow]) -> list[Observation]:
    """One answer for each run; UNKNOWN where the backend has none."""
    try:
        found = backend.observe([Handle.from_dict(run.handle) for run in runs if run.handle is not None])
    except BackendError as error:
        return [Observation(liveness=Liveness.UNKNOWN, detail=error.for_run)] * len(runs)
    except Exception as error:  # noqa: BLE001 - recorded; other backends must go on
        _log.exception("backend %s could not be asked", backend.name)
        return [Observation(liveness=Liveness.UNKNOWN, detail=f"{type(error).__name__}: {error}")] * len(runs)
    return [found.get(index, Observation(liveness=Liveness.UNKNOWN)) for index in range(len(runs))]


def _agent_words(run_dir: RunDir, run: RunRow) -> str:
    """The end of what the leader of a launch has printed, or the job that was to start it."""
    launch = run_dir.launch(run.launch)
    return _end_of(launch.log(0)) or _end_of(launch.path / "job.log")


def _end_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _AGENT_WORDS_BYTES))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def _storage_fault(run_dir: RunDir, words: str, *, is_far: bool) -> str:
    """What the agents said last of a full disk; they may not have been able to say it, so the folder is tried, too."""
    if not run_dir.spec.exists():
        return f"the run directory {run_dir.path} was removed"
    said = next((line for line in words.splitlines() if STORAGE_WORDS in line), "").partition(f"{STORAGE_WORDS}: ")[2]
    return said if said or is_far else probe_folder(run_dir.path)
