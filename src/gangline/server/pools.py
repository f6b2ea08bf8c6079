"""What people ask of pools as such: what is configured, how it stands, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gangline.domain.errors import GanglineError, NotFound, nearest
from gangline.ports import Backend
from gangline.rundir.home import Home
from gangline.server.backends import Backends
from gangline.server.poolfile import PoolFile
from gangline.wire.pools import pool_to_mapping
from gangline.wire.views import FindingView, PoolDetail, PoolFileView, PoolView

__all__ = ["Pools"]


class Pools:
    """The verbs of `gangline pools` beyond listing. Safe for threads.

    Args:
        list_pools: every pool with what is free in it.
        poke: wakes the reconciler.
    """

    def __init__(
        self,
        *,
        home: Home,
        backends: Backends,
        list_pools: Callable[[], list[PoolView]],
        poke: Callable[[], None],
    ) -> None:
        self._home = home
        self._backends = backends
        self._file = PoolFile(home)
        self._list = list_pools
        self._poke = poke

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
            raise NotFound(f"There is no pool `{name}` any more", fix="`gangline pools` lists them.")
        pool = self._backends.pool(name)
        settings = {} if pool is None else pool_to_mapping(pool)
        return PoolDetail(**view, settings=settings, file=str(self._home.pools), login=list(backend.login_command()))

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

    def _find(self, name: str) -> Backend:
        self._backends.refresh()
        backend = self._backends.get(name)
        if backend is None:
            fix = self._backends.fault or nearest(name, self._backends)
            raise NotFound(f"There is no pool `{name}`", fix=fix)
        return backend
