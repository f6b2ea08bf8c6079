"""Requests to the gang: `control.jsonl`, followed by the leader. Standard library only."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gangline.agent.attempt import Ending
from gangline.agent.loop import Loop
from gangline.domain.phase import Reason
from gangline.rundir.journal import JournalReader

__all__ = ["ControlFile", "EndMoved", "Renewal", "Requests", "StacksRequest", "StopRequest", "parse_request"]

_LOOK_S = 0.05
_TOLD = {
    "stop": "Stopped{by}.",
    "lease": "The lease has ended: nobody renewed it any more.",
    "preemption": "Preempted{by}.",
    "time_limit": "The time limit was reached{by}.",
}
_REASONS = {"lease": Reason.LEASE_ENDED, "preemption": Reason.PREEMPTED}
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,63}")


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequest:
    """Somebody wants the gang to end."""

    cause: str
    """`stop`, `lease`, `preemption` or `time_limit`."""
    grace_s: float | None = None
    """None: as the spec says."""
    by: str = ""

    def ending(self, now: float) -> Ending:
        """Why the attempt that runs is then ended; `now` by the wall clock."""
        by = f" by {self.by}" if self.by else ""
        return Ending(
            cause="stop" if self.cause == "lease" else self.cause,
            time=now,
            reason=_REASONS.get(self.cause),
            message=_TOLD[self.cause].format(by=by),
            from_outside=self.cause == "time_limit",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StacksRequest:
    """Somebody wants to see where the ranks are."""

    id: str
    """Names the answer: `attempts/N/stacks/<id>.json`."""
    ranks: tuple[int, ...] | None = None
    """None: all."""
    native: bool = False
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndMoved:
    """The server tells when the machines are taken back, as their scheduler has it now."""

    end: float | None
    """Seconds since the epoch, by their clock; None: never."""


@dataclass(frozen=True, slots=True)
class Renewal:
    """Somebody still wants the run."""


class ControlFile:
    """Looks for new requests; costs one `stat` where there are none."""

    def __init__(self, path: Path, offset: int) -> None:
        self._name = str(path)
        self._journal = JournalReader(path, offset)

    def read(self) -> list[dict[str, Any]]:
        """Requests that were not seen yet."""
        try:
            if os.stat(self._name).st_size <= self._journal.offset:  # noqa: PTH116 - twenty times a second
                return []
        except OSError:
            return []
        return self._journal.read_all()


class Requests:
    """Passes on what is new in the file, by its kind."""

    def __init__(
        self,
        file: ControlFile,
        *,
        on_stop: Callable[[StopRequest], None],
        on_stacks: Callable[[StacksRequest], None],
        on_moved: Callable[[float | None], None],
        on_renewal: Callable[[], None],
        warn: Callable[[str], None],
    ) -> None:
        self._file = file
        self._on_stop = on_stop
        self._on_stacks = on_stacks
        self._on_moved = on_moved
        self._is_first = True
        self._on_renewal = on_renewal
        self._warn = warn

    def begin(self, loop: Loop) -> None:
        """Look, again and again."""
        loop.every(_LOOK_S, self.look)

    def look(self) -> None:
        """Pass on requests that were not seen yet.

        Ends that were told before this agent began are of an earlier life of its job, or what it was started with.
        """
        is_first, self._is_first = self._is_first, False
        for raw in self._file.read():
            request = parse_request(raw)
            if isinstance(request, StopRequest):
                self._on_stop(request)
            elif isinstance(request, StacksRequest):
                self._on_stacks(request)
            elif isinstance(request, EndMoved):
                if not is_first:
                    self._on_moved(request.end)
            elif isinstance(request, Renewal):
                self._on_renewal()
            else:
                self._warn(request)


def parse_request(raw: Mapping[str, Any]) -> StopRequest | StacksRequest | EndMoved | Renewal | str:
    """A request, or a sentence about what is not understood."""
    kind = raw.get("kind")
    if kind == "stop":
        return _parse_stop(raw)
    if kind == "stacks":
        return _parse_stacks(raw)
    if kind == "end":
        end = raw.get("end")
        if end is None or (isinstance(end, int | float) and math.isfinite(end)):
            return EndMoved(end=end)
        return f"A job's time that ends at {end!r} cannot be."
    if kind == "renew":
        return Renewal()
    return f"Request `{kind}` is not known to this agent; known: end, renew, stacks, stop."


def _parse_stop(raw: Mapping[str, Any]) -> StopRequest | str:
    cause, grace_s = raw.get("cause", "stop"), raw.get("grace_s")
    if cause not in _TOLD:
        return f"A stop because of `{cause}` is not known; known: {', '.join(sorted(_TOLD))}."
    if grace_s is not None and not (isinstance(grace_s, int | float) and math.isfinite(grace_s) and grace_s >= 0):
        return f"A grace of {grace_s!r} seconds cannot be."
    return StopRequest(cause=cause, grace_s=grace_s, by=str(raw.get("by") or ""))


def _parse_stacks(raw: Mapping[str, Any]) -> StacksRequest | str:
    name, ranks = str(raw.get("id")), raw.get("ranks")
    if not _ID.fullmatch(name):
        return "A request for stacks has no usable id."
    if ranks is not None and not (isinstance(ranks, list) and all(isinstance(rank, int) for rank in ranks)):
        return f"A request for stacks names {ranks!r} as ranks."
    chosen = None if ranks is None else tuple(ranks)
    return StacksRequest(id=name, ranks=chosen, native=bool(raw.get("native")), by=str(raw.get("by") or ""))
