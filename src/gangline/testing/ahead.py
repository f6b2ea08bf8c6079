"""Launches that wait for the end of others, on a cluster that there is not."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gangline.domain.errors import BackendError, Transient
from gangline.domain.gang import GangSpec, Handle
from gangline.ports import Queued

__all__ = ["FakeAhead"]


class FakeAhead:
    """Implements `gangline.ports.Ahead` in memory; launches are ready to be taken over until a test forgets them.

    Args:
        has_started: whether a launch of a run was submitted for good.
    """

    def __init__(self, has_started: Callable[[str, int], bool]) -> None:
        self.lead_s = 86_400.0
        self.waiting: dict[str, GangSpec] = {}
        self.made: list[tuple[str, int]] = []
        """Every launch that was ever queued ahead."""
        self.refusal: BackendError | None = None
        """What the next `queue` or `withdraw` raises."""
        self.lost_answers = 0
        self._unsure: set[str] = set()
        self._has_started = has_started

    def queue(self, gang: GangSpec, *, after: Handle) -> str:  # noqa: ARG002 - the fake never begins it by itself
        """As every implementation; `lost_answers` has it done without a word."""
        self._raise_refusal()
        if self._has_started(gang.run_id, gang.launch):
            return ""
        if gang.run_id not in self.waiting or self.waiting[gang.run_id].launch != gang.launch:
            self.made.append((gang.run_id, gang.launch))
        self.waiting[gang.run_id] = gang
        self._unsure.discard(gang.run_id)
        if self.lost_answers:
            self.lost_answers -= 1
            self._unsure.add(gang.run_id)
            raise Transient("The fake backend did not answer", why="The launch may be in its queue all the same")
        return f"{gang.run_id}.{gang.launch}"

    def withdraw(self, run_id: str) -> None:
        """Forget it."""
        self._raise_refusal()
        self.waiting.pop(run_id, None)

    def queued(self) -> Mapping[str, Queued]:
        """What waits."""
        return {
            run_id: Queued(launch=gang.launch, job="" if run_id in self._unsure else f"{run_id}.{gang.launch}")
            for run_id, gang in self.waiting.items()
        }

    def take_over(self, gang: GangSpec) -> bool:
        """Whether this launch waited, and does so no longer."""
        found = self.waiting.pop(gang.run_id, None)
        return found is not None and found.launch == gang.launch

    def _raise_refusal(self) -> None:
        refusal, self.refusal = self.refusal, None
        if refusal is not None:
            raise refusal
