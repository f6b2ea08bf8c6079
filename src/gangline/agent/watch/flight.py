"""What NCCL's flight recorder left of a rank: the last collectives, and which of them were completed. Pure.

Format: torch/csrc/distributed/c10d/FlightRecorder.hpp, versions 2.x. Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gangline.agent.watch.places import render_ranks

__all__ = ["Flight", "describe_flights", "parse_flight"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Flight:
    """The last collective of one rank."""

    rank: int
    group: str
    number: int
    """Which collective of its group it is, counted alike on all ranks."""
    name: str
    """`all_reduce`."""
    state: str
    """`scheduled`, `started` or `completed`."""

    def __str__(self) -> str:
        return f"{self.name} number {self.number} of group {self.group}"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Flight:
        return cls(**raw)


def parse_flight(rank: int, found: object) -> Flight | None:
    """The first collective that the rank has not completed, else the last that it has; None where there is none.

    Args:
        found: the value in its record; see `plainpickle.py`.
    """
    entries = found.get("entries") if isinstance(found, Mapping) else None
    flights = [flight for entry in entries or () if (flight := _flight(rank, entry)) is not None]
    pending = [flight for flight in flights if flight.state != "completed"]
    return min(pending, key=lambda flight: flight.number) if pending else (flights[-1] if flights else None)


def describe_flights(flights: Sequence[Flight]) -> str:
    """Where the ranks stand in the order of collectives; "" where they stand alike, or nothing is known."""
    groups: dict[str, dict[tuple[int, str, str], list[int]]] = {}
    for flight in flights:
        places = groups.setdefault(flight.group, {})
        places.setdefault((flight.number, flight.name, flight.state), []).append(flight.rank)
    texts = []
    for group, places in sorted(groups.items()):
        if len(places) < 2:  # noqa: PLR2004 - one place is no difference
            continue
        told = [
            f"{render_ranks(ranks)} {state} {name} number {number}"
            for (number, name, state), ranks in sorted(places.items())
        ]
        texts.append(f"NCCL, group {group}: {'; '.join(told)}.")
    return " ".join(texts)


def _flight(rank: int, entry: object) -> Flight | None:
    if not isinstance(entry, Mapping):
        return None
    group, number = entry.get("process_group"), entry.get("collective_seq_id", entry.get("seq_id"))
    if not isinstance(number, int):
        return None
    named = group[1] if isinstance(group, list | tuple) and len(group) > 1 and group[1] else group
    name = str(entry.get("profiling_name") or "").removeprefix("nccl:").removeprefix("gloo:")
    return Flight(
        rank=rank, group=str(named or "default"), number=number, name=name, state=str(entry.get("state") or "unknown")
    )
