"""Requests to the gang: `control.jsonl`, followed by the leader. Standard library only."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gangline.agent.teardown import NOTICES
from gangline.rundir.journal import JournalReader

__all__ = ["ControlFile", "StopRequest", "parse_request"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequest:
    """Somebody wants the gang to end."""

    cause: str
    """`stop`, `preemption` or `time_limit`."""
    grace_s: float | None = None
    """None: as the spec says."""
    by: str = ""


class ControlFile:
    """Looks for new requests; costs one `stat` where there are none."""

    def __init__(self, path: Path, offset: int) -> None:
        self._journal = JournalReader(path, offset)

    def read(self) -> list[dict[str, Any]]:
        """Requests that were not seen yet."""
        try:
            if self._journal.path.stat().st_size <= self._journal.offset:
                return []
        except OSError:
            return []
        return self._journal.read_all()


def parse_request(raw: Mapping[str, Any]) -> StopRequest | str:
    """A request, or a sentence about what is not understood."""
    if raw.get("kind") != "stop":
        return f"Request `{raw.get('kind')}` is not known to this agent; known: stop."
    cause, grace_s = raw.get("cause", "stop"), raw.get("grace_s")
    if cause not in NOTICES:
        return f"A stop because of `{cause}` is not known; known: {', '.join(sorted(NOTICES))}."
    if grace_s is not None and not (isinstance(grace_s, int | float) and math.isfinite(grace_s) and grace_s >= 0):
        return f"A grace of {grace_s!r} seconds cannot be."
    return StopRequest(cause=cause, grace_s=grace_s, by=str(raw.get("by") or ""))
