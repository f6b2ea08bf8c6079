"""Whether attempts fail in the same way each time: then another restart only costs machines.

Pure; standard library only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gangline.agent.attempt import RankRecord
from gangline.domain.restart import Repeated
from gangline.domain.signals import signal_name

__all__ = ["Repeats"]

_CHANGING = re.compile(r"0x[0-9a-fA-F]+|\d+")
"""Numbers in messages: addresses, pids, ports, times."""


@dataclass(slots=True)
class Repeats:
    """Failures of one launch that were alike, one after the other."""

    _last: tuple[object, ...] = ()
    _count: int = 0

    def note(self, failure: RankRecord | None, *, step: int | None, said: str = "") -> Repeated:
        """Count the end of an attempt.

        Args:
            failure: the rank that failed first; None: none is to blame.
            step: the last one that this rank reported in the attempt; None: it reports none.
            said: why the attempt ended, where no rank failed; "": that is not known, and like no other end.
        """
        what = said if failure is None else _describe(failure)
        if not what:
            self._last, self._count = (), 0
            return Repeated()
        kind = (_CHANGING.sub("#", what), step)
        self._count = self._count + 1 if kind == self._last else 1
        self._last = kind
        return Repeated(count=self._count, what=what, step=step)


def _describe(failure: RankRecord) -> str:
    error = failure.error or {}
    if error.get("type"):
        first_line = str(error.get("message") or "").strip().partition("\n")[0]
        return f"{error['type']}: {first_line}".rstrip(": ")
    return signal_name(failure.signal) or f"exit code {failure.exit_code}"
