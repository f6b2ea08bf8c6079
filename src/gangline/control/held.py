"""Launches that the server counts on, as housekeeping asks for them."""

from __future__ import annotations

from collections.abc import Mapping

from gangline.domain.errors import NotFound
from gangline.domain.gang import Handle
from gangline.ports import Backend, Clock
from gangline.store.rows import NewEvent
from gangline.store.store import Store

__all__ = ["expected_launches", "note_in_history"]


def expected_launches(store: Store, backends: Mapping[str, Backend], pool: str) -> dict[tuple[str, int], Handle | None]:
    """Those of a pool, by run and number; None: the backend has not told its handle yet, or it waits for another."""
    runs = [run for run in store.held_runs() if run.pool == pool]
    ahead = backends[pool].ahead if pool in backends else None
    waiting = {} if ahead is None else {(run, queued.launch): None for run, queued in ahead.queued().items()}
    held = {(run.id, run.launch): None if run.handle is None else Handle.from_dict(run.handle) for run in runs}
    return {**waiting, **held}


def note_in_history(store: Store, clock: Clock, run_id: str, text: str) -> None:
    """Add a sentence to the history of a run; one that was removed has none."""
    try:
        store.run(run_id)
    except NotFound:
        return
    store.add_events(run_id, [NewEvent(time=clock.now(), kind="housekeeping", message=text)])
