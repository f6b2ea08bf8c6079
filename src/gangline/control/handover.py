"""Launches on their way to backends that take their time: one thread for each pool calls `Backend.submit` in order.

The reconciler asks for a launch again and again, and gets the answer once it is there. Nothing is kept that a killed
server would miss: what was on its way is asked for anew, under the same key.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from gangline.domain.errors import AuthFailed, BackendError, NoCapacity, Transient

__all__ = ["HandOvers", "in_a_thread"]

_T = TypeVar("_T")


def in_a_thread(work: Callable[[], None]) -> None:
    """Do it beside everything else; a server that ends does not wait for it."""
    threading.Thread(target=work, name="hand-over", daemon=True).start()


@dataclass(slots=True, kw_only=True)
class _Item(Generic[_T]):
    """One launch."""

    key: str
    work: Callable[[], _T]
    is_new: bool
    lane: str = ""
    has_begun: bool = False
    is_done: bool = False
    result: _T | None = None
    error: Exception | None = None


@dataclass(slots=True)
class _Pool(Generic[_T]):
    waiting: deque[_Item[_T]] = field(default_factory=deque)
    items: dict[str, _Item[_T]] = field(default_factory=dict)
    """Everything whose answer was not fetched yet, by key."""
    is_busy: bool = False


class HandOvers(Generic[_T]):
    """Safe for threads.

    Args:
        start: has work done beside the caller.
    """

    def __init__(self, start: Callable[[Callable[[], None]], None] = in_a_thread) -> None:
        self._start = start
        self._lock = threading.Lock()
        self._pools: dict[str, _Pool[_T]] = {}

    def ask(self, pool: str, key: str, work: Callable[[], _T], *, is_new: bool, lane: str = "") -> _T | None:
        """The answer, given out once; None while there is none. What is asked for first comes first.

        Args:
            is_new: nothing was ever tried under this key: where one before it is turned away, it is not tried.
            lane: the part of the pool that it goes to; where that one alone is full, others are still tried.
        Raises:
            Exception: whatever `work` raised; given out once, too.
        """
        with self._lock:
            mine = self._pools.setdefault(pool, _Pool())
            item = mine.items.get(key)
            if item is None:
                item = _Item(key=key, work=work, is_new=is_new, lane=lane)
                mine.items[key] = item
                mine.waiting.append(item)
            must_start, mine.is_busy = not mine.is_busy and bool(mine.waiting), mine.is_busy or bool(mine.waiting)
        if must_start:
            self._start(lambda: self._work_off(mine))
        with self._lock:
            if not item.is_done:
                return None
            del mine.items[key]
        if item.error is not None:
            raise item.error
        return item.result

    def withdraw(self, pool: str, key: str) -> bool:
        """Take a launch back; False: it is being submitted, or was, and its answer is to be asked for."""
        with self._lock:
            mine = self._pools.get(pool)
            item = None if mine is None else mine.items.get(key)
            if mine is None or item is None:
                return True
            if item.has_begun:
                return False
            if item in mine.waiting:
                mine.waiting.remove(item)
            del mine.items[key]
            return True

    def is_under_way(self, pool: str, key: str) -> bool:
        """Whether the launch is being submitted, or was, and nobody has asked for the answer yet."""
        with self._lock:
            mine = self._pools.get(pool)
            item = None if mine is None else mine.items.get(key)
            return item is not None and item.has_begun

    def _work_off(self, mine: _Pool[_T]) -> None:
        while True:
            with self._lock:
                if not mine.waiting:
                    mine.is_busy = False
                    return
                item = mine.waiting.popleft()
                item.has_begun = True
            try:
                result, error = item.work(), None
            except Exception as raised:  # noqa: BLE001 - it is raised where the answer is asked for
                result, error = None, raised
            with self._lock:
                item.result, item.error, item.is_done = result, error, True
                if isinstance(error, NoCapacity | Transient | AuthFailed):
                    _turn_away(mine, error)


def _turn_away(mine: _Pool[_T], error: BackendError) -> None:
    """The pool takes nothing now, and nothing behind may overtake. What was tried before may exist: it is looked up."""
    lane = error.lane if isinstance(error, NoCapacity) else None
    for item in [item for item in mine.waiting if item.is_new and lane in {None, item.lane}]:
        mine.waiting.remove(item)
        item.error, item.is_done = error, True
