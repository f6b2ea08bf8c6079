"""Steps of ranks from their nodes to the leader, and what the leader says of a slow one. Standard library only."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from gangline.agent.loop import Loop
from gangline.agent.members import Member
from gangline.agent.node import Node
from gangline.agent.sampler import SystemJournal
from gangline.agent.stragglers import Finding, Pace
from gangline.domain.spec import WatchPolicy

__all__ = ["NodePace", "StragglerWatch", "decide_period_s", "parse_steps"]

_LINE = re.compile(rb'\{"k":"[mp]","a":(\d+),"t":([\d.e+]+),"s":(-?\d+),')
_MOST_BYTES = 1 << 20
_MOST_STEPS = 256
_LONGEST_PERIOD_S = 5.0
_MACHINE_KEYS = ("cpu", "pressure", "throttled_s_per_s", "swap_in_bytes_s", "thermal_throttles_s", "devices")


def decide_period_s(window_s: float) -> float:
    """How often nodes report."""
    return min(_LONGEST_PERIOD_S, window_s / 6)


class NodePace:
    """Beside one node: reads what its ranks report, and tells the leader."""

    def __init__(self, node: Node, system: SystemJournal, loop: Loop, report: Callable[[dict[str, Any]], None]) -> None:
        self._node = node
        self._system = system
        self._report = report
        self._offsets: dict[int, int] = {}
        self._last: dict[int, int] = {}
        self._attempt = -1
        watch = node.site.launch.watch
        if watch.straggler_factor > 0 and node.site.launch.nodes * node.site.launch.procs_per_node > 1:
            loop.every(decide_period_s(watch.straggler_window_s), self._tell)

    def _tell(self) -> None:
        folder, site = self._node.folder, self._node.site
        if folder is None:
            return
        if folder.number != self._attempt:
            self._attempt, self._offsets, self._last = folder.number, {}, {}
        loads = self._system.newest.get("ranks") or {}
        ranks = {
            str(rank): {"steps": self._read(rank, site.run.metrics(rank)), "load": loads.get(str(rank)) or {}}
            for rank in self._node.live_ranks
        }
        machine = {key: self._system.newest[key] for key in _MACHINE_KEYS if key in self._system.newest}
        self._report({"say": "pace", "attempt": folder.number, "ranks": ranks, "machine": machine})

    def _read(self, rank: int, path: Path) -> list[tuple[int, float]]:
        with suppress(OSError), path.open("rb") as file:
            size = path.stat().st_size
            start = max(self._offsets.get(rank, 0), size - _MOST_BYTES)
            file.seek(start)
            data = file.read(_MOST_BYTES)
            end = data.rfind(b"\n") + 1
            self._offsets[rank] = start + end
            steps = parse_steps(data[:end], self._attempt, self._last.get(rank))
            if steps:
                self._last[rank] = steps[-1][0]
            return steps[-_MOST_STEPS:]
        return []


class StragglerWatch:
    """The leader's part.

    Args:
        write: records an event.
    """

    def __init__(self, policy: WatchPolicy, write: Callable[..., Any]) -> None:
        self._policy = policy
        self._write = write
        self._attempt = -1
        self._pace = self._fresh()
        self._told: dict[int, Finding] = {}
        self._looked: float | None = None
        """Monotonic: a clock that is set back holds up no look."""

    def take(self, message: Mapping[str, Any], member: Member) -> None:
        """A node's report."""
        if message["attempt"] != self._attempt:
            self._attempt, self._pace, self._told = message["attempt"], self._fresh(), {}
        now, ahead_s = time.time(), member.ahead_s
        told_of = {int(name) for name in message["ranks"]}
        for rank in [rank for rank, owner in self._owners.items() if owner is member and rank not in told_of]:
            self._pace.drop(rank)  # it has ended
            del self._owners[rank]
        for name, told in message["ranks"].items():
            self._owners[int(name)] = member
            steps = [(step, when - ahead_s) for step, when in told["steps"]]
            self._pace.note(int(name), steps, told["load"], message["machine"], now)
        if self._looked is None or time.monotonic() - self._looked >= decide_period_s(self._policy.straggler_window_s):
            self._looked = time.monotonic()
            self._look()

    def _look(self) -> None:
        found = {finding.rank: finding for finding in self._pace.find()}
        for rank in sorted(found.keys() - self._told.keys()):
            text = f"{self._name(rank)} {found[rank].text}. Likely cause: {self._pace.cause(rank)}."
            self._write("straggler", text=text, rank=rank, on=True, ratio=found[rank].ratio)
        alone = len(self._owners) == 1
        for rank, finding in list(self._told.items()):
            if rank in found or rank not in self._owners or not (alone or self._pace.can_clear(finding)):
                continue
            how = "has nobody left to hold up: the others have ended" if alone else "keeps up again"
            self._write("straggler", text=f"{self._name(rank)} {how}.", rank=rank, on=False)
            del self._told[rank]
        self._told.update({rank: one for rank, one in found.items() if one.ratio is not None or rank not in self._told})

    def _name(self, rank: int) -> str:
        member = self._owners[rank]
        return f"Rank {rank} on node {member.node} ({member.host})"

    def _fresh(self) -> Pace:
        self._owners: dict[int, Member] = {}
        return Pace(factor=self._policy.straggler_factor, window_s=self._policy.straggler_window_s)


def parse_steps(data: bytes, attempt: int, last: int | None) -> list[tuple[int, float]]:
    """Steps in lines of a metrics file, each with the time at which it was reported first."""
    found: list[tuple[int, float]] = []
    for line in data.splitlines():
        head = _LINE.match(line)
        if head is not None and int(head[1]) == attempt and int(head[3]) != last:
            last = int(head[3])
            found.append((last, float(head[2])))
    return found
