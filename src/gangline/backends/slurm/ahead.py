"""Jobs that wait in Slurm for the end of those before them, so that a run goes on where its time was not enough.

Such a job bears the token of the launch after the one at work, and has its scripts, but no `launch.json`: its agents
wait for that. What is there is noted in the state folder before Slurm is asked, by pool and run, so that it is known
whatever becomes of the server or of the run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from threading import RLock
from typing import Protocol

from gangline.backends.slurm.link import Link
from gangline.backends.slurm.lookup import live_jobs
from gangline.backends.slurm.submission import Unsure
from gangline.backends.slurm.tokens import Token, job_name
from gangline.domain.errors import BackendError, Transient
from gangline.domain.gang import GangSpec, Handle, Launch
from gangline.domain.pool import SlurmPool, WaitIn
from gangline.ports import Queued
from gangline.rundir.files import Unreadable, read_json, write_json
from gangline.rundir.home import Home

__all__ = ["Maker", "SlurmAhead", "let_settle"]

_SETTLE_S = 30.0
"""How long a request whose answer was lost may still make a job; no second one is made before."""
_SCANCEL_S = 60.0


class Maker(Protocol):
    """What makes jobs of launches, and knows where they are."""

    def render(self, gang: GangSpec) -> Launch:
        """The launch as it is submitted when it is needed at once."""
        ...

    def make_after(self, gang: GangSpec, job: str, *, noted: Callable[[], None]) -> str:
        """Have Slurm take a job that waits for another one; its id.

        Args:
            noted: called when `sbatch` may have been called from now on.
        """
        ...

    def token(self, gang: GangSpec) -> Token:
        """What its job bears."""
        ...

    def run_dir(self, run_id: str) -> str:
        """The run directory on the cluster."""
        ...

    def may_have_started(self, run_id: str, launch: int) -> bool:
        """See `ports.Backend.may_have_started`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Note:
    """One job that waits, or may."""

    token: Token
    tried: float
    digest: str
    """Of the scripts as they would be submitted when they are needed."""
    job: str = ""
    """"": Slurm has not said."""


