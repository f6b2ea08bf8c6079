"""What differs between runs, and between the workers of one run. Reads; changes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, cast

from gangline.control.comparefile import compare_file
from gangline.control.views import attempt_view
from gangline.domain.errors import GanglineError, InvalidRequest, NotFound
from gangline.rundir.files import read_json
from gangline.rundir.home import Home
from gangline.snapshot.diff import diff
from gangline.snapshot.manifest import Manifest
from gangline.snapshot.objects import ObjectStore
from gangline.store.chart import Cell, merge_cells
from gangline.store.store import Store
from gangline.wire.compared import (
    CodeComparison,
    CompareView,
    MetricComparison,
    MetricSpan,
    RankFacts,
    RanksView,
)
from gangline.wire.difference import diff_specs, diff_values
from gangline.wire.views import AttemptView, DifferenceView, RunDetail, RunSummary

__all__ = ["Comparer", "median_step_s"]

MOST_RUNS = 20
_MOST_METRICS = 500
_MOST_DIFF_CHARS = 8 << 20
_TAIL_BYTES = 128 << 10
_STEPS_LOOKED_AT = 200
_UNINTERESTING = frozenset({"version", "time", "address", "agent", "snapshot"})
"""Keys of an environment that say nothing about what the ranks see."""


class Comparer:
    """Compares what the store and the run directories hold. Safe for threads.

    Args:
        detail: all that is known of a run, by its id.
    """

    def __init__(self, *, store: Store, home: Home, detail: Callable[[str], RunDetail]) -> None:
        self._store = store
        self._home = home
        self._detail = detail
        self._objects = ObjectStore(home.path)

    def compare(self, run_ids: Sequence[str], *, code: bool) -> CompareView:
        """What differs between runs.

        Args:
            code: with the text of the differences of each file.
        Raises:
            InvalidRequest: fewer than two runs, one twice, or too many.
        """
        if len(run_ids) < 2 or len(run_ids) > MOST_RUNS:  # noqa: PLR2004 - two can be compared
            raise InvalidRequest(f"{len(run_ids)} runs cannot be compared", fix=f"Name 2 to {MOST_RUNS}.")
        if len(set(run_ids)) < len(run_ids):
            raise InvalidRequest(f"A run is named twice: {', '.join(run_ids)}", fix="Name different ones.")
        details = [self._detail(run_id) for run_id in run_ids]
        return CompareView(
            runs=[summary_of(one) for one in details],
            facts=_facts(details),
            spec=diff_specs([one["spec"] for one in details]),
            environment=diff_values([_environment(one) for one in details]),
            code=[self._compare_code(details[0], one, with_text=code) for one in details[1:]],
            metrics=self._compare_metrics(details),
        )

    def compare_ranks(self, run_id: str, *, attempt: int | None) -> RanksView:
        """What differs between the workers of an attempt; None: the newest.

        Raises:
            NotFound: there is no such attempt.
        """
        run_dir = self._home.run(run_id)
        rows = {row.number: row for row in self._store.attempts(run_id)}
        number = max(rows, default=0) if attempt is None else attempt
        if number not in rows:
            fix = f"Attempts: {', '.join(map(str, rows))}." if rows else "It has none yet."
            raise NotFound(f"Run `{run_id}` has no attempt {number}", fix=fix)
        view = attempt_view(rows[number], run_dir.attempt(number))
        known = [node for node in view["nodes"] if node["environment"]]
        steps = {rank["rank"]: self._steps(run_id, rank["rank"], number) for rank in view["ranks"]}
        return RanksView(
            run=run_id,
            attempt=number,
            nodes=[node["node"] for node in known],
            hosts=[node["host"] for node in known],
            environment=diff_values([_interesting(node["environment"]) for node in known]),
            missing=[node["node"] for node in view["nodes"] if not node["environment"]],
            ranks=_rank_facts(view, steps),
        )

    # Code

    def _compare_code(self, base: RunDetail, other: RunDetail, *, with_text: bool) -> CodeComparison:
        view = CodeComparison(run=other["id"], base=base["id"], same=False, changes=[], fault="")
        try:
            old, new = self._manifest(base["id"]), self._manifest(other["id"])
        except (GanglineError, OSError) as error:
            return {**view, "fault": str(error)}
        if old.digest == new.digest:
            return {**view, "same": True}
        found = diff(old, new)
        room = _MOST_DIFF_CHARS
        for change, paths in (("added", found.added), ("removed", found.removed), ("changed", found.changed)):
            for path in paths:
                one = compare_file(change, old.find(path), new.find(path), objects=self._objects, room=room)
                if not with_text:
                    one["diff"] = None
                room -= len(one["diff"] or "")
                view["changes"].append(one)
        view["changes"].sort(key=lambda one: one["path"])
        return view

    def _manifest(self, run_id: str) -> Manifest:
        raw = read_json(self._home.run(run_id).code_manifest)
        if raw is None:
            raise NotFound(f"Run `{run_id}` has no snapshot of its code")
        return Manifest.from_dict(raw)

    # Metrics

    def _compare_metrics(self, details: Sequence[RunDetail]) -> list[MetricComparison]:
        names = list(dict.fromkeys(name for one in details for name in one["metrics"]))[:_MOST_METRICS]
        return [
            MetricComparison(name=name, values=[self._span(one, name) for one in details]) for name in sorted(names)
        ]

    def _span(self, run: RunDetail, name: str) -> MetricSpan | None:
        if name not in run["metrics"]:
            return None
        cells: list[Cell] = self._store.chart(run["id"], name, rank=0, buckets=1) or []
        if not cells:
            return None
        _, _, count, _, low, high, _ = merge_cells(cells)
        return MetricSpan(last=run["metrics"][name], min=low, max=high, count=count)

    def _steps(self, run_id: str, rank: int, attempt: int) -> list[tuple[int, float]]:
        """The last steps that a rank has logged in an attempt, with their times."""
        try:
            with self._home.run(run_id).metrics(rank).open("rb") as file:
                file.seek(0, 2)
                start = max(0, file.tell() - _TAIL_BYTES)
                file.seek(start)
                lines = file.read().split(b"\n")[1 if start else 0 :]
        except OSError:
            return []
        found: dict[int, float] = {}
        for line in lines:
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if _is_step(record, attempt):
                found.setdefault(record["s"], record["t"])
        return list(found.items())[-_STEPS_LOOKED_AT:]


def summary_of(detail: RunDetail) -> RunSummary:
    """The part of a detail that a summary has."""
    return cast("RunSummary", {name: detail[name] for name in RunSummary.__annotations__})  # type: ignore[literal-required]


def median_step_s(steps: Sequence[tuple[int, float]]) -> float | None:
    """Median time of one step (the upper of two), from (step, time) in order of time; None for fewer than two."""
    gaps = [
        (later - earlier) / (step - before) for (before, earlier), (step, later) in pairwise(steps) if step > before
    ]
    return sorted(gaps)[len(gaps) // 2] if gaps else None


def _is_step(record: object, attempt: int) -> bool:
    if not isinstance(record, Mapping) or record.get("a") != attempt or record.get("k") not in {"m", "p"}:
        return False
    return isinstance(record.get("s"), int) and isinstance(record.get("t"), int | float)


def _environment(run: RunDetail) -> dict[str, Any]:
    """What node 0 of the newest attempt that has said anything described."""
    for attempt in reversed(run["attempts"]):
        for node in attempt["nodes"]:
            if node["environment"]:
                return _interesting(node["environment"])
    return {}


def _interesting(environment: Mapping[str, Any] | None) -> dict[str, Any]:
    return {name: value for name, value in (environment or {}).items() if name not in _UNINTERESTING}


def _facts(details: Sequence[RunDetail]) -> list[DifferenceView]:
    rows: dict[str, list[Any]] = {
        "phase": [one["phase"] for one in details],
        "reason": [one["reason"] for one in details],
        "message": [one["message"] for one in details],
        "exit_code": [one["exit_code"] for one in details],
        "attempts": [[_outcome(attempt) for attempt in one["attempts"]] for one in details],
        "hosts": [_hosts(one) for one in details],
        "commit": [one["code"]["commit"] if one["code"] else None for one in details],
        "step": [one["step"] for one in details],
        "duration_s": [one["duration_s"] for one in details],
        "steps_per_s": [_steps_per_s(one) for one in details],
        "tokens_per_s": [one["tokens_per_s"] for one in details],
        "checkpoints": [sum(item["state"] == "complete" for item in one["checkpoints"]) for one in details],
    }
    return [DifferenceView(key=key, values=values) for key, values in rows.items()]


def _outcome(attempt: AttemptView) -> str:
    outcome = attempt["outcome"] or "running"
    return f"{outcome} ({attempt['reason']})" if attempt["reason"] else outcome


def _hosts(run: RunDetail) -> list[str]:
    return list(dict.fromkeys(node["host"] for node in run["attempts"][-1]["nodes"])) if run["attempts"] else []


def _steps_per_s(run: RunDetail) -> float | None:
    """Over all attempts, their starts and pauses included."""
    duration_s = run["duration_s"]
    began = run["attempts"][0]["resume_step"] if run["attempts"] else None
    done = (run["step"] or 0) - (began or 0)
    return done / duration_s if done > 0 and duration_s else None


def _rank_facts(view: AttemptView, steps: Mapping[int, Sequence[tuple[int, float]]]) -> list[RankFacts]:
    hosts = {node["node"]: node["host"] for node in view["nodes"]}
    return [
        RankFacts(
            rank=rank["rank"],
            node=rank["node"],
            host=hosts.get(rank["node"], ""),
            exit_code=rank["exit_code"],
            signal=rank["signal"],
            ended_by=rank["ended_by"],
            duration_s=None
            if rank["started"] is None or rank["ended"] is None
            else max(0.0, rank["ended"] - rank["started"]),
            peak_rss_bytes=rank["peak_rss_bytes"],
            last_step=steps[rank["rank"]][-1][0] if steps[rank["rank"]] else None,
            step_s=median_step_s(steps[rank["rank"]]),
        )
        for rank in view["ranks"]
    ]
