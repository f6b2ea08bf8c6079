"""The card `gangline.run` of a task: drawn by the trampoline while the gang runs, over all restarts, and at its end.

Ranks could draw it only while they live, and those of a pool know no server. Speaks to `gangline.client` alone.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from gangline.client import Client, GanglineError, RunDetail, connect

from .cardfile import CardFile
from .cardpage import Seen, choose_metrics, render_parts
from .outcome import ENDED
from .task import GangTask

__all__ = ["live_card"]

_REFRESH_S = 5.0
_FIRST_S = 1.0
"""So soon a card is there."""
_SHARE = 0.1
"""Most of the time that drawing may take."""
_LAST_S = 30.0
_BUCKETS = 200
_SAMPLES = 150
_TAIL_LINES = 30


@contextmanager
def live_card(flow_datastore: Any, task: GangTask, run_id: str) -> Iterator[None]:
    """Draw the card every few seconds until the block is left, and then once more. It never fails a task."""
    left = threading.Event()

    def keep_drawing() -> None:
        _keep_drawing(lambda: CardFile(flow_datastore, task), run_id, left)

    thread = threading.Thread(target=keep_drawing, name="card", daemon=True)
    thread.start()
    try:
        yield
    finally:
        left.set()
        thread.join(_LAST_S)


def _keep_drawing(make_file: Callable[[], CardFile], run_id: str, left: threading.Event) -> None:
    file, drawn, pause_s, is_last = None, "", _FIRST_S, False
    complain = _Complaint()
    while not is_last:
        is_last = left.wait(pause_s)
        began = time.monotonic()
        try:
            file = file or make_file()
            drawn = _draw(file, run_id, drawn)
        except Exception as error:  # noqa: BLE001 - whatever a store or a component raises: a card is not the task
            complain(error)
        pause_s = max(_REFRESH_S, (time.monotonic() - began) / _SHARE)


def _draw(file: CardFile, run_id: str, before: str) -> str:
    """Draw what has changed since; returns what is drawn now, to be compared."""
    with connect() as client:
        seen = look(client, run_id)
    now = json.dumps([seen.run, seen.metrics, seen.system, seen.tail], sort_keys=True, default=str)
    if now != before:
        file.save(f"Gang of run {run_id}", render_parts(seen), is_final=seen.run["phase"] in ENDED)
    return now


def look(client: Client, run_id: str) -> Seen:
    """What is known of a run; what cannot be had is left out."""
    run = client.run(run_id)
    failed = next((one["first_failure"] for one in reversed(run["attempts"]) if one["first_failure"]), None)
    rank = failed["rank"] if failed is not None and run["phase"] == "failed" else 0
    names = choose_metrics(list(run["metrics"]))
    return Seen(
        run=run,
        metrics=[found for name in names if (found := _try(client.metric, run_id, name, buckets=_BUCKETS))],
        system=_newest_samples(client, run),
        rank=rank,
        tail=(_try(client.log_chunk, run_id, rank, tail=_TAIL_LINES) or {}).get("text", "") if run["attempts"] else "",
    )


def _newest_samples(client: Client, run: RunDetail) -> Sequence[Any]:
    """Of the newest attempt that has some: one that has just begun has none yet."""
    for attempt in reversed(run["attempts"]):
        found = _try(client.system, run["id"], attempt=attempt["number"], samples=_SAMPLES) or ()
        if any(view["samples"] for view in found):
            return found
    return ()


def _try(ask: Any, *args: Any, **kwargs: Any) -> Any:
    try:
        return ask(*args, **kwargs)
    except GanglineError:  # no such thing yet, or no longer
        return None


class _Complaint:
    """Says once what is wrong with the card."""

    def __init__(self) -> None:
        self._is_said = False

    def __call__(self, error: Exception) -> None:
        if not self._is_said:
            self._is_said = True
            sys.stderr.write(f"The card of this task could not be drawn ({error}); the run is not touched by it.\n")
