"""The pools of a server: its own machine, and those of `pools.yaml` as the file is now.

Backends come by their entry points (`gangline.backends`): `local` is made from the state folder, each other one from
that and its pool. One that does not load is logged and told of; the others serve.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Collection, ItemsView, Iterable, Iterator, Mapping
from importlib.metadata import entry_points
from typing import Any, cast

from gangline.domain.errors import GanglineError, SpecInvalid
from gangline.domain.naming import LOCAL
from gangline.domain.pool import Pool, PoolState, PoolStatus
from gangline.ports import Backend
from gangline.rundir.files import Unreadable, read_json, write_text
from gangline.rundir.home import Home
from gangline.wire.pools import backend_of, pool_from_mapping, pool_to_mapping, read_pools

__all__ = ["Backends", "find_factories"]

_GROUP = "gangline.backends"
_LOOK_S = 0.5
"""How often the file is looked at, at most."""
_log = logging.getLogger(__name__)

Factory = Callable[..., Backend]


def find_factories() -> dict[str, Callable[[], Factory]]:
    """What loads the factory of each backend that is installed."""
    return {entry.name: entry.load for entry in entry_points(group=_GROUP)}


class Backends(Mapping[str, Backend]):
    """Backends by the names of their pools; a live mapping. Safe for threads.

    A file that cannot be understood changes nothing but `fault`, and a pool that it describes wrongly stays as it was,
    if there was one; the others follow the file. A pool that is taken out of it while it has runs
    serves them until they are over, also over a restart of the server: `pools.known.json` keeps what it is.

    Args:
        factories: see `find_factories`.
        monotonic: for tests.
    """

    def __init__(
        self,
        home: Home,
        *,
        factories: Mapping[str, Callable[[], Factory]] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._home = home
        self._factories = find_factories() if factories is None else factories
        self._monotonic = monotonic
        self._lock = threading.RLock()
        self._in_use: Callable[[], Collection[str]] | None = None
        self._served: dict[str, Backend] = {}
        self._pools: dict[str, Pool] = {}
        """What each backend but `local` was made from, those that are gone from the file included."""
        self._failed: dict[str, Pool] = {}
        """What no backend could be made from."""
        self._wanted: dict[str, Pool] = {}
        """The file as it was last understood."""
        self._left = self._known()
        """What an earlier server had, and was not asked yet whether it still has runs."""
        self._mark: object = None
        self._look_at = float("-inf")
        self._file_fault: SpecInvalid | None = None
        """What is wrong with the file as such."""
        self._file_faults: Mapping[str, SpecInvalid] = {}
        """What is wrong with what it says of a pool."""
        self._faults: dict[str, GanglineError] = {}
        """Why a pool is not served as the file has it, although the file is right."""
        self._begin()

    # mapping

    def __getitem__(self, name: str) -> Backend:
        if name not in self._now():
            self.refresh()  # somebody has just written the file, perhaps
        return self._now()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._now())

    def __len__(self) -> int:
        return len(self._now())

    def items(self) -> ItemsView[str, Backend]:
        """Of one moment: what changes meanwhile changes nothing in it."""
        return self._now().items()

    # what people see

    @property
    def fault(self) -> str:
        """What is wrong with the file or with pools of it; "" where nothing is."""
        with self._lock:
            found = [f"{self._file_fault} The pools stay as they were."] if self._file_fault else []
            found += [self._tell(name, fault) for name, fault in self._file_faults.items()]
            return " ".join([*found, *map(str, self._faults.values())])

    def _tell(self, name: str, fault: SpecInvalid) -> str:
        return f"{fault} Pool `{name}` " + ("stays as it was." if name in self._served else "is not served.")

    def fault_of(self, name: str) -> GanglineError | None:
        """Why a pool is not there, or not as the file has it, as far as the file is to blame."""
        self._now()
        with self._lock:
            return self._faults.get(name) or self._file_faults.get(name) or self._file_fault

    def pool(self, name: str) -> Pool | None:
        """What a pool was made from; None for `local` and what there is not."""
        self._now()
        return self._pools.get(name)

    # change

    def watch(self, in_use: Callable[[], Collection[str]]) -> None:
        """Ask from now on which pools still have runs, so that those that nobody needs can go.

        Args:
            in_use: names of pools with runs that are not over.
        """
        with self._lock:
            self._in_use = in_use
            self._retire_unknown()
            self.refresh()

    def refresh(self) -> None:
        """Take in the file now."""
        with self._lock:
            self._look_at = float("-inf")
        self._now()

    def close(self) -> None:
        """Let go of all backends; launches go on."""
        with self._lock:
            served = list(self._served.values())
        for backend in served:
            _close(backend)

    def _now(self) -> dict[str, Backend]:
        """What is served now; never changed once it is given out."""
        with self._lock:
            if self._monotonic() >= self._look_at:
                self._look_at = self._monotonic() + _LOOK_S
                if self._read() or self._is_unsettled():
                    self._settle()
            return self._served

    def _begin(self) -> None:
        """`local`, and the pools of the file; those that were known last, where the file cannot be understood."""
        with self._lock:
            load = self._factories.get(LOCAL)
            if load is not None:
                try:
                    self._served = {LOCAL: load()(self._home)}
                except Exception:  # noqa: BLE001 - it is of a third party, and recorded
                    _log.exception("backend %s cannot be used", LOCAL)
            self._read()
            if self._file_fault:
                self._wanted = dict(self._left)
            self._settle()

    def _read(self) -> bool:
        """Look at the file; True where it says something else than before."""
        mark = _mark(self._home)
        if mark == self._mark:
            return False
        self._mark = mark
        try:
            found = read_pools(self._home.pools)
        except SpecInvalid as error:
            self._file_fault, self._file_faults = error, {}
            _log.error("%s is not understood, all stays as it was: %s", self._home.pools, error)
            return False
        for name, fault in found.faults.items():
            _log.error("what %s says of pool %s is not understood: %s", self._home.pools, name, fault)
        before = {**self._left, **self._pools}
        stay = {name: before[name] for name in found.faults if name in before}
        self._wanted, self._file_fault, self._file_faults = {**found.pools, **stay}, None, found.faults
        return True

    def _is_unsettled(self) -> bool:
        return self._in_use is not None and {**self._failed, **self._pools} != self._wanted

    def _used(self) -> Collection[str]:
        """Pools with runs; all, where that cannot be told."""
        if self._in_use is None:
            return self._pools.keys()
        try:
            return self._in_use()
        except Exception:  # noqa: BLE001 - recorded; nothing is let go
            _log.exception("which pools have runs cannot be told")
            return self._pools.keys()

    def _settle(self) -> None:
        """Bring what is served to what is wanted, as far as runs allow."""
        used, before = self._used(), dict(self._pools)
        served, gone = dict(self._served), list[Backend]()
        for name in [name for name in {**self._faults, **self._failed} if name not in self._wanted]:
            self._faults.pop(name, None)
            self._failed.pop(name, None)
        for name, pool in self._wanted.items():
            gone += self._bring(name, pool, served, used)
        for name in [name for name in self._pools if name not in self._wanted]:
            if name in used:
                served[name] = _retire(served[name])
            else:
                gone.append(served.pop(name))
                del self._pools[name]
                _log.info("pool %s is gone", name)
        self._served = served
        if self._pools != before:
            self._keep_known()
        for backend in gone:
            threading.Thread(target=_close, args=(backend,), name="close-pool", daemon=True).start()

    def _bring(self, name: str, pool: Pool, served: dict[str, Backend], used: Collection[str]) -> Iterable[Backend]:
        """Serve one pool as the file describes it, if it can be; the backend that it had before, to be closed."""
        old, was = self._pools.get(name), served.get(name)
        if self._failed.get(name) == pool:
            return ()
        self._faults.pop(name, None)
        if old == pool and was is not None:
            served[name] = was.backend if isinstance(was, _Retired) else was
            return ()
        if old is not None and old.place != pool.place and name in used:
            self._faults[name] = _stays(name, old, pool)
            return ()
        made = self._make(pool)
        if made is None:
            return ()
        served[name], self._pools[name] = made, pool
        return () if was is None else (was,)

    def _make(self, pool: Pool) -> Backend | None:
        self._failed.pop(pool.name, None)
        kind = backend_of(pool)
        load = self._factories.get(kind)
        try:
            if load is None:
                raise GanglineError(f"There is no backend `{kind}` in this installation")  # noqa: TRY301 - one way out
            made = load()(self._home, pool)
        except Exception as error:  # noqa: BLE001 - recorded, and told of
            _log.exception("pool %s cannot be used", pool.name)
            self._faults[pool.name] = GanglineError(f"Pool `{pool.name}` cannot be used: {error}")
            self._failed[pool.name] = pool
            return None
        _log.info("pool %s is served", pool.name)
        return made

    def _retire_unknown(self) -> None:
        """Pools that were taken out of the file while no server ran, and still have runs."""
        used = self._used()
        left, self._left = self._left, {}
        for name, pool in left.items():
            if name in used and name not in self._pools:
                made = self._make(pool)
                if made is not None:
                    self._served = {**self._served, name: _retire(made)}
                    self._pools[name] = pool
        if left:
            self._keep_known()

    def _known(self) -> dict[str, Pool]:
        try:
            raw = read_json(self._home.known_pools) or {}
            return {name: pool_from_mapping(name, keys) for name, keys in raw.get("pools", {}).items()}
        except (Unreadable, OSError, SpecInvalid, AttributeError):
            _log.warning("%s cannot be read", self._home.known_pools)
            return {}

    def _keep_known(self) -> None:
        pools: dict[str, Any] = {name: pool_to_mapping(pool) for name, pool in {**self._left, **self._pools}.items()}
        try:
            write_text(self._home.known_pools, json.dumps({"version": 1, "pools": pools}, indent=1) + "\n", mode=0o600)
        except OSError:
            _log.exception("%s cannot be written", self._home.known_pools)


class _Retired:
    """A backend whose pool is configured no more: it does what it did, and says so."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    def state(self) -> PoolState:
        text = "It is in pools.yaml no more; it takes no new runs, and is gone when those that it has are over."
        return PoolState(status=PoolStatus.REMOVED, text=text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backend, name)


def _retire(backend: Backend) -> Backend:
    return backend if isinstance(backend, _Retired) else cast("Backend", _Retired(backend))


def _close(backend: Backend) -> None:
    try:
        backend.close()
    except Exception:  # noqa: BLE001 - recorded, and of no use any more
        _log.exception("backend %s could not be closed", backend.name)


def _mark(home: Home) -> object:
    """What changes when somebody writes the file."""
    try:
        stat = home.pools.stat()
    except OSError:
        return "missing"
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


def _stays(name: str, old: Pool, new: Pool) -> GanglineError:
    return GanglineError(
        f"Pool `{name}` stays at {old.place} while it has runs there; {new.place} is taken when they are over",
        fix="For the new one at once, give the pool another name.",
    )
