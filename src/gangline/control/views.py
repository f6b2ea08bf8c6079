"""Rows as the JSON views of `gangline.wire.views`.

Pure, but for `code_view`, `attempt_view` and `read_launch_log`, which read a run's files.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gangline.domain.errors import GanglineError
from gangline.domain.gang import PoolPart
from gangline.rundir.files import Unreadable, read_json
from gangline.rundir.layout import AttemptDir, RunDir
from gangline.snapshot.manifest import Manifest
from gangline.store.chart import Cell
from gangline.store.rows import AttemptRow, EventRow, RunRow
from gangline.wire.views import (
    AttemptView,
    CodeView,
    EventView,
    FailureView,
    MetricBucket,
    NodeView,
    PoolPartView,
    RankView,
    RunSummary,
)

__all__ = [
    "attempt_view",
    "bucket_view",
    "code_view",
    "duration_s",
    "event_view",
    "part_views",
    "read_launch_log",
    "summary_view",
    "tokens_per_s",
]

_MOST_LOGS = 9
_TAIL_BYTES = 16_000
_TOKENS_PER_S = ("tokens_per_s", "tokens/s", "tokens_per_sec", "tokens_per_second")


def summary_view(run: RunRow, *, duration_s: float | None) -> RunSummary:
    """One row of `gangline ps`.

    Args:
        duration_s: see the function of that name.
    """
    return RunSummary(
        id=run.id,
        name=run.name,
        project=run.project,
        user=run.user,
        pool=run.pool,
        phase=run.phase.value,
        reason=None if run.reason is None else run.reason.value,
        message=run.message,
        nodes=run.nodes,
        procs_per_node=run.procs_per_node,
        gpus_per_node=run.gpus_per_node,
        attempt=run.attempt,
        attempt_nodes=run.attempt_nodes,
        restarts=run.attempt or 0,
        exit_code=run.exit_code,
        created=run.created,
        started=run.started,
        ended=run.ended,
        duration_s=duration_s,
        step=run.step,
        total_steps=run.total_steps,
        labels=dict(run.labels),
        version=run.version,
        rerun_of=run.rerun_of,
        debug_of=run.debug_of,
        lease_s=run.lease_s,
        revision=run.revision,
    )


def event_view(event: EventRow) -> EventView:
    """One entry of a run's history."""
    return EventView(seq=event.seq, time=event.time, kind=event.kind, message=event.message, data=dict(event.data))


def attempt_view(attempt: AttemptRow, folder: AttemptDir) -> AttemptView:
    """One attempt, with what its agents noted of their environments."""
    return AttemptView(
        number=attempt.number,
        launch=attempt.launch,
        outcome=attempt.outcome,
        reason=attempt.reason,
        message=attempt.message,
        started=attempt.started,
        running=attempt.running,
        ended=attempt.ended,
        resume=attempt.resume,
        resume_step=attempt.resume_step,
        start_mode=attempt.start_mode,
        first_failure=None if attempt.first_failure is None else _failure_view(attempt.first_failure),
        signature=attempt.signature,
        hint=attempt.hint,
        next=attempt.next,
        restart_message=attempt.restart_message,
        ranks=[_rank_view(rank) for rank in attempt.ranks],
        nodes=[_node_view(node, folder) for node in attempt.nodes],
    )


def part_views(parts: Sequence[PoolPart]) -> list[PoolPartView]:
    """The parts of a pool, in its scheduler's order."""
    return [PoolPartView(**asdict(part)) for part in parts]  # type: ignore[typeddict-item]  # same fields


def read_launch_log(run_dir: RunDir) -> str:
    """The end of what the newest launch has said outside of its ranks: a job's log, then those of its agents."""
    for launch in reversed(run_dir.launches()):
        found = [path for path in (launch.path / "job.log", *sorted(launch.path.glob("node-*.log"))) if path.is_file()]
        told = [text for path in found[:_MOST_LOGS] if (text := _tail(path))]
        if told:
            return "".join(told)
    return ""


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    return text if text.endswith("\n") or not text else f"{text}\n"


def bucket_view(cell: Cell) -> MetricBucket:
    """One bucket of a chart; what is not finite has no min, max and mean."""
    first, last, count, _, low, high, mean = cell
    return MetricBucket(
        step=first, last_step=last, count=count, min=_finite(low), max=_finite(high), mean=_finite(mean)
    )


