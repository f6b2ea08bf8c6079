"""Which rank holds the others up, and what of its machine explains it. Pure: time is given; standard library only.

Ranks that train together take equally long for a step, whoever is slow: the others wait for it. So two things are
looked at: how long each rank takes from one report of a step to the next, where they differ; and, where they don't,
which rank is the last to report a step, and by how much. Where a rank reports after the others have waited for it,
times say nothing, and a rank that is kept from running while its peers are not is named as probable.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

__all__ = ["Finding", "Pace", "describe_cause"]

_FEWEST_STEPS = 4
_OFTEN = 0.8
"""Of the steps, for which a rank has to be the last."""
_COVERED = 0.6
"""Of the window, before anything is said."""
_SAME = 1.1
"""Periods whose ratio is below this are those of ranks that wait for one another."""
_MOST_STEPS = 512
_KEPT_SHARE = 0.3
_KEPT_TIMES_PEERS = 4
_FEWEST_SAMPLES = 3
_THROTTLED = 0.05
_STEAL = 0.1
_DELAY = 0.2
_SWAP_BYTES_S = 1 << 20
_FAULTS_S = 50
_MEMORY_PRESSURE = 10
_IO_PRESSURE = 40
_IDLE_CORES = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A rank that is slower than its peers: by its steps, or, without `ratio`, by what keeps it from running."""

    rank: int
    text: str
    """`takes 0.40 s for a step, the median of the others 0.11 s`."""
    ratio: float | None = None


@dataclass(slots=True)
class _Rank:
    arrivals: dict[int, float] = field(default_factory=dict)
    """When it reported a step, by the leader's clock."""
    loads: list[tuple[float, Mapping[str, Any]]] = field(default_factory=list)
    machine: Mapping[str, Any] = field(default_factory=dict)


class Pace:
    """The steps of the ranks of one attempt.

    Args:
        factor: how many times slower than the median a rank has to be.
        window_s: for how long.
    """

    def __init__(self, *, factor: float, window_s: float) -> None:
        self._factor = factor
        self._window_s = window_s
        self._ranks: dict[int, _Rank] = {}

    def note(
        self,
        rank: int,
        steps: Iterable[tuple[int, float]],
        load: Mapping[str, Any],
        machine: Mapping[str, Any],
        now: float,
    ) -> None:
        """What a node tells of one rank.

        Args:
            steps: new ones, with the time of their first report by the leader's clock.
            load: the newest sample of the rank.
            machine: the newest sample of its machine.
            now: by the same clock.
        """
        known = self._ranks.setdefault(rank, _Rank())
        known.arrivals.update(steps)
        since, until = now - self._window_s, now + self._window_s  # what lies far ahead is of before the clock was set
        newest = list(known.arrivals.items())[-_MOST_STEPS:]
        known.arrivals = {step: when for step, when in newest if since <= when <= until}
        known.loads = [(when, sample) for when, sample in [*known.loads, (now, load)] if since <= when <= until]
        known.machine = machine

    def drop(self, rank: int) -> None:
        """A rank has ended."""
        self._ranks.pop(rank, None)

    def find(self) -> list[Finding]:
        """Ranks that were slower than their peers for the whole window."""
        if len(self._ranks) < 2:  # noqa: PLR2004 - nobody to compare with
            return []
        periods = self._periods()
        if len(periods) == len(self._ranks):
            slow = [(rank, own_s, _others(periods, rank)) for rank, own_s in sorted(periods.items())]
            if found := [self._slow(*one) for one in slow if one[1] >= self._factor * one[2]]:
                return found
            if max(periods.values()) <= _SAME * min(periods.values()):
                found = self._last(median(periods.values()))
                if found:
                    return found
        return self._kept()

    def can_clear(self, finding: Finding) -> bool:
        """Whether enough is known to say that a rank keeps up again, as it was found and is not any more.

        Ranks that make no steps, as they have made their last one, or save, or evaluate, show nothing of the kind.
        """
        if finding.ratio is None:
            return all(_kept_share(known) is not None for known in self._ranks.values())
        return len(self._periods()) == len(self._ranks)

    def cause(self, rank: int) -> str:
        """What of a rank's machine explains that it is slow."""
        known = self._ranks[rank]
        return describe_cause(_typical(known), known.machine)

    def _periods(self) -> dict[int, float]:
        periods = {rank: self._period(known) for rank, known in self._ranks.items()}
        return {rank: period for rank, period in periods.items() if period is not None}

    def _period(self, known: _Rank) -> float | None:
        """Seconds from step to step; None where the window is not covered."""
        times = sorted(known.arrivals.values())
        if len(times) < _FEWEST_STEPS or times[-1] - times[0] < _COVERED * self._window_s:
            return None
        return (times[-1] - times[0]) / (len(times) - 1)

    def _slow(self, rank: int, own_s: float, typical_s: float) -> Finding:
        text = f"takes {own_s:.3g} s for a step, the median of the others {typical_s:.3g} s"
        return Finding(rank=rank, text=text, ratio=round(own_s / typical_s, 2))

    def _last(self, period_s: float) -> list[Finding]:
        """The rank for which the others wait: what each needs of a step is the step without its wait for the last."""
        common = set.intersection(*(set(known.arrivals) for known in self._ranks.values()))
        if len(common) < _FEWEST_STEPS:
            return []
        waits: dict[int, list[float]] = {rank: [] for rank in self._ranks}
        lasts = dict.fromkeys(self._ranks, 0)
        for step in common:
            arrivals = {rank: known.arrivals[step] for rank, known in self._ranks.items()}
            last = max(arrivals, key=lambda rank: arrivals[rank])
            lasts[last] += 1
            for rank, when in arrivals.items():
                waits[rank].append(arrivals[last] - when)
        own = {rank: max(0.0, period_s - median(waited)) for rank, waited in waits.items()}
        slowest = max(lasts, key=lambda rank: lasts[rank])
        typical = max(_others(own, slowest), 1e-9)
        if lasts[slowest] < _OFTEN * len(common) or own[slowest] < self._factor * typical:
            return []
        text = (
            f"is the last in {lasts[slowest]} of {len(common)} steps: it needs {own[slowest]:.3g} s, "
            f"the median of the others {typical:.3g} s, and they wait for it"
        )
        return [Finding(rank=slowest, text=text, ratio=round(own[slowest] / typical, 2))]

    def _kept(self) -> list[Finding]:
        """A rank that is stopped, or gets no processor, while its peers do."""
        shares = {rank: _kept_share(known) for rank, known in self._ranks.items()}
        if None in shares.values():
            return []
        known = {rank: share for rank, share in shares.items() if share is not None}
        found = []
        for rank, share in sorted(known.items()):
            peers = _others(known, rank)
            covered = self._ranks[rank].loads[-1][0] - self._ranks[rank].loads[0][0]
            if share >= max(_KEPT_SHARE, _KEPT_TIMES_PEERS * peers) and covered >= _COVERED * self._window_s:
                text = f"probably holds the others up: it cannot run {share:.0%} of the time, they {peers:.0%}"
                found.append(Finding(rank=rank, text=text))
        return found


