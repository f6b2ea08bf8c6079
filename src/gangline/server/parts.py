"""What the routes work with; put together in `server/main.py`, and from fakes in tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
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

    def begin(self) -> None:
        """End the server; safe from any thread and signal handler, and to repeat."""
        self.on_begin()
        self._set.set()

    def begun(self) -> bool:
        return self._set.is_set()

    async def pause(self, delay_s: float) -> bool:
        """Wait; False as soon as the server is about to end (noticed within 50 ms)."""
        step_s = 0.05
        while delay_s > 0 and not self._set.is_set():
            await asyncio.sleep(min(step_s, delay_s))
            delay_s -= step_s
        return not self._set.is_set()


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
