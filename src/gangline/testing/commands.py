"""Runs that a test moves by hand, behind the interface that the server's routes use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any, cast

from gangline.control.again import DebugRequest, RerunRequest, ResumeRequest
from gangline.control.reporting import ReportFile
from gangline.domain.errors import NotFound
from gangline.domain.gang import Launch
from gangline.domain.spec import RunSpec
from gangline.testing.builders import make_gang
from gangline.wire.compared import CompareView, RanksView
from gangline.wire.removed import FreedView, RemovedView, RunSizeView
from gangline.wire.spec import spec_to_mapping
from gangline.wire.views import (
    CheckpointView,
    ClearedView,
    EventView,
    MetricView,
    NodeHealthView,
    PoolView,
    RunDetail,
    RunSummary,
    SystemView,
)

__all__ = ["FakeCommands", "make_detail", "make_event", "make_summary"]


def make_summary(**overrides: Any) -> RunSummary:  # noqa: ANN401 - as many types as fields
    """A run of two ranks that is running."""
    summary: RunSummary = {
        "id": "train-2abc",
        "name": "train",
        "project": "default",
        "user": "alice",
        "pool": "local",
        "phase": "running",
        "reason": None,
        "message": "",
        "nodes": 1,
        "procs_per_node": 2,
        "gpus_per_node": 0,
        "attempt": 0,
        "attempt_nodes": 1,
        "restarts": 0,
        "exit_code": None,
        "created": 1_700_000_000.0,
        "started": 1_700_000_001.0,
        "ended": None,
        "duration_s": None,
        "step": None,
        "total_steps": None,
        "labels": {},
        "version": 2,
        "rerun_of": None,
        "debug_of": None,
        "lease_s": None,
        "revision": 0,
    }
    return cast("RunSummary", {**summary, **overrides})


def make_detail(summary: RunSummary, *, spec: Mapping[str, Any], client: Mapping[str, Any]) -> RunDetail:
    """All of a run that has done nothing yet."""
    return {
        **summary,
        "spec": dict(spec),
        "run_dir": f"/nowhere/{summary['id']}",
        "attempts": [],
        "checkpoints": [],
        "code": None,
        "events": [],
        "metrics": {},
        "tokens_per_s": None,
        "duration_s": None,
        "client": dict(client),
        "room": [],
        "job_log": "",
        "backend": {},
    }


def make_event(seq: int, message: str = "") -> EventView:
    """One entry of a run's history."""
    return {"seq": seq, "time": 1_700_000_000.0 + seq, "kind": "phase", "message": message, "data": {}}


_AS_IT_WAS = ResumeRequest()


