"""Where the ranks of one node were when a failure ended their attempt: asked just before they are told to end.

The injected handler dumps stacks within a millisecond or so, also inside of a collective, and what does not come within
a few of them is done without: nobody waits longer for a restart. Standard library only.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from gangline.agent.inject import STACKS_SIGNAL
from gangline.agent.processes import send
from gangline.agent.ranktree import read_state
from gangline.rundir.layout import AttemptDir

__all__ = ["LOOK_AGAIN_S", "STOPPED", "LastLook"]

LOOK_AGAIN_S = 0.002
STOPPED = "stopped (SIGSTOP)"
_PATIENCE_S = 0.1
_MOST_BYTES = 1 << 18


class LastLook:
    """Asks ranks for their stacks at once.

    Args:
        ranks: pid of each rank that runs.
    """

    def __init__(self, folder: AttemptDir, ranks: Mapping[int, int]) -> None:
        from gangline.agent.watch.taking import handles_signal  # noqa: PLC0415 - a start needs none of it

        self._folder = folder
        self._stopped = {rank for rank, pid in ranks.items() if read_state(pid) == "stopped"}
        self._deadline = time.monotonic() + _PATIENCE_S
        heading = f"\n# {time.strftime('%Y-%m-%dT%H:%M:%S%z')} as the attempt is ended\n"
        self._begins = {
            rank: _append(folder.stacks(rank), heading)
            for rank, pid in ranks.items()
            if rank not in self._stopped and handles_signal(pid)
        }
        self._sizes = dict(self._begins)
        self._waiting = set(self._begins)
        send([ranks[rank] for rank in self._begins], STACKS_SIGNAL)

    def is_over(self) -> bool:
        """All have answered: their files have grown, and have stopped growing; or it has taken too long."""
        for rank in list(self._waiting):
            size = _size(self._folder.stacks(rank))
            if size > self._begins[rank] and size == self._sizes[rank]:
                self._waiting.discard(rank)
            self._sizes[rank] = size
        return not self._waiting or time.monotonic() >= self._deadline

    def place(self, rank: int) -> str | None:
        """`waiting in all_reduce (train.py:41)`, `in time.sleep (train.py:17)`, `STOPPED`; None: it did not answer."""
        if rank in self._stopped:
            return STOPPED
        if rank not in self._begins:
            return None
        from gangline.agent.watch.frames import parse_faulthandler, with_code  # noqa: PLC0415 - as above
        from gangline.agent.watch.places import decide_place  # noqa: PLC0415 - as above
        from gangline.agent.watch.recorder import read_flight  # noqa: PLC0415 - as above
        from gangline.agent.watch.taking import SourceLines  # noqa: PLC0415 - as above

        threads = parse_faulthandler(_read(self._folder.stacks(rank), self._begins[rank]))
        if not threads:
            return None
        place = decide_place(with_code(threads, SourceLines().line))
        flight, _ = read_flight(self._folder, rank)
        recorded = str(flight) if flight is not None and flight.state != "completed" else ""
        return ", ".join(filter(None, (place.told, recorded))) or None


def _append(path: Path, text: str) -> int:
    """Add to a rank's file; its size then. A full disk costs the heading."""
    with suppress(OSError), path.open("ab") as file:
        file.write(text.encode())
    return _size(path)


def _read(path: Path, offset: int) -> str:
    with suppress(OSError), path.open("rb") as file:
        file.seek(offset)
        return file.read(_MOST_BYTES).decode("utf-8", "replace")
    return ""


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
