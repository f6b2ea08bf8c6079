"""Read what is new in run directories, and store it with how far it was read, in one transaction for many runs.

A result counts once everything that was written before it has been stored: it is looked for first, and kept back
until a reading has reached the end of every file.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gangline.control.facts import EXIT_CODES
from gangline.control.fold import (
    MetricsFold,
    apply_result,
    fold_journal,
    fold_metrics,
    journal_events,
    num_machines,
    result_event,
)
from gangline.control.health import result_marks
from gangline.domain.phase import Reason
from gangline.rundir.files import Unreadable, read_json
from gangline.rundir.journal import JournalReader
from gangline.rundir.layout import AttemptDir, RunDir
from gangline.store.rows import AttemptRow, IngestBatch, NewEvent, NodeMark, RunRow
from gangline.store.store import Store

__all__ = ["LIMIT_BYTES", "Follower", "Found", "Ingested"]

LIMIT_BYTES = 8 * 1024 * 1024
"""Most bytes that one reading takes, so that a run with much to say holds up no other."""
_PIECE_BYTES = 1024 * 1024
_READ_ATTEMPTS = 2
"""Of those that have ended, so many of the newest are read at each look."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingested:
    """One reading."""

    is_drained: bool
    """Every file was read to its end, and what was found is stored."""
    attempts: Sequence[AttemptRow]
    """All attempts of the run, as they are now known."""


@dataclass(frozen=True, slots=True)
class Found:
    """What one look at the files has found, not stored yet."""

    batch: IngestBatch
    is_drained: bool
    """Every file was read to its end."""
    num_bytes: int
    """That were read."""

    @property
    def has_news(self) -> bool:
        """Whether there is anything to be stored."""
        return bool(self.batch.cursors or self.batch.attempts or self.batch.events)


@dataclass(slots=True)
class _Reading:
    """A reading under way."""

    root: Path
    offsets: Mapping[str, int]
    left_bytes: int
    is_drained: bool = True
    cursors: dict[str, tuple[int, int]] = field(default_factory=dict)

    def records(self, path: Path) -> Iterable[list[dict[str, Any]]]:
        """New records of a journal, a piece at a time."""
        name = str(path.relative_to(self.root))
        start = self.offsets.get(name, 0)
        if _size(path) <= start:
            return
        reader = JournalReader(path, start)
        while self.left_bytes > 0:
            before = reader.offset
            found = reader.read(min(_PIECE_BYTES, self.left_bytes))
            self.left_bytes -= reader.offset - before
            if reader.offset != start:
                self.cursors[name] = (start, reader.offset)
            if not found:
                return
            yield found
        self.is_drained = self.is_drained and _size(path) <= reader.offset


