"""What the reconciler has seen of one run since the server started. It spaces things out; a new server does without."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gangline.control.facts import ALONE_PATIENCE_S, find_cut_off
from gangline.control.ingest import Follower, Found, Ingested
from gangline.domain.gang import Liveness, Observation
from gangline.domain.phase import TERMINAL
from gangline.store.rows import AttemptRow, RunRow

__all__ = ["Watch", "has_passed"]

_FULL_READ_S = 1.0
"""How often metrics are read, and the files of a mirror that seems to stand still: often enough for charts, and a
transaction for each new line would cost more than all else that the server does."""
_QUIET_READ_S = 5.0
"""The same of a launch that waits for its machines."""
_LONGEST_TURN_S = 2.0
"""Of a longer pause between two looks, as of a server that was stopped, no more than this counts as silence."""
_LONGEST_TURN_OF_MIRROR_S = 15.0


@dataclass(slots=True)
class Watch:
    """One run."""

    follower: Follower
    is_far: bool = False
    """The run directory is a mirror."""
    launch: int = 0
    times_gone: int = 0
    was_alive: bool = False
    unknown_since: float | None = None
    over_since: float | None = None
    """When the launch was first seen to have come to its end."""
    cut_since: float | None = None
    """When an attempt was first seen to be cut off."""
    read: float = float("-inf")
    read_fully: float = float("-inf")
    read_mirrored: float | None = None
    known: Ingested | None = None
    """What the last reading found; None: read again."""
    cancelled: float | None = None
    asked: float | None = None
    told_end: float | None = None
    """What the agents were told of the end of their time."""
    retry_at: float = 0.0
    tries: int = 0
    said: dict[str, float] = field(default_factory=dict)
    sign: int | None = None
    """When the leader last touched its sign of life, by the clock of its machine."""
    silent_s: float = 0.0
    is_alone: bool = False
    """All agents but the leader's were gone when the backend last saw the launch alive."""
    looked: float | None = None

    def begin(self, launch: int) -> None:
        """Another launch: what was seen of the one before says nothing of it."""
        if launch != self.launch:
            self.launch, self.cancelled, self.sign, self.silent_s = launch, None, None, 0.0
            self.told_end, self.over_since, self.is_alone = None, None, False
            self.was_alive, self.cut_since, self.times_gone = False, None, 0

    def listen(self, alive: Path, observation: Observation | None, now: float) -> None:
        """Look for the leader's sign of life. Where there is none, nobody is waited for.

        In a mirror, only time for which the mirror is known to be complete counts as silence.
        """
        upto, most_s = now, _LONGEST_TURN_S
        if self.is_far:
            if observation is None or observation.mirrored is None or observation.liveness is Liveness.UNKNOWN:
                return
            upto, most_s = observation.mirrored, _LONGEST_TURN_OF_MIRROR_S
        turn_s = 0.0 if self.looked is None else min(max(0.0, upto - self.looked), most_s)
        self.looked = upto
        try:
            sign = alive.stat().st_mtime_ns
        except OSError:
            return
        self.silent_s = self.silent_s + turn_s if sign == self.sign else 0.0
        self.sign = sign

    def patience_s(self, observation: Observation | None, *, nodes: int, most_s: float) -> float:
        """How long the leader may be silent: peers that have left it say more than a file that is not touched."""
        if observation is not None and observation.liveness is Liveness.ALIVE:
            self.is_alone = len(observation.lost_nodes) >= nodes - 1 > 0
        return min(most_s, ALONE_PATIENCE_S) if self.is_alone else most_s

    def see(self, observation: Observation | None, now: float) -> None:
        """Take in one answer of the backend."""
        liveness = None if observation is None else observation.liveness
        self.times_gone = self.times_gone + 1 if liveness is Liveness.GONE else 0
        self.was_alive = self.was_alive or liveness is Liveness.ALIVE
        if liveness is not Liveness.UNKNOWN:
            self.unknown_since = None
        elif self.unknown_since is None:
            self.unknown_since = now

    def over_for_s(self, run: RunRow, attempts: Sequence[AttemptRow], now: float) -> float:
        """How long it has been known here that the launch has come to its end.

        Args:
            attempts: of the launch.
        """
        if run.phase not in TERMINAL and not (attempts and attempts[-1].next in {"end", "relaunch"}):
            self.over_since = None
            return 0.0
        if self.over_since is None:
            self.over_since = now
        return now - self.over_since

    def look(self, run: RunRow, observation: Observation | None, now: float) -> Found | Ingested:
        """What the files say that is not stored yet, or what is known where they can say nothing new.

        Of what is found, `keep` has to be told. Journals and results are read at each look, metrics now and then.

        Raises:
            OSError: a file is there but cannot be read.
        """
        everything = run.unread or self.times_gone > 0 or has_passed(self.read_fully, _FULL_READ_S, now)
        if self.known is not None and not self._is_due(run, observation, now):
            return self.known
        if self.known is not None and not everything and not self.follower.has_changed():
            return self.known
        found = self.follower.look(run, everything=everything, now=now)
        self.known = None
        self.read = now
        self.read_mirrored = None if observation is None else observation.mirrored
        if everything:
            self.read_fully = now
        return found

    def keep(self, found: Found, *, is_stored: bool) -> Ingested:
        """What is known now that this was stored, or not, as somebody else has been faster."""
        kept = self.follower.keep(found, is_stored=is_stored)
        self.known = kept if kept.is_drained else None
        return kept

    def forget(self) -> None:
        """Attempts were changed: read and load anew next time."""
        self.known = None
        self.follower.forget()

    def cut_off(
        self, attempts: Sequence[AttemptRow], observation: Observation | None, *, patience_s: float, now: float
    ) -> AttemptRow | None:
        """The attempt that was cut off by its backend, once no result of it can be on its way any more.

        Args:
            attempts: of the launch.
            patience_s: a leader that is silent for so long has had its machines.
        """
        found = find_cut_off(attempts, observation, was_alive=self.was_alive or self.silent_s >= patience_s)
        if found is None:
            self.cut_since = None
            return None
        if self.cut_since is None or (not self.is_far and now < self.cut_since):  # the clock was set back
            self.cut_since = now
            return None
        fresh = observation.mirrored if self.is_far and observation is not None else now
        return found if fresh is not None and fresh > self.cut_since else None

    def _is_due(self, run: RunRow, observation: Observation | None, now: float) -> bool:
        if run.unread or self.times_gone > 0 or not self.is_far:
            return True
        if observation is None or observation.liveness is Liveness.PENDING:
            return has_passed(self.read, _QUIET_READ_S, now)
        return observation.mirrored != self.read_mirrored or has_passed(self.read, _FULL_READ_S, now)


def has_passed(since: float, span_s: float, now: float) -> bool:
    """Whether so much time has passed; yes also after the clock was set back, so that nothing waits for it."""
    return not 0 <= now - since < span_s
