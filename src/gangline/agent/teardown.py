"""How an attempt is ended on one node: who gets which signal, and when. The decisions are pure; standard library only.

Three kinds of end:
- `failure`: the gang cannot go on. Everybody is told at once; a rank that could only set a flag
  (`gangline.should_stop()`) is killed at once, for it cannot save what takes all ranks to save; so is one that is
  stopped, for it hears nothing.
- a notice (`stop`, `preemption`, `time_limit`): only ranks are told, and Python programs inside of a rank that is a
  wrapper; workers of a training process live on until that process ends, so that it can finish its checkpoint.
- `success`: all ranks have ended well; what they left behind is ended.
"""

from __future__ import annotations

import signal
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gangline.agent.processes import Process

__all__ = ["FAILURE", "NOTICES", "SUCCESS", "Teardown", "TreeView", "notice_targets"]

NOTICES = frozenset({"stop", "preemption", "time_limit"})
FAILURE = "failure"
SUCCESS = "success"


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeView:
    """The processes of an attempt on one node at one moment."""

    alive: Sequence[Process]
    """Parents before children."""
    ranks: Collection[int]
    """Pids of ranks."""
    cooperative: Collection[int] = ()
    """Pids of ranks that handle the stop signal by a flag."""
    python: Collection[int] = ()
    """Pids that run a Python interpreter."""
    kept: Collection[int] = ()
    """Pids that ranks may need to the last, here or on other nodes: they are left alone until all is over."""

    def without_kept(self) -> TreeView:
        """What signals are for first."""
        kept = set(self.kept)
        return replace(
            self,
            alive=[process for process in self.alive if process.pid not in kept],
            ranks=set(self.ranks) - kept,
            kept=(),
        )


@dataclass(slots=True, kw_only=True)
class Teardown:
    """The end of an attempt on one node, step by step."""

    cause: str
    deadline: float
    """When patience is over and everything is killed; monotonic clock."""
    leftover_grace_s: float
    """Patience with what outlives the ranks."""
    told: set[int] = field(default_factory=set)
    """Pids that got SIGTERM."""

    def decide(self, view: TreeView, now: float) -> dict[int, int]:
        """Signals to send now, by pid. Remembers who was told."""
        if now >= self.deadline:
            return dict.fromkeys((process.pid for process in view.alive), int(signal.SIGKILL))
        orders = self._decide(view.without_kept(), now)
        kept = set(view.kept)
        if self.cause not in NOTICES and not set(view.ranks) - kept:
            # Nobody needs them any more, and they have nothing of their own to save.
            orders |= {process.pid: int(signal.SIGKILL) for process in view.alive if process.pid in kept}
        fresh = {pid: number for pid, number in orders.items() if pid not in self.told or number == signal.SIGKILL}
        self.told.update(fresh)
        return fresh

    def _decide(self, view: TreeView, now: float) -> dict[int, int]:
        if not view.alive:
            return {}
        if self.cause == FAILURE:
            return _failure_orders(view)
        if self.cause in NOTICES and self._is_heard(view):
            return _notice_orders(view)
        # The ranks are gone. What they left behind is asked to go, and not for long; but a Python program that a
        # rank had started may be the training itself, and gets the time to save that it was promised.
        pids = [process.pid for process in view.alive]
        if self.cause not in NOTICES or not set(pids) & set(view.python):
            self.deadline = min(self.deadline, now + self.leftover_grace_s)
        return dict.fromkeys(pids, int(signal.SIGTERM))

    def escalate(self, cause: str, deadline: float) -> None:
        """A second request: the sooner end counts, and a failure ends what a notice had only asked for.

        So does the word that all ranks are through (`success`).
        """
        self.deadline = min(self.deadline, deadline)
        if cause in {FAILURE, SUCCESS} and self.cause in NOTICES:
            self.cause = cause
            self.told.clear()

    def _is_heard(self, view: TreeView) -> bool:
        """Whether somebody who was told, or is about to be, is still at work."""
        alive = {process.pid for process in view.alive}
        return not self.told or bool(alive & (self.told | set(view.ranks)))


def _failure_orders(view: TreeView) -> dict[int, int]:
    held = {process.pid for process in view.alive if process.stopped}
    doomed = _with_descendants(view.alive, set(view.cooperative)) | held
    return {process.pid: int(signal.SIGKILL if process.pid in doomed else signal.SIGTERM) for process in view.alive}


def _notice_orders(view: TreeView) -> dict[int, int]:
    """Ranks, and the topmost Python programs below ranks that are not Python themselves."""
    parents = {process.pid: process.parent for process in view.alive}
    chosen = {pid for pid in view.ranks if pid in parents}
    chosen.update(pid for pid in parents if pid in view.python and not _is_below_python(pid, parents, view.python))
    return dict.fromkeys(chosen, int(signal.SIGTERM))


def notice_targets(view: TreeView) -> list[int]:
    """Pids that a notice is for: Python ranks, and the topmost Python programs below ranks that are not Python."""
    return [pid for pid in _notice_orders(view.without_kept()) if pid in view.python]


def _is_below_python(pid: int, parents: Mapping[int, int], python: Collection[int]) -> bool:
    parent = parents.get(pid)
    while parent is not None:
        if parent in python and parent in parents:
            return True
        parent = parents.get(parent)
    return False


def _with_descendants(alive: Sequence[Process], roots: set[int]) -> set[int]:
    doomed = set(roots)
    for process in alive:  # parents come first
        if process.parent in doomed:
            doomed.add(process.pid)
    return doomed
