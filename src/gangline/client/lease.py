"""Keeps the lease of a run for as long as somebody waits for it: a thread that renews, over a connection of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gangline.client.client import Client
from gangline.client.connection import connect
from gangline.domain.errors import GanglineError

__all__ = ["keep_lease"]

_RENEWALS = 4
"""How often a lease is renewed in its length: a server that is started anew meanwhile does no harm."""
_LONGEST_PAUSE_S = 30.0
_LOOK_S = 1.0
"""How often is asked whether the run is still wanted."""


@contextmanager
def keep_lease(
    run: str,
    lease_s: float,
    *,
    connect: Callable[[], Client] = connect,
    is_wanted: Callable[[], bool] = lambda: True,
) -> Iterator[None]:
    """Renew the lease of a run until the block is left, or nobody wants the run any more.

    Args:
        run: its id.
        lease_s: what it was submitted with.
        connect: finds the server, and starts an embedded one that has gone.
        is_wanted: asked about once a second.
    """
    left = threading.Event()
    pause_s = min(lease_s / _RENEWALS, _LONGEST_PAUSE_S)
    args = (run, pause_s, left, connect, is_wanted)
    thread = threading.Thread(target=_renew, args=args, name=f"lease-{run}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        left.set()
        thread.join(pause_s)


def _renew(
    run: str, pause_s: float, left: threading.Event, connect: Callable[[], Client], is_wanted: Callable[[], bool]
) -> None:
    client: Client | None = None
    due = time.monotonic() + pause_s
    while not left.wait(min(pause_s, _LOOK_S)) and is_wanted():
        if time.monotonic() < due:
            continue
        due = time.monotonic() + pause_s
        try:
            client = client or connect()
            client.renew(run)
        except GanglineError:  # the next one may arrive, as long as the lease lasts
            client = None
    if client is not None:
        client.close()
