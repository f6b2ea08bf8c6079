"""Looks at the Jobs API for all runs of a pool together, in a thread: no tick of the server waits for a network."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gangline.backends.ray.api import Job, JobsApi, Version
from gangline.domain.errors import AuthFailed, BackendError
from gangline.domain.pool import PoolState, PoolStatus

__all__ = ["Look", "Watcher"]

_IDLE_S = 30.0
"""How long after the last question looks go on: a cluster that nobody asks about is left alone."""
_CLOSE_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One answer of the Jobs API, or why there is none."""

    began: float
    """By the monotonic clock, before it was asked."""
    version: Version | None = None
    jobs: Mapping[str, Job] = field(default_factory=dict)
    why: str = ""
    """Why there is no answer; "" where there is one."""


class Watcher:
    """Keeps the newest look. Safe for threads.

    Args:
        wall, monotonic: time, for tests.
    """

    def __init__(
        self,
        api: JobsApi,
        *,
        poll_s: float,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._poll_s = poll_s
        self._wall = wall
        self._monotonic = monotonic
        self._state = PoolState(status=PoolStatus.UNTRIED)
        self._newest: Look | None = None
        self._asked = float("-inf")
        self._wake = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._go_on, name="gangline-ray", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closed = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_S)

    def state(self) -> PoolState:
        """How the cluster could be reached last."""
        return self._state

    def newest(self) -> Look | None:
        """The newest look; has further ones made for a while. None: there was none yet."""
        self._asked = self._monotonic()
        self._wake.set()
        return self._newest

    def look(self) -> Look:
        """Look now."""
        began = self._monotonic()
        try:
            version = self._api.version()
            jobs = {job.submission_id: job for job in self._api.jobs()}
            if self._api.version() != version:  # the head was started anew in between
                version = self._api.version()
                jobs = {job.submission_id: job for job in self._api.jobs()}
        except BackendError as error:
            self.note(error)
            self._newest = Look(began=began, why=f"{error.what}: {error.why}.")
        else:
            self.note(None)
            self._newest = Look(began=began, version=version, jobs=jobs)
        return self._newest

    def note(self, error: BackendError | None) -> None:
        """Whether the cluster could be reached just now."""
        if error is None:
            self._state = PoolState()
            return
        status = PoolStatus.LOGIN_NEEDED if isinstance(error, AuthFailed) else PoolStatus.UNREACHABLE
        since = self._state.since if self._state.status is status else self._wall()
        self._state = PoolState(status=status, text=f"{error.what}: {error.why}.", since=since)

    def _go_on(self) -> None:
        while not self._closed:
            if self._monotonic() - self._asked > _IDLE_S:
                self._wake.wait(_IDLE_S)
            else:
                self.look()
                self._wake.clear()
                self._pause()
            if self._monotonic() - self._asked > _IDLE_S:
                self._wake.clear()

    def _pause(self) -> None:
        deadline = self._monotonic() + self._poll_s
        while not self._closed and (left := deadline - self._monotonic()) > 0:
            time.sleep(min(left, 0.2))
