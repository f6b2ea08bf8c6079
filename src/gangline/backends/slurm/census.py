"""What a cluster has, asked beside the work of others: whoever wants to know is told what is known."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from gangline.backends.slurm.capacity import NodeKind, parse_sinfo, render_sinfo
from gangline.backends.slurm.link import Link
from gangline.domain.errors import BackendError
from gangline.domain.pool import SlurmPool

__all__ = ["Census"]

_log = logging.getLogger(__name__)

_SINFO_S = 20.0
_ASK_AGAIN_S = 30.0
"""How often it is asked at most, whether it answers or not."""
_FRESH_S = 120.0
"""So long what was said to be free counts."""
_FIRST_PATIENCE_S = 2.0


class Census:
    """Asks `sinfo` in a thread of its own when what is known is old. Safe for threads.

    Args:
        first_patience_s: how long the first question is waited for; later ones are not.
    """

    def __init__(
        self,
        pool: SlurmPool,
        link: Link,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        first_patience_s: float = _FIRST_PATIENCE_S,
    ) -> None:
        self._pool = pool
        self._link = link
        self._monotonic = monotonic
        self._first_patience_s = first_patience_s
        self._lock = threading.Lock()
        self._kinds: tuple[NodeKind, ...] = ()
        self._ask_at = 0.0
        self._answered_at: float | None = None
        self._first = threading.Event()

    def kinds(self) -> tuple[NodeKind, ...]:
        """What the cluster has, as it said last; empty where it has not answered yet."""
        now = self._monotonic()
        with self._lock:
            is_due, is_first = now >= self._ask_at, self._ask_at == 0.0
            if is_due:
                self._ask_at = now + _ASK_AGAIN_S
        if is_due:
            threading.Thread(target=self._ask, name="gangline-sinfo", daemon=True).start()
        if is_first:
            self._first.wait(self._first_patience_s)
        return self._kinds

    def is_fresh(self) -> bool:
        """Whether the cluster has said a moment ago what it has."""
        return self._answered_at is not None and self._monotonic() - self._answered_at < _FRESH_S

    def _ask(self) -> None:
        try:
            ran = self._link.run(render_sinfo(), timeout_s=_SINFO_S)
            kinds = parse_sinfo(ran.out) if ran.rc == 0 else []
            if kinds:
                self._kinds, self._answered_at = tuple(kinds), self._monotonic()
        except BackendError as error:
            _log.info("pool %s did not say what it has: %s", self._pool.name, error)
        finally:
            self._first.set()
