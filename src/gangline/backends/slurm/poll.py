"""Follows the jobs of one pool: one `squeue` for all of them, at most one question besides, in a thread of its own.

`observe` tells what the last poll has seen, and never waits. How often is polled follows what happens: the pool's own
interval, sooner after a submit and when files say that something has ended, later when Slurm is slow or in trouble.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from gangline.backends.slurm.evidence import Answers, Claim, Memory
from gangline.backends.slurm.footprint import has_mark, note_cancel, read_footprint
from gangline.backends.slurm.inquiry import Inquiry
from gangline.backends.slurm.link import Link
from gangline.backends.slurm.tokens import parse_token
from gangline.backends.slurm.truth import weigh
from gangline.domain.errors import AuthFailed
from gangline.domain.gang import Handle, Liveness, Observation
from gangline.domain.pool import SlurmPool
from gangline.ports import Clock
from gangline.rundir.home import Home

__all__ = ["Carrier", "Poller"]

_log = logging.getLogger(__name__)

_QUICK_S = 1.0
_NEW_FOR_S = 20.0
"""So long after a job was handed over it is asked for often: most jobs that start at once do it then."""
_GATHER_S = 0.2
"""Submits of one moment share a poll."""
_LOOK_S = 1.0
"""How often files are looked at between polls."""
_SETTLE_S = 0.25
_MOST_LOAD = 8.0
"""A pause is at least so many times as long as the queue takes to answer."""
_LONGEST_S = 60.0
_FRESH_S = 15.0
"""So long an answer holds while there is none after it."""


class Carrier(Protocol):
    """What the poller asks of the mirror's keeper (`ferry.py`)."""

    def follow(self, run_id: str) -> None:
        """Keep the mirror of a run."""
        ...

    def forget(self, run_id: str) -> None:
        """Keep it no more."""
        ...

    def finish(self, run_id: str, launch: int = 0) -> bool:
        """Whether the mirror holds all that a launch has left which is known to be over; returns at once."""
        ...

    def mirrored(self, run_id: str) -> float | None:
        """When the mirror last held all that had been written."""
        ...


@dataclass(slots=True)
class _Case:
    """One job that is followed."""

    claim: Claim
    run_id: str
    launch: int
    since: float
    """When it was first asked about."""
    memory: Memory = field(default_factory=Memory)
    seen: Observation | None = None
    fresh_at: float | None = None
    """When the queue last gave an answer on it."""
    ending: Observation | None = None
    """It is over; what the mirror lacks is awaited."""
    basis: tuple[Memory, Answers, float] | None = None
    """What the last poll rested on, besides files."""
    was_marked: bool = False
    mirrored: float | None = None
    """When the mirror was last complete before its files were looked at."""

    @property
    def is_gone(self) -> bool:
        return self.seen is not None and self.seen.liveness is Liveness.GONE


