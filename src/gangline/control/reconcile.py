"""The loop that keeps runs moving: load, decide, apply. One thread calls `tick`; commands run beside it.

Nothing is remembered between ticks that a restarted server would miss: decisions rest on the store, the run
directories and what backends say. What `_Watch` holds only spaces things out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from gangline.control.decide import (
    EXIT_CODES,
    LEADER_PATIENCE_S,
    Cancel,
    Change,
    Facts,
    Step,
    decide,
    decide_used,
)
from gangline.control.health import NodeBook, closing_marks
from gangline.control.ingest import Follower, Ingested
from gangline.control.launching import Launcher
from gangline.control.queueing import Queue
from gangline.control.requests import ask_stop
from gangline.control.specs import Specs
from gangline.domain.errors import BackendError, GanglineError, NoCapacity, Rejected
from gangline.domain.gang import Handle, Liveness, Observation
from gangline.domain.phase import TERMINAL, Phase, Reason
from gangline.ports import Backend, Clock
from gangline.queue.health import HealthPolicy
from gangline.rundir.home import Home
from gangline.rundir.layout import RunDir
from gangline.rundir.space import STORAGE_WORDS, probe_folder
from gangline.store.rows import Move, NewEvent, RunRow
from gangline.store.store import Store

__all__ = ["Reconciler"]

_log = logging.getLogger(__name__)

_FULL_READ_S = 1.0
"""How often the metrics of ranks other than 0 are read."""
_CANCEL_AGAIN_S = 5.0
_SAY_AGAIN_S = 60.0
"""How soon the same trouble of a run is noted again."""
_FIRST_RETRY_S = 1.0
_LONGEST_RETRY_S = 30.0
_MOST_STORAGE_TRIES = 4
_NO_CAPACITY_RETRY_S = 2.0
_AGENT_WORDS_BYTES = 2000
_LONGEST_TURN_S = 2.0
"""Of a longer pause between two looks, as of a server that was stopped, no more than this counts as silence."""


@dataclass(slots=True)
class _Watch:
    """What the reconciler has seen of a run since the server started."""

    follower: Follower
    launch: int = 0
    times_gone: int = 0
    unknown_since: float | None = None
    read_fully: float = 0.0
    cancelled: float | None = None
    asked: float | None = None
    retry_at: float = 0.0
    tries: int = 0
    said: dict[str, float] = field(default_factory=dict)
    sign: int | None = None
    """When the leader last touched its sign of life, by the clock of its machine."""
    silent_s: float = 0.0
    looked: float | None = None

    def begin(self, launch: int) -> None:
        """Another launch: what was seen of the one before says nothing of it."""
        if launch != self.launch:
            self.launch, self.cancelled, self.sign, self.silent_s = launch, None, None, 0.0

    def listen(self, alive: Path, now: float) -> None:
        """Look for the leader's sign of life. Where there is none, nobody is waited for."""
        turn_s = 0.0 if self.looked is None else min(max(0.0, now - self.looked), _LONGEST_TURN_S)
        self.looked = now
        try:
            sign = alive.stat().st_mtime_ns
        except OSError:
            return
        self.silent_s = self.silent_s + turn_s if sign == self.sign else 0.0
        self.sign = sign

    def see(self, observation: Observation | None, now: float) -> None:
        """Take in one answer of the backend."""
        gone = observation is not None and observation.liveness is Liveness.GONE
        self.times_gone = self.times_gone + 1 if gone else 0
        if observation is None or observation.liveness is not Liveness.UNKNOWN:
            self.unknown_since = None
        elif self.unknown_since is None:
            self.unknown_since = now


