"""How long a run goes on that somebody has to want: its leader counts, so that it works while the server is away.

Only time in which this machine ran counts. After a pause of the whole machine, as of a laptop that was closed, whoever
renews was paused as well, and gets the whole lease again. Standard library only.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from gangline.agent.loop import Loop

__all__ = ["Lease"]

_LONGEST_LOOK_S = 1.0
_PAUSE_S = 5.0
"""A longer time between two looks, by either clock, was a pause of the machine or of this agent."""


class Lease:
    """Ends once, when nobody has renewed it for its length.

    Args:
        length_s: None: there is none, and nothing is counted.
        on_ended: called once.
        clock: monotonic seconds, which may stand still while a machine sleeps.
        wall: seconds of the wall clock, which does not.
    """

    def __init__(
        self,
        length_s: float | None,
        *,
        on_ended: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._length_s = length_s
        self._on_ended = on_ended
        self._clock = clock
        self._wall = wall
        self._silent_s = 0.0
        self._looked = (clock(), wall())
        self._has_ended = False

    def begin(self, loop: Loop) -> None:
        """Count from now on."""
        if self._length_s is not None:
            self._looked = (self._clock(), self._wall())
            loop.every(min(_LONGEST_LOOK_S, self._length_s / 10), self.look)

    def renew(self) -> None:
        """Somebody still wants the run."""
        self._silent_s = 0.0

    def look(self) -> None:
        """Count the time since the last look."""
        now, before = (self._clock(), self._wall()), self._looked
        self._looked = now
        turn_s = now[0] - before[0]
        is_pause = max(turn_s, now[1] - before[1]) > _PAUSE_S
        self._silent_s = 0.0 if is_pause else self._silent_s + turn_s
        if self._length_s is not None and self._silent_s >= self._length_s and not self._has_ended:
            self._has_ended = True
            self._on_ended()