class Poller:
    """Follows jobs for `SlurmBackend.observe`.

    Args:
        link: to the login node.
        ferry: keeps the mirrors; GONE is said only once it has all of a launch.
        home: the server's state folder.
    """

    def __init__(self, *, link: Link, pool: SlurmPool, ferry: Carrier, home: Home, clock: Clock) -> None:
        self._pool, self._ferry, self._home, self._clock = pool, ferry, home, clock
        self._lock = threading.Lock()
        self._polling = threading.Lock()
        self._cases: dict[tuple[str, str], _Case] = {}
        self._inquiry = Inquiry(link, clock, name=pool.name)
        self._due = float("-inf")
        self._wake = threading.Event()
        self._is_closed = False
        self._thread: threading.Thread | None = None

    @property
    def trouble(self) -> str:
        """Why Slurm gives no answer at present; "" where it does."""
        error = self._inquiry.trouble
        return "" if error is None else error.for_run

    def start(self) -> None:
        """Begin to poll; until then only `poll` does."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"slurm-poll-{self._pool.name}", daemon=True)
                self._thread.start()

    def close(self, patience_s: float = 5.0) -> None:
        """End the thread."""
        self._is_closed = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(patience_s)

    def observe(self, handles: Sequence[Handle]) -> dict[int, Observation]:
        """What the last poll has seen of each; these are the ones that are followed from now on."""
        now = self._clock.monotonic()
        with self._lock:
            cases = [self._case(handle, now) for handle in handles]
            kept = {_key(handle) for handle in handles}
            dropped = [self._cases.pop(key) for key in set(self._cases) - kept]
            found = {number: self._tell(case) for number, case in enumerate(cases)}
            runs = {case.run_id for case in cases}
        for run_id in {case.run_id for case in dropped} - runs:
            self._ferry.forget(run_id)
        return found

    def cancelling(self, handle: Handle) -> None:
        """Gangline itself is about to end this job: what Slurm says of it then is nobody else's doing.

        Of a job that Slurm has called over already, nothing changes: its last files may still be waited for.
        """
        with self._lock:
            case = self._cases.get(_key(handle))
        is_over = case is not None and case.ending is not None
        token = parse_token(handle.data["token"])
        if token is not None and not is_over:
            note_cancel(self._home.run(token.run_id).launch(token.launch), self._clock.now())
        self.hurry()

    def mirrored(self, run_id: str) -> float | None:
        """When the mirror of a run last held everything."""
        return self._ferry.mirrored(run_id)

    def hurry(self) -> None:
        """Poll as soon as may be."""
        self._due = min(self._due, self._clock.monotonic() + _GATHER_S)
        self._wake.set()

    # observe

    def _case(self, handle: Handle, now: float) -> _Case:
        key = _key(handle)
        case = self._cases.get(key)
        if case is None:
            token = parse_token(handle.data["token"])
            run_id, launch = ("", 0) if token is None else (token.run_id, token.launch)
            case = _Case(claim=_claim(handle), run_id=run_id, launch=launch, since=now)
            self._cases[key] = case
            self._ferry.follow(run_id)
            self._due = min(self._due, now + _GATHER_S)
            self._wake.set()
        return case

    def _tell(self, case: _Case) -> Observation:
        if case.seen is None:
            detail = self.trouble or f"Slurm has not been asked about job {case.claim.job} yet"
            return Observation(liveness=Liveness.UNKNOWN, detail=detail)
        is_waiting = case.seen.liveness is Liveness.PENDING  # what it says rests on files that were here before
        return replace(case.seen, mirrored=case.mirrored if is_waiting else self._ferry.mirrored(case.run_id))

    # The thread

    def _run(self) -> None:
        while not self._is_closed:
            try:
                pause_s = self.turn()
            except Exception:  # noqa: BLE001 - the next turn may go well, and jobs are to be followed
                _log.exception("pool %s: its jobs could not be asked about; it goes on in a moment", self._pool.name)
                pause_s = _LOOK_S * 5
            self._wake.wait(pause_s)
            self._wake.clear()

    def turn(self) -> float:
        """Poll if it is due, publish what has become complete, look for hints; how long to pause then, in seconds."""
        if self._clock.monotonic() >= self._due:
            self.poll()
        is_settling = self._settle()
        if self._has_hint():
            self._due = min(self._due, self._clock.monotonic() + _GATHER_S)
        left_s = max(0.0, self._due - self._clock.monotonic())
        return min(left_s, _SETTLE_S if is_settling else _LOOK_S)

    def poll(self) -> None:
        """Ask about all jobs that are not over, once."""
        with self._polling:
            with self._lock:
                cases = [case for case in self._cases.values() if case.ending is None and not case.is_gone]
            if cases:
                self._poll(cases)
            self._due = self._clock.monotonic() + self._pause_s()

    def _poll(self, cases: Sequence[_Case]) -> None:
        answers = self._inquiry.ask([(case.claim, case.memory) for case in cases])
        now = self._clock.monotonic()
        for case, answer in zip(cases, answers, strict=True):
            case.mirrored = self._ferry.mirrored(case.run_id)
            footprint = read_footprint(self._home.run(case.run_id), case.launch)
            case.basis = (case.memory, answer, now)
            case.memory, seen = weigh(case.claim, case.memory, answer, footprint, now)
            case.was_marked = footprint.mark is not None
            self._take(case, seen, now, is_fresh=answer.is_fresh)

    def _take(self, case: _Case, seen: Observation, now: float, *, is_fresh: bool) -> None:
        if is_fresh:
            case.fresh_at = now
        if seen.liveness is Liveness.GONE:
            case.ending = seen
            return
        held_s = max(_FRESH_S, 3 * self._pool.poll_s)
        if not is_fresh and case.fresh_at is not None and now - case.fresh_at < held_s:
            return
        case.seen = seen

    def _settle(self) -> bool:
        """Say GONE of those of which everything is here; whether any are still waited for."""
        with self._lock:
            ending = [case for case in self._cases.values() if case.ending is not None and not case.is_gone]
        for case in ending:
            is_complete = self._ferry.finish(case.run_id, case.launch)
            if is_complete:
                case.seen = self._inquiry.named(self._weigh_again(case))
            else:
                case.seen = Observation(
                    liveness=Liveness.ALIVE,
                    detail=f"Slurm job {case.claim.job} is over; its last files are being fetched",
                )
        return any(not case.is_gone for case in ending)

    def _weigh_again(self, case: _Case) -> Observation:
        """How it ended, now that all that it has left is here."""
        ending = case.ending or Observation(liveness=Liveness.UNKNOWN)
        if case.basis is None:
            return ending
        memory, answer, now = case.basis
        _, seen = weigh(case.claim, memory, answer, read_footprint(self._home.run(case.run_id), case.launch), now)
        return seen if seen.liveness is Liveness.GONE else ending

    def _has_hint(self) -> bool:
        """Whether a batch script has left word since, which the last poll has not seen."""
        with self._lock:
            cases = [case for case in self._cases.values() if not case.was_marked and case.ending is None]
        found = [case for case in cases if has_mark(self._home.run(case.run_id).launch(case.launch))]
        for case in found:
            case.was_marked = True
        return bool(found)

    # How often

    def _pause_s(self) -> float:
        regular_s = self._pool.poll_s
        inquiry = self._inquiry
        if isinstance(inquiry.trouble, AuthFailed):  # the session does not even try before it may
            return max(regular_s, _LOOK_S)
        if inquiry.trouble is not None:
            growing_s: float = max(regular_s, _QUICK_S) * 2.0 ** min(inquiry.failures - 1, 10)
            return min(_LONGEST_S, growing_s) * random.uniform(0.75, 1.0)  # noqa: S311
        least_s = min(_LONGEST_S, inquiry.took_s * _MOST_LOAD)
        return max(least_s, min(regular_s, _QUICK_S) if self._is_moving() else regular_s)

    def _is_moving(self) -> bool:
        """Whether something is about to become known of any job."""
        now = self._clock.monotonic()
        with self._lock:
            cases = list(self._cases.values())
        return any(_moves(case, now) for case in cases)


def _moves(case: _Case, now: float) -> bool:
    if case.ending is not None or case.is_gone:
        return False
    is_new = now - case.since < _NEW_FOR_S and (case.seen is None or case.seen.liveness is not Liveness.ALIVE)
    return is_new or case.memory.absent_since is not None or case.memory.ended_since is not None


def _key(handle: Handle) -> tuple[str, str]:
    return str(handle.data["job"]), str(handle.data["token"])


def _claim(handle: Handle) -> Claim:
    data = handle.data
    return Claim(
        job=str(data["job"]),
        token=parse_token(str(data["token"])),
        submitted=float(data["submitted"]),
        log=f"{data['job_dir']}/job.log",
    )
