"""The leader's part of what happens before ranks start: nodes are compared, and checked where the spec asks for it.

Standard library only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gangline.agent.attempt import Attempt, Ending
from gangline.agent.gangwire import Message
from gangline.agent.launchspec import LaunchSpec
from gangline.agent.members import Member
from gangline.agent.sameness import decide_comparison
from gangline.domain.phase import Reason
from gangline.domain.spec import OnMismatch

__all__ = ["Fault", "Preflight", "decide_clock_faults", "decide_faults", "describe_faults", "render_results"]

_ORDER = ("disk", "clock", "device", "allreduce")
"""A node that fails an early check makes others fail the later ones."""


_MOST_FAULTS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A check that a node has failed."""

    node: int
    check: str
    text: str


class Preflight:
    """Looks at the gang of one launch. Checks are done once a launch, the comparison for each attempt."""

    def __init__(self, launch: LaunchSpec, *, warn: Callable[[str], None]) -> None:
        self._policy = launch.preflight
        self._nodes = launch.nodes
        self._warn = warn
        self._passed = False
        self._results: dict[int, Sequence[Mapping[str, Any]]] = {}
        self._told_clocks = False

    def compare(self, attempt: Attempt, members: Mapping[int, Member]) -> Ending | None:
        """How the attempt ends, where the nodes do not fit together."""
        if self._nodes == 1:
            return None
        self._tell_clocks(members)
        found = decide_comparison(attempt.seen, {node: member.host for node, member in members.items()})
        if found.unknown:
            self._warn(f"Nodes {list(found.unknown)} are not compared: their interpreter has not answered.")
        if found.differences:
            self._warn(f"The nodes differ, which may be as it should be: {'; '.join(found.differences)}.")
        if not found.mismatches:
            return None
        text = f"The nodes do not fit together: {'; '.join(found.mismatches)}."
        if self._policy.on_mismatch is OnMismatch.WARN:
            self._warn(text)
            return None
        return Ending(cause="failure", time=time.time(), reason=Reason.ENVIRONMENT_MISMATCH, message=text)

    @property
    def is_due(self) -> bool:
        """Nodes are still to be checked."""
        return bool(self._policy.checks) and not self._passed

    def order(self, attempt: Attempt, where: tuple[str, int]) -> Message:
        """Has nodes check themselves before the attempt starts.

        Args:
            where: address and port at which programs of all nodes meet.
        """
        self._results = {}
        return {
            "do": "check",
            "attempt": attempt.number,
            "nodes": attempt.shape.nodes,
            "checks": list(self._policy.checks),
            "master_addr": where[0],
            "master_port": where[1],
        }

    def take(self, node: int, results: Sequence[Mapping[str, Any]]) -> None:
        """The results of one node."""
        self._results[node] = results

    def is_complete(self, attempt: Attempt) -> bool:
        """All nodes of the attempt have told."""
        return set(attempt.shape.nodes) <= set(self._results)

    def judge(self, members: Mapping[int, Member]) -> Ending | None:
        """How the attempt ends, where a node is not fit. The first check that fails counts; it makes others fail."""
        clocks = (
            decide_clock_faults(_offsets(members), self._policy.max_clock_skew_s)
            if "clock" in self._policy.checks
            else []
        )
        floor = self._policy.min_bandwidth_bytes
        faults = sorted([*decide_faults(self._results, floor), *clocks], key=lambda fault: _ORDER.index(fault.check))
        self._passed = not faults
        if not faults:
            return None
        first = [fault for fault in faults if fault.check == faults[0].check]
        nodes = {fault.node: fault.check for fault in first}
        text = describe_faults(first, members)
        return Ending(cause="failure", time=time.time(), reason=Reason.UNHEALTHY_NODE, message=text, nodes=nodes)

    def summary(self, members: Mapping[int, Member]) -> str:
        """What was measured, in words."""
        offsets = _offsets(members) if "clock" in self._policy.checks else None
        return f"Checked before the start: {render_results(self._results, offsets)}."

    def _tell_clocks(self, members: Mapping[int, Member]) -> None:
        """Clocks that differ confuse people who read logs, also where nobody asked for the check."""
        if self._told_clocks or "clock" in self._policy.checks:
            return
        self._told_clocks = True
        for fault in decide_clock_faults(_offsets(members), self._policy.max_clock_skew_s):
            self._warn(f"Node {fault.node} ({members[fault.node].host}): {fault.text}.")


