"""The follow stream: output and events of a run as lines of JSON, until it is over.

It holds no thread while nothing happens.
"""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from starlette.concurrency import run_in_threadpool

from gangline.domain.phase import TERMINAL, Phase
from gangline.server.answers import encode
from gangline.server.logs import GangLogFollower
from gangline.server.parts import Stopping
from gangline.wire.views import EventView, RunSummary

__all__ = ["RunFollower", "follow_lines"]

_POLL_S = 0.05
_BUSY_PAUSE_S = 0.01
_FLOW_PAUSE_S = 0.12
_FLOW_BYTES = 1 << 15
"""Where so much comes at once, looking less often costs less and shows the same."""
_ALIVE_S = 5.0
"""After this long without news an empty line says that the server lives."""
_LOOK_S = 0.1
"""How often the store is asked; logs are looked at more often."""


class _Runs(Protocol):
    """The part of `Commands` that a follower needs."""

    def summary(self, run_id: str) -> RunSummary: ...
    def events(self, run_id: str, *, after: int = -1) -> list[EventView]: ...


@dataclass(slots=True, kw_only=True)
class RunFollower:
    """One reader's place in a run."""

    run_id: str
    runs: _Runs
    logs: GangLogFollower
    after: int
    """`seq` of the last event that the reader has."""
    clock: Callable[[], float] = time.monotonic
    ended: bool = False
    _seen: RunSummary | None = None
    _looked: float = float("-inf")

    def poll(self) -> tuple[bytes, bool]:
        """Lines with all that is new, up to about 1 MiB; and whether there may be more at once.

        The order makes the end safe: first whether the run is over, then its events, then its logs. That an attempt
        starts is told before what its ranks write, although the store learns of it a moment later than the disk.
        """
        fresh = self.clock() - self._looked >= _LOOK_S
        lines = list(self._look()) if fresh else []
        seen = self._seen
        over = seen is not None and Phase(seen["phase"]) in TERMINAL
        begun = -1 if seen is None or seen["attempt"] is None else seen["attempt"]
        pieces, all_read = self.logs.poll(run_over=over, up_to=math.inf if over else begun)
        lines += map(encode, pieces)
        if over and all_read:
            lines.append(encode({"end": seen}))
            self.ended = True
        return b"".join(line + b"\n" for line in lines), not all_read

    def _look(self) -> Iterator[bytes]:
        self._seen = self.runs.summary(self.run_id)
        self._looked = self.clock()
        for event in self.runs.events(self.run_id, after=self.after):
            self.after = event["seq"]
            yield encode({"event": event})


async def follow_lines(follower: RunFollower, stopping: Stopping) -> AsyncIterator[bytes]:
    """The body of the stream; it breaks off when the server stops, and a client then asks again."""
    silent_s = 0.0
    while not follower.ended:
        lines, more = await run_in_threadpool(follower.poll)
        pause_s = _POLL_S if len(lines) < _FLOW_BYTES else _FLOW_PAUSE_S
        pause_s = _BUSY_PAUSE_S if more else pause_s
        silent_s = 0.0 if lines else silent_s + pause_s
        if silent_s >= _ALIVE_S:
            lines, silent_s = b"\n", 0.0
        if lines:
            yield lines
        if not follower.ended and not await stopping.pause(pause_s):
            return