class Reconciler:
    """Moves runs on. All its methods belong to one thread."""

    def __init__(
        self,
        *,
        store: Store,
        backends: Mapping[str, Backend],
        home: Home,
        clock: Clock,
        leader_patience_s: float = LEADER_PATIENCE_S,
        health: HealthPolicy | None = None,
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
        self._watches: dict[str, _Watch] = {}
        self._is_busy = False

    def tick(self) -> None:
        """Look at everything once. Trouble with one run is noted in its history and stops no other."""
        held = self._store.held_runs()
        seen = self._observe(held)
        for run in held:
            self._guarded(run, partial(self._reconcile, run, seen.get(run.id)))
        for run_id in set(self._watches) - {run.id for run in held}:
            del self._watches[run_id]
        for run in self._queue.place():
            self._guarded(run, partial(self._submit, run))
        self._is_busy = bool(held) or self._queue.is_waiting

    def busy(self) -> bool:
        """Whether anything is to be watched or waits for a place."""
        return self._is_busy

    # load

    def _observe(self, held: Sequence[RunRow]) -> dict[str, Observation]:
        """What backends say of everything that is held; one call for each backend."""
        seen: dict[str, Observation] = {}
        for name, backend in self._backends.items():
            runs = [run for run in held if run.pool == name and run.handle is not None]
            if runs:
                seen.update(zip((run.id for run in runs), _observe_all(backend, runs), strict=True))
        return seen

    def _reconcile(self, run: RunRow, observation: Observation | None) -> None:
        watch, now = self._watch(run), self._clock.now()
        watch.begin(run.launch)
        watch.see(observation, now)
        watch.listen(self._home.run(run.id).launch(run.launch).alive, now)
        everything = run.unread or watch.times_gone > 0 or now - watch.read_fully >= _FULL_READ_S
        ingested = watch.follower.read(run, everything=everything, now=now)
        if everything:
            watch.read_fully = now
        if run.unread and ingested.is_drained:
            self._store.change(run, {"unread": False})
        facts = self._facts(run, observation, watch, ingested)
        if run.phase is Phase.STOPPING and run.handle is not None and not facts.gone:
            self._ask_stop(run, watch, facts.grace_s)
        self._apply(run, decide(facts), watch)

    def _facts(self, run: RunRow, observation: Observation | None, watch: _Watch, ingested: Ingested) -> Facts:
        spec, now = self._specs.get(run), self._clock.now()
        run_dir = self._home.run(run.id)
        is_lost = watch.times_gone > 1 and ingested.is_drained
        words = _agent_words(run_dir, run) if is_lost else ""
        return Facts(
            run=run,
            attempts=[attempt for attempt in ingested.attempts if attempt.launch == run.launch],
            observation=observation,
            confirmed_gone=is_lost,
            unknown_for_s=0.0 if watch.unknown_since is None else now - watch.unknown_since,
            leader_silent_s=watch.silent_s,
            leader_patience_s=self._leader_patience_s,
            was_prepared=run.handle is not None or run_dir.launch(run.launch).spec.exists(),
            policy=spec.restarts,
            used=decide_used(run, ingested.attempts),
            grace_s=spec.stop.grace_s if run.stop_grace_s is None else run.stop_grace_s,
            agent_words=words,
            storage_fault=_storage_fault(run_dir, words) if is_lost else "",
            now=now,
        )

    def _watch(self, run: RunRow) -> _Watch:
        watch = self._watches.get(run.id)
        if watch is None:
            watch = _Watch(Follower(self._store, run.id, self._home.run(run.id)))
            self._watches[run.id] = watch
        return watch

    # apply

    def _apply(self, run: RunRow, steps: Sequence[Step], watch: _Watch) -> None:
        for step in steps:
            if isinstance(step, Move):
                marks = [mark for attempt in step.attempts for mark in closing_marks(run, attempt)]
                moved = self._store.move(run, replace(step, marks=marks), at=self._clock.now())
                if moved is None:
                    return
                run = moved
                watch.follower.forget()
            elif isinstance(step, Change):
                watch.follower.forget()
                marks = [mark for attempt in step.attempts for mark in closing_marks(run, attempt)]
                if not self._store.change(run, step.changes, attempts=step.attempts, evidence=marks):
                    return
            elif isinstance(step, Cancel):
                self._cancel(run, step.why, watch)
            else:
                self._submit(run)

    def _ask_stop(self, run: RunRow, watch: _Watch, grace_s: float) -> None:
        if watch.asked != run.stop_asked:
            ask_stop(self._home.run(run.id), run, grace_s=grace_s)
            watch.asked = run.stop_asked

    def _cancel(self, run: RunRow, why: str, watch: _Watch) -> None:
        now = self._clock.now()
        if run.handle is None or (watch.cancelled is not None and now - watch.cancelled < _CANCEL_AGAIN_S):
            return
        is_first, watch.cancelled = watch.cancelled is None, now
        self._backends[run.pool].cancel(Handle.from_dict(run.handle))
        if is_first:
            self._store.add_events(run.id, [NewEvent(time=now, kind="cancelled", message=why)])

    def _submit(self, run: RunRow) -> None:
        """Hand a launch to its backend, and act on the class of what it answers."""
        watch, now = self._watch(run), self._clock.now()
        if now < watch.retry_at:
            return
        try:
            used = decide_used(run, self._store.attempts(run.id))
            self._launcher.launch(run, self._specs.get(run), self._backends[run.pool], used=used)
        except NoCapacity as error:
            self._nothing_started(run, _requeued(error, now + _NO_CAPACITY_RETRY_S))
        except Rejected as error:
            self._nothing_started(run, _failed(error, now, Reason.BACKEND_REJECTED))
        except BackendError as error:
            self._retry(run, watch, error)
        except GanglineError as error:
            self._nothing_started(run, _failed(error, now, Reason.STORAGE))
        except OSError as error:
            self._retry(run, watch, error)
            if watch.tries >= _MOST_STORAGE_TRIES:
                self._nothing_started(run, _failed(error, now, Reason.STORAGE))
        else:
            watch.tries = 0

    def _retry(self, run: RunRow, watch: _Watch, error: Exception) -> None:
        """Try again later. The run keeps its place: the backend may have started the launch all the same."""
        delay_s = min(_FIRST_RETRY_S * 2**watch.tries, _LONGEST_RETRY_S)
        watch.tries += 1
        watch.retry_at = self._clock.now() + delay_s
        if str(error) != run.message:
            self._store.change(run, {"message": str(error)})

    def _nothing_started(self, run: RunRow, move: Move) -> None:
        """No agents of the launch exist. A run that is to stop, or is over, needs no more than to know that."""
        self._launcher.discard(run)
        if run.phase in TERMINAL:
            self._store.change(run, {"placement": None})
        elif run.phase is Phase.STARTING:
            self._store.move(run, move, at=self._clock.now())

    def _guarded(self, run: RunRow, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - noted in the run's history, and no other run may suffer
            self._note(run, error)

    def _note(self, run: RunRow, error: Exception) -> None:
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


def _requeued(error: NoCapacity, not_before: float) -> Move:
    return Move(phase=Phase.QUEUED, message=str(error), changes={"placement": None, "not_before": not_before})


def _failed(error: Exception, now: float, reason: Reason) -> Move:
    changes = {"ended": now, "exit_code": EXIT_CODES[reason], "placement": None}
    return Move(phase=Phase.FAILED, reason=reason, message=str(error), changes=changes)


def _observe_all(backend: Backend, runs: Sequence[RunRow]) -> list[Observation]:
    """One answer for each run; UNKNOWN where the backend has none."""
    try:
        found = backend.observe([Handle.from_dict(run.handle) for run in runs if run.handle is not None])
    except BackendError as error:
        return [Observation(liveness=Liveness.UNKNOWN, detail=str(error))] * len(runs)
    except Exception as error:  # noqa: BLE001 - recorded; other backends must go on
        _log.exception("backend %s could not be asked", backend.name)
        return [Observation(liveness=Liveness.UNKNOWN, detail=f"{type(error).__name__}: {error}")] * len(runs)
    return [found.get(index, Observation(liveness=Liveness.UNKNOWN)) for index in range(len(runs))]


def _agent_words(run_dir: RunDir, run: RunRow) -> str:
    """The end of what the leader of a launch has printed."""
    try:
        with run_dir.launch(run.launch).log(0).open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - _AGENT_WORDS_BYTES))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def _storage_fault(run_dir: RunDir, words: str) -> str:
    """What the agents said last of a full disk; they may not have been able to say it, so the folder is tried, too."""
    if not run_dir.spec.exists():
        return f"the run directory {run_dir.path} was removed"
    said = next((line for line in words.splitlines() if STORAGE_WORDS in line), "")
    return said.partition(f"{STORAGE_WORDS}: ")[2] or probe_folder(run_dir.path)
