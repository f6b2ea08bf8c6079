"""Runs whose folder the store does not know are taken in again from what the folder holds: the database was lost.

Called once at the start of a server, before anybody is answered. It inserts rows; what agents and ranks wrote is then
read by the reconciler, as for any run, and gangs that live are found by their backend.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from gangline.control.facts import EXIT_CODES
from gangline.control.health import closing_marks
from gangline.control.records import Record, read_record, untouched
from gangline.control.specs import demand_of
from gangline.domain.errors import GanglineError
from gangline.domain.phase import TERMINAL, Phase, Reason
from gangline.domain.spec import RunSpec
from gangline.ports import Clock
from gangline.rundir.files import Unreadable, is_temporary, read_json
from gangline.rundir.home import Home
from gangline.rundir.layout import RunDir
from gangline.store.rows import NewEvent, NewRun, RunRow
from gangline.store.store import Store
from gangline.wire.spec import spec_from_mapping, spec_to_mapping

__all__ = ["Adopted", "adopt_runs"]

_log = logging.getLogger(__name__)
_OF_A_SUBMIT = frozenset({"spec.json", "code.json"})
"""All that a submit which was cut off before it counted leaves in the folder of its run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted:
    """What came of it."""

    runs: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    """A sentence for each folder that could not be adopted."""


def adopt_runs(store: Store, home: Home, clock: Clock) -> Adopted:
    """Take in every run folder that the store does not know.

    Folders of submits that were cut off before they counted are removed: they hold nothing but a copy of the spec.
    """
    known = store.all_ids()
    runs, refused = [], []
    for path in sorted(home.runs.iterdir()):
        if path.name in known or path.name.startswith(".") or not path.is_dir():
            continue
        folder = RunDir(path)
        try:
            if _adopt(store, folder, clock.now()):
                runs.append(path.name)
        except (GanglineError, OSError) as error:
            _log.warning("%s is not adopted: %s", path, error)
            refused.append(f"The run folder {path} is not shown: {error}")
    if runs:
        _log.warning("adopted %d runs from their folders: %s", len(runs), ", ".join(runs))
    return Adopted(runs=tuple(runs), refused=tuple(refused))


def _adopt(store: Store, folder: RunDir, now: float) -> bool:
    """Adopt one; False where the folder was none of a run.

    Raises:
        GanglineError: what it holds makes no run.
        OSError: it cannot be read.
    """
    if not folder.record.exists() and _is_cut_off(folder):
        shutil.rmtree(folder.path)
        return False
    raw = read_json(folder.spec)
    if raw is None:
        raise GanglineError("It has no spec.json", fix="Move it away if it is none of Gangline's.")
    spec = spec_from_mapping(raw)
    record, doubt = _record_of(folder, spec)
    if record.run.revision:
        raw = read_json(folder.spec_revision(record.run.revision))
        if raw is None:
            raise GanglineError(f"It has no {folder.spec_revision(record.run.revision).name}")
        spec = spec_from_mapping(raw)
    said = "Adopted from its folder: the database did not know this run."
    events = [
        NewEvent(time=record.run.created, kind="submitted", message=f"Submitted to pool `{record.run.pool}`."),
        NewEvent(time=now, kind="adopted", message=f"{said} {doubt}".strip()),
    ]
    is_new = store.adopt(
        record.run, spec=spec_to_mapping(spec), client=record.client, attempts=record.closed, events=events
    )
    store.add_marks([mark for attempt in record.closed for mark in closing_marks(record.run, attempt)])
    if not is_new and folder.launches():
        raise GanglineError("Another run has its key", why="The folder was copied, or its run.json was")
    if not is_new:  # the same submit came in twice at once; this folder was to be removed
        shutil.rmtree(folder.path)
    return is_new


def _is_cut_off(folder: RunDir) -> bool:
    return all(path.name in _OF_A_SUBMIT or is_temporary(path.name) for path in folder.path.iterdir())


