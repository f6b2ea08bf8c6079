"""What the routes work with; put together in `server/main.py`, and from fakes in tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Event
from typing import TYPE_CHECKING

from gangline.rundir.home import Home
from gangline.snapshot.objects import ObjectStore

if TYPE_CHECKING:
    from gangline.control.commands import Commands
    from gangline.server.pools import Pools

__all__ = ["Parts", "Stopping"]


@dataclass(slots=True)
class Stopping:
    """Ends the server, soon after `begin`, and says so to everything that runs long. Gangs are not touched."""

    on_begin: Callable[[], None] = lambda: None
    """Called as it begins: takes down the sign, so that no new caller comes in."""
    _set: Event = field(default_factory=Event)
    _loop: asyncio.AbstractEventLoop | None = None
    _waiting: set[asyncio.Future[None]] = field(default_factory=set)

    def begin(self) -> None:
        """End the server; safe from any thread and signal handler, and to repeat."""
        self.on_begin()
        self._set.set()
        if self._loop is not None:
            with suppress(RuntimeError):  # closed: nobody waits any more
                self._loop.call_soon_threadsafe(self._wake)

    def begun(self) -> bool:
        return self._set.is_set()

    async def pause(self, delay_s: float) -> bool:
        """Wait; False as soon as the server is about to end. Costs one wake-up, however long it waits."""
        self._loop = asyncio.get_running_loop()
        waiting = self._loop.create_future()
        self._waiting.add(waiting)
        try:
            if not self._set.is_set():  # from here on `begin` wakes us
                await asyncio.wait((waiting,), timeout=delay_s)
        finally:
            self._waiting.discard(waiting)
        return not self._set.is_set()

    def _wake(self) -> None:
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The server's insides, as its routes see them."""

    commands: Commands
    pools: Pools
    objects: ObjectStore
    home: Home
    started: float
    stopping: Stopping
    owner: str
    """Who steers runs through the one token that there is."""
    warnings: tuple[str, ...] = ()
    """What people should know of how this server began."""
    trouble: Callable[[], str] = lambda: ""
    """Why nothing that the server decides can be stored, or looked at, just now; "" while all is well."""