def duration_s(run: RunRow, spans: Sequence[tuple[float | None, float | None]], now: float) -> float | None:
    """How long the attempts of a run took, or take, together; None before the first.

    What lies between two attempts, while the run waits or is over, does not count.

    Args:
        spans: start and end of each attempt, by number.
    """
    latest = now if run.ended is None else run.ended
    took = []
    for number, (started, ended) in enumerate(spans):
        following = next((start for start, _ in spans[number + 1 :] if start is not None), latest)
        if started is not None:
            took.append(max(0.0, (following if ended is None else ended) - started))
    return sum(took) if took else None


def tokens_per_s(newest: Mapping[str, float | None]) -> float | None:
    """The throughput that training code has logged last, under one of its usual names."""
    return next((newest[name] for name in _TOKENS_PER_S if newest.get(name) is not None), None)


def code_view(run_dir: RunDir, snapshot: Mapping[str, Any]) -> CodeView | None:
    """What was packed at submit; None for a run without a snapshot.

    Args:
        snapshot: its digest and working folder, as the spec has them; all that is left where code.json is damaged.
    """
    view = CodeView(
        digest=snapshot.get("digest", ""),
        workdir=snapshot.get("workdir", "."),
        root="",
        num_files=0,
        size_bytes=0,
        commit=None,
        branch=None,
        remote=None,
        dirty=False,
        diff=None,
        untracked=[],
        excluded=[],
        fault="",
    )
    try:
        raw = read_json(run_dir.code_manifest)
        return None if raw is None else {**view, **_packed(Manifest.from_dict(raw))}
    except (GanglineError, OSError) as error:
        return {**view, "fault": f"code.json cannot be read: {error}"}


def _packed(manifest: Manifest) -> CodeView:
    code = manifest.code.to_dict()
    return {  # type: ignore[typeddict-item]  # the rest is filled in by the caller
        "digest": manifest.digest,
        "root": code.get("root", ""),
        "num_files": manifest.num_files,
        "size_bytes": manifest.size_bytes,
        "commit": code.get("commit"),
        "branch": code.get("branch"),
        "remote": code.get("remote"),
        "dirty": bool(code.get("dirty")),
        "diff": code.get("diff"),
        "untracked": list(code.get("untracked", ())),
        "excluded": list(code.get("excluded", ())),
    }


def _failure_view(raw: Mapping[str, Any]) -> FailureView:
    return FailureView(
        rank=raw.get("rank", 0),
        node=raw.get("node", 0),
        host=raw.get("host") or "",
        pid=raw.get("pid"),
        exit_code=raw.get("exit_code"),
        signal=raw.get("signal"),
        signal_name=raw.get("signal_name"),
        time=raw.get("time") or 0.0,
        error_type=raw.get("error_type"),
        error_in_log=bool(raw.get("error_in_log")),
        error_message=raw.get("error_message"),
        traceback=raw.get("traceback"),
        causes=list(raw.get("causes") or ()),
        log_tail=raw.get("log_tail") or "",
        step=raw.get("step"),
        total_steps=raw.get("total_steps"),
        phase=raw.get("phase"),
    )


def _rank_view(raw: Mapping[str, Any]) -> RankView:
    return RankView(
        rank=raw["rank"],
        node=raw.get("node") or 0,
        pid=raw.get("pid"),
        exit_code=raw.get("exit_code"),
        signal=raw.get("signal"),
        ended_by=raw.get("ended_by"),
        started=raw.get("started"),
        ended=raw.get("ended"),
        peak_rss_bytes=raw.get("peak_rss_bytes"),
        step=raw.get("step"),
        phase=raw.get("phase"),
        place=raw.get("place"),
        error=raw.get("error"),
    )


def _node_view(raw: Mapping[str, Any], folder: AttemptDir) -> NodeView:
    return NodeView(
        node=raw["node"],
        host=raw.get("host") or "",
        address=raw.get("address") or "",
        agent_pid=raw.get("agent_pid"),
        devices=list(raw.get("devices") or ()),
        environment=_environment(folder, raw["node"]),
        machines=list(raw.get("machines") or ()),
        tasks=raw.get("tasks"),
    )


def _environment(folder: AttemptDir, node: int) -> dict[str, Any] | None:
    try:
        return read_json(folder.environment(node))
    except (Unreadable, OSError):
        return None


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