def describe_cause(load: Mapping[str, Any], machine: Mapping[str, Any]) -> str:
    """What of a sample explains that a rank is slow, the surest first."""
    cpu, pressure = machine.get("cpu") or {}, machine.get("pressure") or {}
    throttled = [
        f"device {one.get('id')} ({', '.join(one['throttled'])})"
        for one in machine.get("devices") or ()
        if one.get("throttled")
    ]
    rules = [
        (load.get("state") == "T", "it is stopped (SIGSTOP)"),
        (
            _n(machine, "throttled_s_per_s") > _THROTTLED,
            f"a processor limit of its control group holds it back {_n(machine, 'throttled_s_per_s'):.0%} of the time",
        ),
        (_n(cpu, "steal") > _STEAL, f"its host takes {_n(cpu, 'steal'):.0%} of the processors away (steal)"),
        (
            _n(load, "delay") > _DELAY,
            f"its main thread waits for a free processor {_n(load, 'delay'):.0%} of the time, as others run",
        ),
        (
            _n(machine, "swap_in_bytes_s") > _SWAP_BYTES_S or _n(pressure, "memory") > _MEMORY_PRESSURE,
            "memory is short on its node: pages come back from swap, or tasks wait for memory",
        ),
        (
            _n(load, "major_faults_s") > _FAULTS_S,
            f"it reads {_n(load, 'major_faults_s'):.0f} pages a second from a disk",
        ),
        (load.get("state") == "D" or _n(pressure, "io") > _IO_PRESSURE, "it waits for a disk or a network file system"),
        (bool(throttled), f"an accelerator of its node is held back: {', '.join(throttled)}"),
        (_n(machine, "thermal_throttles_s") > 0, "a processor of its node slows down because of heat"),
        (
            0 <= load.get("cpu", -1) < _IDLE_CORES,
            "it uses hardly any processor: it waits for something else, such as data or the network",
        ),
    ]
    return next((text for holds, text in rules if holds), "its machine shows no cause: it may have more to compute")


def _others(values: Mapping[int, float], rank: int) -> float:
    return median(value for other, value in values.items() if other != rank)


def _kept_share(known: _Rank) -> float | None:
    """Share of the time in which a rank could not run; None where too little is known."""
    samples = [load for _, load in known.loads if "delay" in load]
    if len(samples) < _FEWEST_SAMPLES:
        return None
    stopped = sum(load.get("state") in {"T", "t"} for load in samples) / len(samples)
    return max(stopped, median(float(load["delay"]) for load in samples))


def _typical(known: _Rank) -> dict[str, Any]:
    """The newest sample, with the medians of the window where there are several."""
    if not known.loads:
        return {}
    newest = dict(known.loads[-1][1])
    for key in ("delay", "cpu", "major_faults_s"):
        values = [float(load[key]) for _, load in known.loads if key in load]
        if values:
            newest[key] = median(values)
    states = [load.get("state") for _, load in known.loads]
    for state in ("T", "D"):
        if states.count(state) * 3 >= len(states):
            newest["state"] = state
    return newest


def _n(values: Mapping[str, Any], key: str) -> float:
    value = values.get(key)
    return float(value) if isinstance(value, int | float) else 0.0
