"""Whether a gang moves, from what its nodes report. Pure: time is given; standard library only.

Once any rank has reported a step, only steps count, with declared phases and commits of checkpoints: a rank that
waits in a collective may burn a whole core, and a thread beside may print for ever. Before that anything counts that
shows work: the log grows, the process tree uses CPU time, bytes are read or written, a device is busy. A rank that has
reported its last step can report none, and may evaluate or upload: while it works, the limit is longer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

__all__ = ["Activity", "Level", "Look", "Vigil", "decide_period_s"]

_BUSY_SHARE = 0.02
"""Of a core: what a rank that waits idly never reaches, heartbeat threads and all."""
_IO_BYTES_PER_S = 64 << 10
_SAVE_BYTES_PER_S = 1 << 20
"""Written by one rank while no step comes: a save that nobody declared."""
_DEVICE_PERCENT = 5.0
PHASE_FACTOR = 10
"""How many limits a declared phase may last, an undeclared save, and a stack that moves."""
_LONGER_THAN_BEFORE = 3
_STOPPED_AFTER_S = 1.0
_LEAST_EARLY_S = 5.0
_BLIND_PERIODS = 4
_BLIND_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """What a node knows of one rank: counters since the attempt began, and how it stands now."""

    rank: int
    cpu_s: float = 0.0
    """Of the whole process tree."""
    io_bytes: int = 0
    """Read and written."""
    written_bytes: int = 0
    log_bytes: int = 0
    steps: int = 0
    """How often the step that it reports has changed."""
    finished: bool = False
    """It has reported the last of its steps."""
    marks: int = 0
    """Phases begun and ended, checkpoints committed."""
    phase: str | None = None
    """The innermost declared phase that it is in."""
    phase_limit_s: float | None = None
    """What the phase itself allows."""
    longest_s: float = 0.0
    """The longest earlier phase of that name."""
    device_percent: float | None = None
    state: str = "runs"
    raised: bool = False
    """An exception has ended its code, and its process goes on all the same."""
    pid: int | None = None

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Activity:
        return cls(**raw)


class Level(Enum):
    """What a look at the gang asks for."""

    FINE = "fine"
    CLOSER = "closer"
    """Take stacks, and warn."""
    HANG = "hang"


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One look."""

    level: Level
    quiet_s: float = 0.0
    limit_s: float = 0.0
    early: bool = False
    """Looked closer sooner than usual, because a rank has ended while others go on."""
    left_s: float = 0.0
    """How long a rank has been gone, or had raised, without any progress since."""


@dataclass(slots=True)
class _Meter:
    """A counter that counts as activity when it grows fast enough over a window."""

    since: float
    value: float

    def grown(self, value: float, now: float, *, per_s: float, window_s: float) -> bool:
        took_s = now - self.since
        if value < self.value:  # a child took its share along
            self.since, self.value = now, value
            return False
        if took_s < window_s:
            return False
        fast = value - self.value >= per_s * took_s
        self.since, self.value = now, value
        return fast


@dataclass(slots=True)
class _Rank:
    """What the vigil remembers of one rank."""

    last: Activity
    meters: dict[str, _Meter] = field(default_factory=dict)
    held_since: float | None = None
    ended: bool = False