def decide_clock_faults(offsets: Mapping[int, tuple[float, float]], limit_s: float) -> list[Fault]:
    """Nodes whose clock is surely off by more than the limit.

    Args:
        offsets: by node: seconds ahead of the leader's clock, and the time of the round trip that measured it.
    """
    return [
        Fault(
            node=node,
            check="clock",
            text=f"its clock is {abs(offset):.2f} s {_side(offset)} node 0's, {limit_s:g} s is the limit",
        )
        for node, (offset, trip_s) in sorted(offsets.items())
        if abs(offset) - trip_s / 2 > limit_s
    ]


def decide_faults(results: Mapping[int, Sequence[Mapping[str, Any]]], floor: int | None) -> list[Fault]:
    """Checks that nodes say they have failed, and nodes that are slower than the floor. Pure."""
    faults: dict[tuple[int, str], Fault] = {}
    for node, listed in sorted(results.items()):
        for result in listed:
            if result.get("ok") is False:
                fault = Fault(node=node, check=result["check"], text=str(result.get("text")))
                faults.setdefault((node, fault.check), fault)
    if faults or not floor:
        return list(faults.values())
    return _slow_nodes(results, floor)


def describe_faults(faults: Sequence[Fault], members: Mapping[int, Member]) -> str:
    """What is said of a launch that ends because of them."""
    told = [f"Node {one.node} ({members[one.node].host}) failed the check `{one.check}`: {one.text}." for one in faults]
    more = len(told) - _MOST_FAULTS
    return " ".join([*told[:_MOST_FAULTS], *([f"{more} more failed it."] if more > 0 else [])])


def render_results(
    results: Mapping[int, Sequence[Mapping[str, Any]]], offsets: Mapping[int, tuple[float, float]] | None
) -> str:
    """`disk: 210 MB/s to the slowest folder; clock: at most 0.3 ms off`; the slowest node counts."""
    told: dict[str, tuple[float, str]] = {}
    for listed in results.values():
        for result in listed:
            measured = result.get("measured")
            rank = float(measured) if isinstance(measured, int | float) else float("inf")
            known = told.get(result["check"])
            if known is None or rank < known[0]:
                told[result["check"]] = (rank, str(result.get("text")))
    words = [f"{check}: {text}" for check in _ORDER if check in told for _, text in (told[check],)]
    if offsets is not None:
        worst = max((abs(offset) for offset, _ in offsets.values()), default=0.0)
        words.append(f"clock: at most {worst * 1000:.1f} ms off")
    return "; ".join(words)


def _slow_nodes(results: Mapping[int, Sequence[Mapping[str, Any]]], floor: int) -> list[Fault]:
    found = {node: [one for one in listed if one["check"] == "allreduce"] for node, listed in results.items()}
    found = {node: listed for node, listed in found.items() if listed}
    speeds = [one["measured"] for listed in found.values() for one in listed if one.get("measured")]
    if not speeds or min(speeds) >= floor:
        return []
    local = {node: min(one.get("local") or float("inf") for one in listed) for node, listed in found.items()}
    slow = [node for node, speed in local.items() if speed < floor]
    if slow:
        return [_slow(node, local[node], floor, "between its ranks") for node in slow]
    pairs = {
        node: [way for one in listed for way in (one.get("pairs") or {}).values()] for node, listed in found.items()
    }
    slow = [node for node, ways in pairs.items() if ways and max(ways) < floor]
    if slow and len(slow) < len(found):
        return [_slow(node, max(pairs[node]), floor, "to its neighbours") for node in slow]
    return [_slow(node, min(speeds), floor, "between all ranks") for node in found]


def _side(offset: float) -> str:
    return "ahead of" if offset > 0 else "behind"


def _slow(node: int, speed: float, floor: int, where: str) -> Fault:
    text = f"all-reduce {where} moves {_speed(speed)}, {_speed(floor)} is the floor"
    return Fault(node=node, check="allreduce", text=text)


def _offsets(members: Mapping[int, Member]) -> dict[int, tuple[float, float]]:
    return {node: member.clock for node, member in members.items() if member.clock is not None}


def _speed(bytes_per_s: float) -> str:
    """`9.0 MB/s`, `9.0 PB/s`."""
    value, units = bytes_per_s / 1e6, ["MB", "GB", "TB", "PB"]
    while value >= 1000 and len(units) > 1:  # noqa: PLR2004 - the step of units
        value, units = value / 1000, units[1:]
    return f"{value:.1f} {units[0]}/s"
