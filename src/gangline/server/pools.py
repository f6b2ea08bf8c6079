"""What people ask of pools as such: what is configured, how it stands, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gangline.control.unserved import make_unserved
from gangline.domain.errors import GanglineError, NotFound
from gangline.domain.gang import Handle
from gangline.domain.pool import JobStanding, PoolJob, PoolStatus
from gangline.ports import Backend
from gangline.rundir.home import Home
from gangline.server.backends import Backends
from gangline.server.poolfile import PoolFile
from gangline.wire.pools import pool_to_mapping
from gangline.wire.views import FindingView, PoolDetail, PoolFileView, PoolJobView, PoolView

__all__ = ["Pools"]


class Pools:
    """The verbs of `gangline pools` beyond listing. Safe for threads.

    Args:
        list_pools: every pool with what is free in it.
        poke: wakes the reconciler.
        held: launches of a pool that the server counts on; see `ports.Backend.jobs`.
        note: adds a sentence to the history of a run, if there is such a run.
    """

    def __init__(
        self,
        *,
        home: Home,
        backends: Backends,
        list_pools: Callable[[], list[PoolView]],
        poke: Callable[[], None],
        held: Callable[[str], Mapping[tuple[str, int], Handle | None]] = lambda _: {},
        note: Callable[[str, str], None] = lambda _run, _text: None,
    ) -> None:
        self._home = home
        self._backends = backends
        self._file = PoolFile(home)
        self._list = list_pools
        self._poke = poke
        self._held = held
        self._note = note

    def file(self) -> PoolFileView:
        """What the server makes of `pools.yaml`."""
        self._backends.refresh()
        return PoolFileView(path=str(self._home.pools), fault=self._backends.fault)

    def show(self, name: str) -> PoolDetail:
        """One pool with its settings.

        Raises:
            NotFound: there is none.
        """
        backend = self._find(name)
        view = next((view for view in self._list() if view["name"] == name), None)
        if view is None:
            raise make_unserved(NotFound, name, self._backends, None)
        pool = self._backends.pool(name)
        settings = {} if pool is None else pool_to_mapping(pool)
        return PoolDetail(**view, settings=settings, file=str(self._home.pools), login=list(backend.login_command()))

    def trouble(self, name: str) -> str:
        """Why a pool cannot be reached now; "" where it can, as far as is known."""
        backend = self._backends.get(name)
        if backend is None:
            return ""
        state = backend.state()
        return "" if state.status in {PoolStatus.READY, PoolStatus.REMOVED} else state.brief or state.text

    def add(self, name: str, settings: Mapping[str, Any]) -> PoolDetail:
        """Configure one more pool, and serve it.

        Raises:
            SpecInvalid, Conflict: it cannot be; nothing was written.
            GanglineError: it was written, and no backend can be made from it.
        """
        pool = self._file.add(name, settings)
        self._backends.refresh()
        if self._backends.pool(name) != pool:
            raise GanglineError(
                f"Pool `{name}` was written into {self._home.pools}, but is not served", why=self._backends.fault
            )
        self._poke()
        return self.show(name)

    def remove(self, name: str) -> PoolFileView:
        """Take a pool out of the file; it serves the runs that it has.

        Raises:
            NotFound, SpecInvalid: the file has no such pool, or an error.
        """
        self._file.remove(name)
        self._poke()
        return self.file()

    def examine(self, name: str, *, deep: bool) -> list[FindingView]:
        """Look at everything that a pool needs.

        Raises:
            NotFound: there is none.
        """
        found = self._find(name).examine(deep=deep)
        self._poke()
        return [FindingView(check=one.check, verdict=one.verdict.value, text=one.text, fix=one.fix) for one in found]

    def jobs(self, name: str, *, quiet_s: float, end_zombies: bool = False) -> list[PoolJobView]:
        """What a pool's own queue holds for this server; zombies are ended if asked.

        Raises:
            NotFound: there is no such pool.
            Transient, AuthFailed: the pool gives no answer.
        """
        backend, held = self._find(name), self._held(name)
        views = []
        for job in backend.jobs(held, quiet_s=quiet_s):
            is_ended = end_zombies and job.is_zombie
            if is_ended:
                self._end(backend, job, held.get((job.run_id, job.launch)))
            views.append(_job_view(job, ended=is_ended))
        if end_zombies:
            self._poke()
        return views

    def _end(self, backend: Backend, job: PoolJob, handle: Handle | None) -> None:
        """A job that a run counts on ends as after any other loss; one that none counts on just ends."""
        if job.standing is JobStanding.IDLE and handle is not None:
            backend.cancel(handle)
        else:
            backend.end_job(job)
        self._note(job.run_id, f"Job {job.job} was ended by hand: {job.text}.")

    def _find(self, name: str) -> Backend:
        self._backends.refresh()
        backend = self._backends.get(name)
        if backend is None:
            raise make_unserved(NotFound, name, self._backends, self._backends.fault_of(name))
        return backend


def _job_view(job: PoolJob, *, ended: bool) -> PoolJobView:
    return PoolJobView(
        job=job.job,
        state=job.state,
        run=job.run_id,
        launch=job.launch,
        since=job.since,
        nodes=job.nodes,
        standing=job.standing.value,
        text=job.text,
        fix="" if ended else job.fix,
        ended=ended,
    )