class Vigil:
    """Watches one attempt.

    Args:
        limit_s: how long the gang may show no progress.
        nodes: the nodes of each rank; a node that does not report leaves the vigil blind.
        now: monotonic clock.
    """

    def __init__(self, *, limit_s: float, nodes: Sequence[int], period_s: float, now: float) -> None:
        self.limit_s = limit_s
        self.sign = now
        """When the gang last showed progress."""
        self.counts_steps = False
        self._period_s = period_s
        self._window_s = min(10.0, max(0.5, limit_s / 4))
        self._ranks: dict[int, _Rank] = {}
        self._heard = dict.fromkeys(nodes, now)
        self._saving = now - limit_s
        """When a rank was last seen at what takes time and reports no step: a save, work after its last step."""
        self._left: float | None = None
        """When a rank ended by itself or raised, the others going on."""
        self._closer_at: float | None = None
        self._early_at_s = 0.0
        """How long nothing has to move after a rank has left, until the next early look."""
        self._granted_s = 0.0
        self._told = now - limit_s
        self._looked = now
        self._expect_early()

    @property
    def early_s(self) -> float:
        """How long nothing has to move before ranks that can never go on count as hung."""
        return min(self.limit_s, max(_LEAST_EARLY_S, self.limit_s / 4))

    def note(self, node: int, activities: Iterable[Activity], now: float) -> None:
        """A node's report."""
        self._heard[node] = now
        for activity in activities:
            known = self._ranks.get(activity.rank)
            if known is None:
                self._ranks[activity.rank] = _Rank(activity)
                self._begin(activity, now)
            elif not known.ended:
                if activity.raised and not known.last.raised:
                    self._leaves(now)
                self._compare(known, activity, now)
                known.last = activity

    def ended(self, rank: int, now: float) -> None:
        """A rank has ended by itself, with 0."""
        self._ranks.setdefault(rank, _Rank(Activity(rank=rank))).ended = True
        self._leaves(now)

    def extend(self, now: float) -> bool:
        """The stacks of two looks differ: it computes, and gets another limit; False: it has had as much as a phase."""
        quiet_s = now - self.sign
        if quiet_s >= PHASE_FACTOR * self.limit_s:
            return False
        self._granted_s = min(quiet_s + self.limit_s, PHASE_FACTOR * self.limit_s)
        return True

    def forgive(self, now: float) -> None:
        """Nothing could be seen for a while, as this machine slept: begin again."""
        self._move(now)
        self._heard = dict.fromkeys(self._heard, now)

    def look(self, now: float) -> Look:
        """What the gang looks like now."""
        if now - self._looked > _BLIND_PERIODS * self._period_s + _BLIND_S:
            self.forgive(now)
        self._looked = now
        limit_s, left = self._allowed_s(now), now if self._left is None else self._left
        fine = Look(level=Level.FINE, quiet_s=now - self.sign, limit_s=limit_s, left_s=now - max(self.sign, left))
        if self._is_blind(now) or self.is_traced():
            return fine
        if fine.quiet_s >= limit_s and now - self._told >= self.limit_s:
            return replace(fine, level=Level.HANG)
        if self._closer_at is None and fine.quiet_s >= limit_s / 2:
            self._closer_at = now
            return replace(fine, level=Level.CLOSER)
        if self._is_early(fine):
            self._expect_early(after_s=fine.left_s)
            return replace(fine, level=Level.CLOSER, early=True)
        return fine

    def told(self, now: float) -> None:
        """A hang was told and nothing else follows: tell again after another limit."""
        self._told = now

    def held(self, now: float) -> list[Activity]:
        """Ranks that somebody has stopped or traces, each once, when it has lasted for a moment."""
        found = []
        for known in self._ranks.values():
            if known.held_since is not None and now - known.held_since >= _STOPPED_AFTER_S:
                known.held_since = float("inf")
                found.append(known.last)
        return found

    def traced_by_us(self) -> None:
        """Our own look has held ranks for a moment: that they were traced meanwhile says nothing."""
        for known in self._ranks.values():
            if known.last.state == "traced":
                known.last, known.held_since = replace(known.last, state="runs"), None

    def is_traced(self) -> bool:
        """Whether a debugger holds a rank: then nothing is done about the silence."""
        return any(known.last.state == "traced" and not known.ended for known in self._ranks.values())

    def states(self) -> dict[int, str]:
        """How each rank stands."""
        return {rank: "ended" if known.ended else known.last.state for rank, known in self._ranks.items()}

    def phases(self) -> dict[int, str]:
        """Declared phases that ranks are in."""
        return {rank: known.last.phase for rank, known in self._live() if known.last.phase}

    def raised(self) -> list[int]:
        """Ranks that an exception has ended, and whose processes go on."""
        return [rank for rank, known in self._live() if known.last.raised]

    def _leaves(self, now: float) -> None:
        self._left = now
        self._expect_early()

    def _begin(self, activity: Activity, now: float) -> None:
        if activity.steps:
            self.counts_steps = True
        known = self._ranks[activity.rank]
        known.held_since = now if activity.state in {"stopped", "traced"} else None
        for name, value in (("cpu", activity.cpu_s), ("io", activity.io_bytes), ("written", activity.written_bytes)):
            known.meters[name] = _Meter(now, value)

    def _compare(self, known: _Rank, new: Activity, now: float) -> None:
        old = known.last
        if new.state in {"stopped", "traced"}:
            known.held_since = now if old.state != new.state else known.held_since
        else:
            known.held_since = None
        if new.steps > old.steps:
            self.counts_steps = True
            self._move(now)
        if new.marks > old.marks:
            self._move(now)
        works = self._works(known, new, now)
        talks = new.log_bytes > old.log_bytes
        if (works or talks) and not self.counts_steps:
            self._move(now)
        if works and new.finished:
            self._saving = now

    def _works(self, known: _Rank, new: Activity, now: float) -> bool:
        """Signs of work other than steps and talk; every meter is read, so that all go on from here."""
        if not known.meters:
            self._begin(new, now)
        window_s = self._window_s
        cpu = known.meters["cpu"].grown(new.cpu_s, now, per_s=_BUSY_SHARE, window_s=window_s)
        io = known.meters["io"].grown(new.io_bytes, now, per_s=_IO_BYTES_PER_S, window_s=window_s)
        if known.meters["written"].grown(new.written_bytes, now, per_s=_SAVE_BYTES_PER_S, window_s=window_s):
            self._saving = now
        device = new.device_percent is not None and new.device_percent >= _DEVICE_PERCENT
        return cpu or io or device

    def _move(self, now: float) -> None:
        self.sign = now
        self._closer_at = None
        self._granted_s = 0.0
        self._expect_early()

    def _live(self) -> list[tuple[int, _Rank]]:
        return [(rank, known) for rank, known in self._ranks.items() if not known.ended]

    def _allowed_s(self, now: float) -> float:
        """The limit, longer while a phase is declared, much is being written, or stacks were seen to move."""
        allowed_s = [self.limit_s, self._granted_s]
        for _, known in self._live():
            last = known.last
            if last.phase is not None:
                usual_s = max(PHASE_FACTOR * self.limit_s, _LONGER_THAN_BEFORE * last.longest_s)
                allowed_s.append(usual_s if last.phase_limit_s is None else max(self.limit_s, last.phase_limit_s))
        if now - self._saving < max(self.limit_s / 2, 2 * self._window_s):
            allowed_s.append(PHASE_FACTOR * self.limit_s)
        return max(allowed_s)

    def _is_blind(self, now: float) -> bool:
        return any(now - heard > _BLIND_PERIODS * self._period_s + _BLIND_S for heard in self._heard.values())

    def _is_early(self, look: Look) -> bool:
        """A rank has ended, others are left, and nothing has moved for a while: worth a closer look."""
        if self._left is None or not self._live() or look.limit_s > self.limit_s:
            return False
        return look.left_s >= self._early_at_s

    def _expect_early(self, *, after_s: float = 0.0) -> None:
        """Look soon, then ever less often, and when ranks that can never go on count as hung."""
        soon_s = max(min(_LEAST_EARLY_S, self.early_s), 2 * after_s)
        self._early_at_s = self.early_s if after_s < self.early_s < soon_s else soon_s


def decide_period_s(limit_s: float) -> float:
    """How often nodes look at their ranks: often enough for the limit, and never so often that it costs anything."""
    return min(5.0, max(0.1, limit_s / 20))