class FakeCommands:
    """Implements what the routes need of `control.commands.Commands`.

    Attributes:
        runs: by id; a test replaces and changes them at will.
        history: events of each run.
        calls: what was asked for, in order: the method's name and its arguments.
    """

    def __init__(self) -> None:
        self.runs: dict[str, RunSummary] = {}
        self.details: dict[str, RunDetail] = {}
        self.history: dict[str, list[EventView]] = {}
        self.calls: list[tuple[Any, ...]] = []
        self._by_key: dict[str, str] = {}

    def check(self, spec: RunSpec) -> Launch:
        self.calls.append(("check", spec))
        return Launch(backend="fake", commands=(("agent", spec.entry),), gang=make_gang())

    def submit(self, spec: RunSpec, *, client: Mapping[str, Any], key: str, lease_s: float | None = None) -> RunDetail:
        self.calls.append(("submit", spec, dict(client), key))
        if key not in self._by_key:
            run_id = f"{spec.name or 'train'}-{len(self.runs):04d}"
            self._by_key[key] = run_id
            created = 1_700_000_000.0 + len(self.runs)
            self.runs[run_id] = make_summary(
                id=run_id, name=spec.name or "train", phase="queued", created=created, lease_s=lease_s
            )
            self.details[run_id] = make_detail(self.runs[run_id], spec=spec_to_mapping(spec), client=client)
        return self.details[self._by_key[key]]

    def rerun(self, run_id: str, request: RerunRequest, *, client: Mapping[str, Any], key: str) -> RunDetail:
        self.calls.append(("rerun", run_id, request, dict(client), key))
        return self._make_from(run_id, {"rerun_of": run_id}, client)

    def debug(self, run_id: str, request: DebugRequest, *, client: Mapping[str, Any], key: str) -> RunDetail:
        self.calls.append(("debug", run_id, request, dict(client), key))
        return self._make_from(run_id, {"debug_of": run_id}, client)

    def version(self) -> object:
        """A test changes things at will: never the same."""
        return object()

    def find(self, run: str) -> str:
        """As the real one: an id, a unique beginning, or `latest`."""
        if run == "latest" and self.runs:
            return list(self.runs)[-1]
        found = [run_id for run_id in self.runs if run_id.startswith(run)]
        if len(found) != 1:
            raise NotFound(f"There is no run `{run}`", fix="`gangline ps` lists them.")
        return found[0]

    def list_runs(
        self,
        *,
        phase: str | None = None,
        name: str | None = None,
        project: str | None = None,
        labels: Mapping[str, str] | None = None,
        limit: int = 100,
    ) -> list[RunSummary]:
        self.calls.append(("list_runs", phase, name, project, labels, limit))
        wanted = (labels or {}).items()
        newest_first = sorted(self.runs.values(), key=lambda run: run["created"], reverse=True)
        found = [
            run
            for run in newest_first
            if phase in {None, run["phase"]}
            and (name or "").lower() in run["name"].lower()
            and wanted <= run["labels"].items()
        ]
        return found[:limit]

    def summary(self, run_id: str) -> RunSummary:
        return self.runs[run_id]

    def detail(self, run_id: str) -> RunDetail:
        known = self.details.get(run_id) or make_detail(self.runs[run_id], spec={}, client={})
        return cast("RunDetail", {**known, **self.runs[run_id]})

    def stop(self, run_id: str, *, grace_s: float | None, by: str) -> RunSummary:
        self.calls.append(("stop", run_id, grace_s, by))
        return self._move(run_id, "stopping")

    def renew(self, run_id: str) -> RunSummary:
        self.calls.append(("renew", run_id))
        return self.runs[run_id]

    def resume(self, run_id: str, request: ResumeRequest = _AS_IT_WAS, *, by: str) -> RunSummary:
        self.calls.append(("resume", run_id, request, by))
        return self._move(run_id, "queued")

    def compare(self, run_ids: Sequence[str], *, code: bool) -> CompareView:
        self.calls.append(("compare", tuple(run_ids), code))
        runs = [self.runs[run_id] for run_id in run_ids]
        return {"runs": runs, "facts": [], "spec": [], "environment": [], "code": [], "metrics": []}

    def compare_ranks(self, run_id: str, *, attempt: int | None) -> RanksView:
        self.calls.append(("compare_ranks", run_id, attempt))
        return {
            "run": run_id,
            "attempt": attempt or 0,
            "nodes": [],
            "hosts": [],
            "environment": [],
            "missing": [],
            "ranks": [],
        }

    def report(self, run_id: str, *, form: str) -> ReportFile:
        self.calls.append(("report", run_id, form))
        return ReportFile(file=BytesIO(b"<!doctype html>"), size_bytes=15, removed=3)

    def events(self, run_id: str, *, after: int = -1) -> list[EventView]:
        return [event for event in self.history.get(run_id, []) if event["seq"] > after]

    def checkpoints(self, run_id: str) -> list[CheckpointView]:
        return self.detail(run_id)["checkpoints"]

    def metrics(self, run_id: str) -> dict[str, float | None]:
        return self.detail(run_id)["metrics"]

    def metric(self, run_id: str, name: str, *, rank: int, buckets: int) -> MetricView:
        self.calls.append(("metric", run_id, name, rank, buckets))
        return {"name": name, "rank": rank, "count": 0, "buckets": []}

    def system(self, run_id: str, *, attempt: int | None, samples: int) -> list[SystemView]:
        self.calls.append(("system", run_id, attempt, samples))
        return []

    def pools(self) -> list[PoolView]:
        return []

    def nodes(self, pool: str | None = None) -> list[NodeHealthView]:
        self.calls.append(("nodes", pool))
        return []

    def clear_node(self, host: str, *, pool: str | None, by: str) -> ClearedView:
        self.calls.append(("clear_node", host, pool, by))
        return {"host": host, "pools": [pool or "local"]}

    def measure(self, run_id: str) -> RunSizeView:
        self.calls.append(("measure", run_id))
        return {
            "id": self.runs[run_id]["id"], "size_bytes": 2048, "checkpoints_bytes": 1024, "num_checkpoints": 1,
            "checkpoint_path": None,
        }  # fmt: skip

    def remove(self, run_id: str, *, keep_checkpoints: bool) -> RemovedView:
        self.calls.append(("remove", run_id, keep_checkpoints))
        if run_id not in self.runs:
            raise NotFound(f"There is no run `{run_id}`")
        del self.runs[run_id]
        return {"id": run_id, "freed_bytes": 2048, "kept": None, "left": []}

    def free(self) -> FreedView:
        self.calls.append(("free",))
        return {"num_objects": 3, "num_snapshots": 1, "freed_bytes": 100}

    def counts(self) -> tuple[int, int]:
        """Runs that are live, and runs that wait."""
        phases = [run["phase"] for run in self.runs.values()]
        return phases.count("running"), phases.count("queued")

    def _make_from(self, run_id: str, origin: Mapping[str, str], client: Mapping[str, Any]) -> RunDetail:
        made = make_summary(id=f"{run_id}-again", phase="queued", **origin)
        self.runs[made["id"]] = made
        self.details[made["id"]] = make_detail(made, spec={}, client=client)
        return self.details[made["id"]]

    def _move(self, run_id: str, phase: str) -> RunSummary:
        before = self.runs[run_id]
        self.runs[run_id] = {**before, "phase": phase, "version": before["version"] + 1}
        return self.runs[run_id]
