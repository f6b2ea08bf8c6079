"""The follow stream: output and events of a run as lines of JSON, until it is over.

It holds no thread while nothing happens.
"""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
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


_WAIT_S = 1.0
"""A run that gets its place sooner is not said to wait."""
_FIRST_WAIT_PAUSE_S = 5.0
_LONGEST_WAIT_PAUSE_S = 300.0
"""Between two sentences on why a run waits; a cluster's estimates change all the time."""


@dataclass(slots=True)
class _Wait:
    """What the reader was told of why the run waits."""

    since: float | None = None
    told: str = ""
    may_tell: float = 0.0
    pause_s: float = _FIRST_WAIT_PAUSE_S

    def news(self, run: RunSummary, now: float) -> str:
        """A sentence that the reader does not have; "" where there is none, or it is too soon for it."""
        if run["phase"] != Phase.QUEUED.value:
            self.since = None
            return ""
        if self.since is None:
            self.since, self.may_tell = now, now + _WAIT_S
        if now < self.may_tell or run["message"] in {"", self.told}:
            return ""
        self.told, self.may_tell = run["message"], now + self.pause_s
        self.pause_s = min(2 * self.pause_s, _LONGEST_WAIT_PAUSE_S)
        return self.told


class _Runs(Protocol):
    """The part of `Commands` that a follower needs."""

    def summary(self, run_id: str) -> RunSummary: ...
    def events(self, run_id: str, *, after: int = -1) -> list[EventView]: ...
    def version(self) -> object: ...


@dataclass(slots=True, kw_only=True)
class RunFollower:
    """One reader's place in a run."""

    run_id: str
    runs: _Runs
    logs: GangLogFollower
    after: int
    """`seq` of the last event that the reader has."""
    trouble: Callable[[], str] = lambda: ""
    """Why the server cannot do its work just now; "" while it can."""
    clock: Callable[[], float] = time.monotonic
    ended: bool = False
    _seen: RunSummary | None = None
    _version: object = None
    """Of all that is known of runs, as it was before it was looked at last."""
    _looked: float = float("-inf")
    _trouble: str = ""
    _wait: _Wait = field(default_factory=_Wait)

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
        version, self._looked = self.runs.version(), self.clock()
        seen = self._seen
        if seen is None or version != self._version:
            seen = self.runs.summary(self.run_id)
            for event in self.runs.events(self.run_id, after=self.after):
                self.after = event["seq"]
                yield encode({"event": event})
            self._seen, self._version = seen, version
        told, self._trouble = self._trouble, self.trouble()
        if self._trouble and self._trouble != told:
            yield encode({"waits": self._trouble})
        waits = self._wait.news(seen, self._looked)
        if waits:
            yield encode({"waits": waits})


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
