"""`run.json`: the server's own row of a run, kept in its folder as well, for the day on which the database is lost.

It is written before the run is queued and after each decision, and read by `control/adopt.py` alone.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gangline.domain.phase import Phase, Reason
from gangline.rundir.files import Unreadable, read_json, write_text
from gangline.rundir.home import Home
from gangline.rundir.layout import RunDir
from gangline.store.rows import AttemptRow, NewRun, RunRow
from gangline.store.store import Store

__all__ = ["Record", "RunRecords", "read_record", "untouched", "write_record"]

_log = logging.getLogger(__name__)
_VERSION = 1
_UNTOUCHED: Mapping[str, Any] = {
    "phase": Phase.QUEUED,
    "version": 0,
    "launch": 0,
    "launch_restarts": {},
    "budget_from": 0,
    **dict.fromkeys(
        ("reason", "started", "ended", "exit_code", "handle", "placement", "attempt", "told_attempt", "step"), None
    ),
    **dict.fromkeys(("attempt_nodes", "total_steps", "not_before", "stop_asked"), None),
    **dict.fromkeys(("stop_grace_s", "stop_by", "stop_cause"), None),
    **dict.fromkeys(("branch_attempt", "revision"), 0),
}
"""The columns of a run that has just been queued."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What `run.json` holds."""

    run: RunRow
    client: Mapping[str, Any]
    closed: Sequence[AttemptRow]
    """Attempts of which the server knows the end, because no leader was left to write it down."""


def untouched(new: NewRun) -> RunRow:
    """The row of a run that has just been queued."""
    given = {name: getattr(new, name) for name in NewRun.__dataclass_fields__ if name in RunRow.__dataclass_fields__}
    return RunRow(**given, **_UNTOUCHED)


def write_record(folder: RunDir, run: RunRow, *, client: Mapping[str, Any], closed: Sequence[AttemptRow] = ()) -> None:
    """Write `run.json` of a run.

    Raises:
        OSError: it cannot be written; the one before, if any, is still there.
    """
    row = {**asdict(run), "phase": run.phase.value, "reason": None if run.reason is None else run.reason.value}
    record = {"version": _VERSION, "run": row, "client": dict(client), "closed": [asdict(one) for one in closed]}
    write_text(folder.record, json.dumps(record) + "\n", mode=0o600)


def read_record(folder: RunDir) -> Record | None:
    """What `run.json` says; None where there is none.

    Raises:
        Unreadable: it holds something else than it should.
        OSError: it is there but cannot be read.
    """
    raw = read_json(folder.record)
    if raw is None:
        return None
    try:
        return _record_of(raw)
    except (KeyError, TypeError, ValueError) as error:
        raise Unreadable(
            f"`{folder.record}` is not the record of a run", why=f"{type(error).__name__}: {error}"
        ) from error


class RunRecords:
    """Keeps the record of each run as the store has it; `write` is what `Store.on_changed` calls. Safe for threads."""

    def __init__(self, store: Store, home: Home) -> None:
        self._store = store
        self._home = home
        self._lock = threading.Lock()

    def write(self, run_id: str) -> None:
        """Write the run's record anew. What goes wrong is logged: the database has it all."""
        with self._lock:  # so that the newest row is the one that is written last
            run = self._store.run(run_id)
            _, client = self._store.spec_and_client(run_id)
            closed = [one for one in self._store.attempts(run_id) if one.outcome is not None and one.next is None]
            folder = self._home.run(run_id)
            if not folder.spec.exists():  # removed; what is in its place, if anything, is only what ranks made anew
                return
            try:
                write_record(folder, run, client=client, closed=closed)
            except OSError as error:
                _log.warning("%s cannot be written: %s", folder.record, error)


def _record_of(raw: Mapping[str, Any]) -> Record:
    if raw["version"] != _VERSION:
        raise ValueError(f"its version is {raw['version']!r}, this Gangline knows {_VERSION}")
    row = dict(raw["run"])
    row["phase"] = Phase(row["phase"])
    row["reason"] = None if row["reason"] is None else Reason(row["reason"])
    closed = [AttemptRow(**one) for one in raw["closed"]]
    return Record(run=RunRow(**row), client=dict(raw["client"]), closed=closed)