class SlurmAhead:
    """Implements `gangline.ports.Ahead`.

    Args:
        making: held by whoever makes jobs in the pool, or takes them back.
        wall: seconds since the epoch.
    """

    def __init__(
        self, pool: SlurmPool, home: Home, link: Link, maker: Maker, *, making: RLock, wall: Callable[[], float]
    ) -> None:
        self._pool, self._home, self._link, self._maker = pool, home, link, maker
        self._making, self._wall = making, wall
        self._folder = Path(home.path, "ahead", pool.name)

    @property
    def lead_s(self) -> float:
        """See `ports.Ahead.lead_s`; a pool whose runs wait in Gangline has none that wait in Slurm."""
        return self._pool.ahead_s if self._pool.wait_in is WaitIn.SLURM else 0.0

    def queued(self) -> Mapping[str, Queued]:
        """What is noted, by run."""
        try:
            names = [path.stem for path in self._folder.iterdir() if path.suffix == ".json"]
        except FileNotFoundError:
            return {}
        notes = [note for name in names if (note := self._read(name)) is not None]
        return {note.token.run_id: Queued(launch=note.token.launch, job=note.job) for note in notes}

    def queue(self, gang: GangSpec, *, after: Handle) -> str:
        """See `ports.Ahead.queue`."""
        with self._making:
            return self._queue(gang, after)

    def _queue(self, gang: GangSpec, after: Handle) -> str:
        if self._maker.may_have_started(gang.run_id, gang.launch):
            return ""
        note = self._read(gang.run_id)
        if note is not None and note.token.launch != gang.launch:
            self._take_back(note)
        elif note is not None:
            note = self._found(note)
            if note.job:
                return note.job
            let_settle(note.tried, self._wall())
        note = _Note(token=self._maker.token(gang), tried=self._wall(), digest=_digest(self._maker.render(gang)))
        try:
            job = self._maker.make_after(gang, after.data["job"], noted=lambda: self._write(note))
        except BackendError as error:
            if not isinstance(error, Unsure):
                self.forget(gang.run_id)
            raise
        self._write(replace(note, job=job))
        return job

    def withdraw(self, run_id: str) -> None:
        """See `ports.Ahead.withdraw`."""
        with self._making:
            note = self._read(run_id)
            if note is not None:
                self._take_back(note)

    def take_over(self, launch: Launch) -> tuple[str, float] | None:
        """The job that waits for this very launch, and when it was made; None: there is none, or it is gone now."""
        note = self._read(launch.gang.run_id)
        if note is None:
            return None
        if note.token.launch == launch.gang.launch:
            note = self._found(note)
            live = self._live(note)
            if live and note.digest == _digest(launch):
                return live[0], note.tried
            if not note.job:
                let_settle(note.tried, self._wall())
        self._take_back(note)
        return None

    def holds(self, gang: GangSpec) -> bool:
        """Whether a job is noted for this very launch."""
        note = self._read(gang.run_id)
        return note is not None and note.token.launch == gang.launch

    def forget(self, run_id: str) -> None:
        """The job is known by other means from now on, or there is none."""
        self._path(run_id).unlink(missing_ok=True)

    def taken_back(self, run_id: str, launch: int) -> frozenset[str]:
        """Jobs that bear the token of a launch, and have never begun it."""
        raw = read_json(self._withdrawn(run_id, launch)) or {}
        return frozenset(raw.get("jobs") or ())

    def _found(self, note: _Note) -> _Note:
        """With the job that Slurm has made without saying so, if there is one."""
        live = [] if note.job else self._live(note)
        if live:
            note = replace(note, job=live[0])
            self._write(note)
        return note

    def _take_back(self, note: _Note) -> None:
        """Have none of it in Slurm's queue any more.

        Raises:
            Transient: it is not sure that this is so.
        """
        note = self._found(note)
        name = job_name(note.token.run_id, note.token.launch)
        for job in self._live(note):
            self._link.run(("scancel", f"--name={name}", job), timeout_s=_SCANCEL_S)
        left = self._live(note)
        if left:
            raise Transient(f"Slurm job {left[0]} of a run that does not need it is not cancelled yet")
        if not note.job:
            let_settle(note.tried, self._wall())
        else:
            self._pass_over(note)
        self.forget(note.token.run_id)

    def _live(self, note: _Note) -> list[str]:
        return live_jobs(self._link, note.token, run_dir=self._maker.run_dir(note.token.run_id))

    def _pass_over(self, note: _Note) -> None:
        run_id, launch = note.token.run_id, note.token.launch
        if self._home.run(run_id).spec.exists():  # else it was removed, and nobody will look for its jobs
            jobs = sorted({*self.taken_back(run_id, launch), note.job})
            write_json(self._withdrawn(run_id, launch), {"version": 1, "jobs": jobs})

    def _withdrawn(self, run_id: str, launch: int) -> Path:
        return self._home.run(run_id).launch(launch).path / "withdrawn.json"

    def _path(self, run_id: str) -> Path:
        return self._folder / f"{run_id}.json"

    def _read(self, run_id: str) -> _Note | None:
        try:
            raw = read_json(self._path(run_id))
        except Unreadable:
            return None
        if raw is None:
            return None
        token = Token(home=raw["home"], run_id=raw["run"], launch=raw["launch"])
        return _Note(token=token, tried=raw["tried"], digest=raw["digest"], job=raw["job"])

    def _write(self, note: _Note) -> None:
        token = note.token
        known = {"home": token.home, "run": token.run_id, "launch": token.launch}
        self._folder.mkdir(parents=True, exist_ok=True)
        raw = {"version": 1, **known, "tried": note.tried, "digest": note.digest, "job": note.job}
        write_json(self._path(token.run_id), raw, durable=True)


def let_settle(tried: float, now: float) -> None:
    """Slurm may still work on a request that nobody heard the answer of.

    Raises:
        Transient: not enough time has passed since.
    """
    left_s = tried + _SETTLE_S - now
    if 0 < left_s <= _SETTLE_S:
        why = "The job was not found so far, and may still appear"
        raise Transient(f"Slurm did not say whether it took the job; asked again in {left_s:.0f} s at most", why=why)


def _digest(launch: Launch) -> str:
    return hashlib.sha256("\0".join(text for _, text in sorted(launch.files.items())).encode()).hexdigest()