class Follower:
    """Follows the directory of one run. Not safe for several threads; several followers do each other no harm.

    Between two readings it remembers offsets and attempts, so that a run with nothing new costs no query. The store
    refuses a reading whose offsets are not its own, and then everything is loaded again.
    """

    def __init__(self, store: Store, run_id: str, run_dir: RunDir, *, limit_bytes: int = LIMIT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._store = store
        self._run_id = run_id
        self._run_dir = run_dir
        self._offsets: dict[str, int] | None = None
        self._attempts: dict[int, AttemptRow] = {}
        self._marked: list[str] = []
        self._marks: list[tuple[int, int] | None] | None = None
        """Of the marked files as they were before they were read last; None: look anyway."""

    def has_changed(self) -> bool:
        """Whether a look that leaves out metrics may find anything; costs a `stat` for each journal and folder.

        The time of a folder may not tell two changes within some milliseconds apart: look now and then all the same.
        """
        return self._marks is None or self._marks != _marks_of(self._marked)

    def forget(self) -> None:
        """Load anew next time: somebody else has changed attempts."""
        self._offsets = self._marks = None

    def read(self, run: RunRow, *, everything: bool = True, now: float = math.inf) -> Ingested:
        """Store what is new; see `look`."""
        found = self.look(run, everything=everything, now=now)
        return self.keep(found, is_stored=not found.has_news or self._store.ingest(self._run_id, found.batch))

    def look(self, run: RunRow, *, everything: bool = True, now: float = math.inf) -> Found:
        """Read what is new; it has to be stored, and `keep` be told.

        Args:
            everything: also read metrics, and journals of attempts that ended long ago.
            now: nothing that is remembered of a machine is younger than that.
        Raises:
            OSError: a file is there but cannot be read.
        """
        known, reading = self._load()
        before, self._marks = _marks_of(self._marked), None
        folders = self._run_dir.attempts()
        results = _read_results(folders, known)
        everything = everything or bool(results)
        rows, events = _read_attempts(reading, run, folders, known, everything=everything)
        fold = _read_metrics(reading, self._run_dir) if everything else MetricsFold()
        marks: list[NodeMark] = []
        if reading.is_drained:
            for number, result in results.items():
                rows[number] = apply_result(rows[number], result)
                events.append(result_event(rows[number]))
                marks += result_marks(run, rows[number], result, now=now)
        changed = [row for row in rows.values() if row != known.get(row.number)]
        newest = max({**known, **rows}.items(), default=(0, None))[1]
        batch = replace(_batch(reading, fold, changed, events, newest), marks=marks)
        marked = _marked_files(self._run_dir, folders)
        if reading.is_drained and marked == self._marked:
            self._marks = before
        self._marked = marked
        return Found(batch, reading.is_drained, self._limit_bytes - reading.left_bytes)

    def keep(self, found: Found, *, is_stored: bool) -> Ingested:
        """Remember what a look has found.

        Args:
            is_stored: False: somebody else has read these files meanwhile, and nothing was stored.
        """
        if not is_stored:
            self.forget()
        elif found.has_news:
            moved = {name: new for name, (_, new) in found.batch.cursors.items()}
            self._offsets = {**(self._offsets or {}), **moved}
            self._attempts = {**self._attempts, **{row.number: row for row in found.batch.attempts}}
        ordered = [self._attempts[number] for number in sorted(self._attempts)]
        return Ingested(is_drained=found.is_drained and is_stored, attempts=ordered)

    def _load(self) -> tuple[dict[int, AttemptRow], _Reading]:
        if self._offsets is None:
            self._attempts = {attempt.number: attempt for attempt in self._store.attempts(self._run_id)}
            self._offsets = self._store.cursors(self._run_id)
        return self._attempts, _Reading(self._run_dir.path, self._offsets, self._limit_bytes)


def _read_results(folders: Sequence[AttemptDir], known: Mapping[int, AttemptRow]) -> dict[int, Mapping[str, Any]]:
    """Results that are not stored yet, by attempt. One for which the server has already decided comes too late."""
    found: dict[int, Mapping[str, Any]] = {}
    for folder in folders:
        row = known.get(folder.number)
        if row is None or row.outcome is None:
            result = _read_result(folder)
            if result is not None:
                found[folder.number] = result
    return found


def _read_result(folder: AttemptDir) -> Mapping[str, Any] | None:
    try:
        return read_json(folder.result)
    except Unreadable as error:
        end = {"outcome": "failed", "reason": Reason.PLATFORM.value, "exit_code": EXIT_CODES[Reason.PLATFORM]}
        return {**end, "message": str(error), "next": "end"}


def _read_attempts(
    reading: _Reading,
    run: RunRow,
    folders: Sequence[AttemptDir],
    known: Mapping[int, AttemptRow],
    *,
    everything: bool,
) -> tuple[dict[int, AttemptRow], list[NewEvent]]:
    found: dict[int, AttemptRow] = {}
    events: list[NewEvent] = []
    newest = folders[-1].number if folders else 0
    for folder in folders:
        number = folder.number
        row = known.get(number)
        if row is not None and row.next is not None and number <= newest - _READ_ATTEMPTS and not everything:
            continue
        if row is None:
            row = _new_attempt(number, run, {**known, **found})
        found[number] = _read_journals(reading, folder, row, events)
    return found, events


def _new_attempt(number: int, run: RunRow, known: Mapping[int, AttemptRow]) -> AttemptRow:
    """An attempt whose folder has appeared.

    Its agents, unless it is the first of its launch, are those of the one before.
    """
    devices = run.placement or ()
    nodes = [_bare_node(node, devices[node] if node < len(devices) else ()) for node in range(run.nodes)]
    before = known.get(number - 1)
    if before is not None and before.launch == run.launch and before.nodes:
        nodes = [dict(node) for node in before.nodes]
    return AttemptRow(number=number, launch=run.launch, nodes=nodes)


def _bare_node(node: int, devices: Sequence[str]) -> dict[str, Any]:
    return {
        "node": node,
        "host": "",
        "address": "",
        "agent_pid": None,
        "devices": list(devices),
        "environment": None,
    }


def _read_journals(reading: _Reading, folder: AttemptDir, row: AttemptRow, events: list[NewEvent]) -> AttemptRow:
    for node in folder.nodes():
        for records in reading.records(folder.events(node)):
            row = fold_journal(row, node, records)
            events += journal_events(row.number, node, records)
    return row


def _read_metrics(reading: _Reading, run_dir: RunDir) -> MetricsFold:
    fold = MetricsFold()
    for rank in run_dir.metric_ranks():
        for records in reading.records(run_dir.metrics(rank)):
            fold_metrics(fold, rank, records)
    return fold


def _batch(
    reading: _Reading,
    fold: MetricsFold,
    attempts: Sequence[AttemptRow],
    events: Sequence[NewEvent],
    newest: AttemptRow | None,
) -> IngestBatch:
    starts = [row.started for row in attempts if row.started is not None]
    return IngestBatch(
        cursors=reading.cursors,
        events=sorted([*events, *fold.events], key=lambda event: event.time),
        attempts=attempts,
        checkpoints=list(fold.checkpoints.values()),
        removed_checkpoints=fold.removed,
        points=list(fold.points.values()),
        attempt=None if newest is None else newest.number,
        attempt_nodes=None if newest is None else num_machines(newest),
        step=fold.step,
        total_steps=fold.total_steps,
        started=min(starts, default=None),
    )


def _marked_files(run_dir: RunDir, folders: Sequence[AttemptDir]) -> list[str]:
    """Where anything new shows but in metrics: what appears by rename in its folder, what grows in its length."""
    found = [run_dir.path / "attempts"]
    for folder in folders[-_READ_ATTEMPTS:]:
        found += [folder.path, *(folder.events(node) for node in folder.nodes())]
    return [str(path) for path in found]


def _marks_of(paths: Sequence[str]) -> list[tuple[int, int] | None]:
    return [_mark_of(path) for path in paths]


def _mark_of(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116 - ten times a second for each run
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        return 0