def _record_of(folder: RunDir, spec: RunSpec) -> tuple[Record, str]:
    """What the server knew, and what of that is in doubt; as far as files tell where its own record is lost."""
    try:
        record, fault = read_record(folder), "run.json is missing"
    except (GanglineError, OSError) as error:
        record, fault = None, str(error)
    if record is None:
        return _guess(folder, spec), f"What the server had decided of it is lost ({fault})."
    if record.run.id != folder.path.name:
        raise GanglineError(
            f"Its run.json is that of `{record.run.id}`", fix="Give the folder the name that it had, or move it away."
        )
    return replace(record, run=_with_place(folder, record.run)), ""


def _with_place(folder: RunDir, run: RunRow) -> RunRow:
    """The row, its place taken from launch.json where the record is older than that."""
    if run.placement is not None or run.handle is not None or run.phase in TERMINAL:
        return run
    told = _told(folder, run.launch)
    if told is None:
        return run
    handle = _handle(folder, run.launch)
    return replace(run, phase=Phase.STARTING, placement=_place(told), handle=handle, message="Agents are starting.")


def _guess(folder: RunDir, spec: RunSpec) -> Record:
    """The row, from spec and launches alone.

    A gang that lives, or whose leader has said that the run is over, is left to the reconciler. Whether any other run
    was to go on is not known, so a person decides.
    """
    launches, created = folder.launches(), folder.spec.stat().st_mtime
    run = replace(untouched(_new_run(folder.path.name, spec, created)), message="Adopted from its folder.")
    launch = max((one.number for one in launches if one.spec.exists()), default=0)  # another may wait for its turn
    told = _told(folder, launch)
    if told is not None and _is_held(folder, launch):
        return _record(replace(run, launch=launch, phase=Phase.STARTING, placement=_place(told)))
    if told is not None and not told["devices"]:  # elsewhere: its backend knows, by handle or key
        handle = _handle(folder, launch)
        return _record(replace(run, launch=launch, phase=Phase.STARTING, placement=_place(told), handle=handle))
    if told is not None and _is_over(folder):
        return _record(replace(run, launch=launch, phase=Phase.STARTING))
    unsure = replace(
        run,
        launch=launch,
        phase=Phase.FAILED,
        reason=Reason.PLATFORM,
        exit_code=EXIT_CODES[Reason.PLATFORM],
        ended=created,
        message="Adopted from its folder, which does not say whether the run was to go on. `gangline resume` goes on.",
    )
    return _record(unsure)


def _record(run: RunRow) -> Record:
    return Record(run=run, client={}, closed=())


def _new_run(run_id: str, spec: RunSpec, created: float) -> NewRun:
    demand = demand_of(spec)
    return NewRun(
        id=run_id,
        key=f"adopted {run_id}",
        name=spec.name or "",
        project=spec.project,
        user="",
        pool=spec.pool,
        priority=spec.priority,
        nodes=demand.nodes,
        procs_per_node=demand.procs_per_node,
        gpus_per_node=demand.gpus_per_node,
        labels=dict(spec.labels),
        spec={},
        client={},
        snapshot=None if spec.snapshot is None else spec.snapshot.digest,
        created=created,
    )


def _told(folder: RunDir, launch: int) -> Mapping[str, Any] | None:
    told = read_json(folder.launch(launch).spec)
    is_whole = told is not None and isinstance(told.get("devices"), list) and isinstance(told.get("nodes"), int)
    return told if is_whole else None


def _handle(folder: RunDir, launch: int) -> Mapping[str, Any] | None:
    """What the backend knows the launch by; None also where that is damaged: it is asked for by its key then."""
    try:
        return read_json(folder.launch(launch).handle)
    except Unreadable:
        return None


def _place(told: Mapping[str, Any]) -> list[list[str]]:
    """Devices of each node of a launch; nobody has handed out any to agents elsewhere."""
    return told["devices"] or [[] for _ in range(told["nodes"])]


def _is_over(folder: RunDir) -> bool:
    attempts = folder.attempts()
    result = read_json(attempts[-1].result) if attempts else None
    return result is not None and result.get("next") == "end"


def _is_held(folder: RunDir, launch: int) -> bool:
    """Whether an agent of the launch lives: it holds its lock for as long."""
    for path in folder.launch(launch).path.glob("node-*.lock"):
        with suppress(FileNotFoundError):
            lock = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            finally:
                os.close(lock)
    return False
