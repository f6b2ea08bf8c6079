"""Records of a run directory as rows: journals to attempts and history, metric lines to points and checkpoints. Pure.

Training code and agents write these files, so nothing in them is taken for granted: a record that makes no sense is
passed over.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from gangline.domain.signals import signal_name
from gangline.store.rows import AttemptRow, CheckpointRow, NewEvent, Points

__all__ = [
    "MetricsFold",
    "apply_result",
    "fold_journal",
    "fold_metrics",
    "journal_events",
    "num_machines",
    "result_event",
]

_INT64 = 1 << 63
_RANK_KEYS = (
    *("rank", "node", "pid", "exit_code", "signal", "ended_by", "started", "ended", "peak_rss_bytes"),
    *("step", "phase", "place", "error"),
)
_SAID = frozenset({"dashboard", "preflight", "straggler", "warning", "hang_suspected", "stacks", "hang"})
"""Kinds that carry their own sentence."""
_TOLD = _SAID | {"attempt_started", "attempt_running", "notice", "stopping", "killed", "agent_lost"}
_SAID_CHARS = 200
_NEEDED: Mapping[str, Sequence[str]] = {
    "rank_started": ("rank",),
    "rank_exited": ("rank",),
    "notice": ("cause", "notice_s"),
    "stopping": ("cause", "grace_s"),
    "killed": ("pids",),
    **dict.fromkeys(_SAID, ("text",)),
}
"""What a record of each kind cannot go without, besides its time."""
_ONCE = frozenset({"attempt_started", "notice", "stopping"})
"""Every agent writes these; the history takes the leader's."""


def fold_journal(attempt: AttemptRow, node: int, records: Iterable[Mapping[str, Any]]) -> AttemptRow:
    """What new records of one agent's journal add to what is known of an attempt.

    Args:
        node: whose journal it is.
    """
    nodes = {entry["node"]: dict(entry) for entry in attempt.nodes}
    ranks = {entry["rank"]: dict(entry) for entry in attempt.ranks}
    changes: dict[str, Any] = {}
    for record in records:
        kind = record.get("kind")
        if kind == "agent_started":
            nodes[node] = {**_node_view(node, nodes.get(node), record), "since": attempt.number}
        elif kind == "attempt_started" and node == 0:
            changes |= _started(record)
            nodes[node] = {**nodes.get(node, _node_view(node, None, record)), **_job_of(record)}
        elif kind == "attempt_running":
            changes["running"] = _number(record.get("t"))
        elif kind in {"rank_started", "rank_exited"} and _is_whole(str(kind), record):
            _fold_rank(ranks, node, record)
        elif kind == "first_failure" and node == 0 and attempt.outcome is None:
            changes |= _failing(record)
    members = changes.pop("members", None)  # those of an elastic gang that has lost nodes are fewer
    changes["nodes"] = [nodes[key] for key in sorted(nodes) if members is None or key in members]
    changes["ranks"] = [ranks[key] for key in sorted(ranks)]
    return replace(attempt, **changes)


def journal_events(attempt: int, node: int, records: Iterable[Mapping[str, Any]]) -> list[NewEvent]:
    """The entries that a run's history takes from one agent's journal."""
    found: list[NewEvent] = []
    for record in records:
        kind = str(record.get("kind"))
        if not _is_whole(kind, record):
            continue
        failed = kind == "rank_exited" and record.get("ended_by") != "platform" and record.get("exit_code") != 0
        if failed or (kind in _TOLD and (node == 0 or kind not in _ONCE)):
            data = {key: value for key, value in record.items() if key not in {"seq", "m", "kind", "t"}}
            message = _message(kind, attempt, node, record)
            time = _number(record.get("t")) or 0.0
            found.append(
                NewEvent(time=time, kind=kind, message=message, data={"node": node, "attempt": attempt, **data})
            )
    return found


def apply_result(attempt: AttemptRow, result: Mapping[str, Any]) -> AttemptRow:
    """An attempt that has ended, as its leader says. What the result leaves out stays as the journals told it."""
    listed = result.get("ranks")
    ranks = [_rank_view(entry) for entry in listed if _is_rank(entry)] if isinstance(listed, list) else []
    failure = result.get("first_failure")
    return replace(
        attempt,
        launch=attempt.launch if (launch := _integer(result.get("launch"))) is None else launch,
        outcome=_text(result.get("outcome")) or "failed",
        reason=_text(result.get("reason")),
        message=_text(result.get("message")) or "",
        exit_code=_integer(result.get("exit_code")),
        started=_first(attempt.started, _number(result.get("started"))),
        running=_first(_number(result.get("running")), attempt.running),
        ended=_number(result.get("ended")),
        resume=_first(_text(result.get("resume")), attempt.resume),
        resume_step=_first(_integer(result.get("resume_step")), attempt.resume_step),
        start_mode=_first(_text(result.get("start_mode")), attempt.start_mode),
        next=_text(result.get("next")) or "end",
        next_delay_s=max(0.0, _number(result.get("next_delay_s")) or 0.0),
        budget=_text(result.get("budget")),
        restart_message=_text(result.get("restart_message")) or "",
        first_failure=failure if isinstance(failure, Mapping) else None,
        signature=_text(result.get("signature")),
        hint=_text(result.get("hint")) or "",
        ranks=ranks or attempt.ranks,
    )


def result_event(attempt: AttemptRow) -> NewEvent:
    """The history's entry for the end of an attempt."""
    follows = f" {attempt.restart_message[0].upper()}{attempt.restart_message[1:]}." if attempt.restart_message else ""
    message = f"Attempt {attempt.number} {attempt.outcome}. {attempt.message}{follows}".strip()
    data = {"attempt": attempt.number, "outcome": attempt.outcome, "reason": attempt.reason, "next": attempt.next}
    return NewEvent(time=attempt.ended or 0.0, kind="attempt_ended", message=message, data=data)


@dataclass(slots=True, kw_only=True)
class MetricsFold:
    """What new lines of metric files say."""

    points: dict[tuple[int, str, int], Points] = field(default_factory=dict)
    checkpoints: dict[str, CheckpointRow] = field(default_factory=dict)
    removed: list[str] = field(default_factory=list)
    events: list[NewEvent] = field(default_factory=list)
    step: int | None = None
    total_steps: int | None = None


def fold_metrics(fold: MetricsFold, rank: int, records: Iterable[Mapping[str, Any]]) -> None:
    """Add what one rank has logged to `fold`."""
    for record in records:
        attempt, time = _integer(record.get("a")), _number(record.get("t"))
        if attempt is None or time is None:
            continue
        kind = record.get("k")
        if kind == "m":
            _fold_values(fold, (rank, attempt), time, record)
        elif kind == "p" and rank == 0:
            fold.step = _step(record, fold.step)
            fold.total_steps = _integer(record.get("n")) or fold.total_steps
        elif kind == "c":
            _fold_checkpoint(fold, attempt, time, record)
        elif kind == "r":
            fold.removed.append(str(record.get("path")))
        elif kind == "w":
            data = {"attempt": attempt, "rank": rank}
            text = f"Rank {rank}: {record.get('text', '')}"
            fold.events.append(NewEvent(time=time, kind="warning", message=text, data=data))


def _fold_values(fold: MetricsFold, where: tuple[int, int], time: float, record: Mapping[str, Any]) -> None:
    rank, attempt = where
    values = record.get("v")
    if not isinstance(values, Mapping):
        return
    step = _integer(record.get("s"))
    if rank == 0 and fold.total_steps is None:
        fold.step = _step(record, fold.step)
    for name, raw in values.items():
        value = _value(raw)
        if value is None:
            continue
        points = fold.points.get((rank, name, attempt))
        if points is None:
            points = Points(rank=rank, name=name, attempt=attempt, steps=[], times=[], values=[])
            fold.points[rank, name, attempt] = points
        points.steps.append(step)
        points.times.append(time)
        points.values.append(value)


def _fold_checkpoint(fold: MetricsFold, attempt: int, time: float, record: Mapping[str, Any]) -> None:
    step, path = _integer(record.get("s")), record.get("path")
    if step is None or not isinstance(path, str):
        return
    fold.checkpoints[path] = CheckpointRow(
        path=path,
        step=step,
        attempt=attempt,
        size_bytes=_integer(record.get("bytes")) or 0,
        num_files=_integer(record.get("files")) or 0,
        time=time,
        duration_s=_number(record.get("seconds")),
    )
    if path in fold.removed:
        fold.removed.remove(path)


def _step(record: Mapping[str, Any], otherwise: int | None) -> int | None:
    step = _integer(record.get("s"))
    return otherwise if step is None else step


def _integer(raw: object) -> int | None:
    """A whole number that 64 bits hold."""
    if isinstance(raw, bool) or not isinstance(raw, int):
        return None
    return raw if -_INT64 <= raw < _INT64 else None


def _number(raw: object) -> float | None:
    value = _value(raw)
    return value if value is not None and math.isfinite(value) else None


def _value(raw: object) -> float | None:
    """A metric's value; NaN and infinities are values, integers too large for a float are infinite."""
    if isinstance(raw, bool) or not isinstance(raw, int | float):
        return None
    try:
        return float(raw)
    except OverflowError:
        return math.inf if raw > 0 else -math.inf


def _text(raw: object) -> str | None:
    """Text that says something."""
    return raw if isinstance(raw, str) and raw else None


_T = TypeVar("_T")


def _first(new: _T | None, old: _T | None) -> _T | None:
    return old if new is None else new


def _is_rank(entry: object) -> bool:
    return isinstance(entry, Mapping) and _integer(entry.get("rank")) is not None


def _started(record: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "started": _number(record.get("t")),
        "launch": _integer(record.get("launch")) or 0,
        "members": record["nodes"] if isinstance(record.get("nodes"), list) else None,
        "resume": _text(record.get("resume")),
        "resume_step": _integer(record.get("resume_step")),
        "start_mode": _text(record.get("start_mode")),
    }


def num_machines(attempt: AttemptRow) -> int:
    """Its nodes; of an existing batch script, those of its job."""
    return max(len(attempt.nodes), *(len(node.get("machines") or ()) for node in attempt.nodes), 0)


def _job_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """What the scheduler has given an existing batch script, whose agent is on its first node alone."""
    machines = record.get("machines")
    if not isinstance(machines, list):
        return {}
    return {"machines": [str(one) for one in machines], "tasks": _integer(record.get("tasks"))}


def _node_view(node: int, known: Mapping[str, Any] | None, record: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "node": node,
        "host": str(record.get("host") or ""),
        "address": str(record.get("address") or ""),
        "agent_pid": _integer(record.get("pid")),
        "devices": list((known or {}).get("devices") or ()),
        "environment": None,
    }


def _is_whole(kind: str, record: Mapping[str, Any]) -> bool:
    """Whether a record has what its kind always has; a line that training code wrote into the journal has not."""
    if kind == "rank_exited" and record.get("exit_code") is None and record.get("signal") is None:
        return False
    return all(record.get(key) is not None for key in ("t", *_NEEDED.get(kind, ())))


def _fold_rank(ranks: dict[int, dict[str, Any]], node: int, record: Mapping[str, Any]) -> None:
    rank = _integer(record.get("rank"))
    if rank is None:
        return
    known = ranks.get(rank) or _rank_view({"rank": rank, "node": node})
    if record["kind"] == "rank_started":
        known |= {"pid": record.get("pid"), "started": _number(record.get("t"))}
    else:
        ended = {key: record.get(key) for key in ("exit_code", "signal", "ended_by", "peak_rss_bytes")}
        words = {key: _text(record.get(key)) for key in ("phase", "place")}
        said = {"step": _integer(record.get("step")), **words, "error": _said(record)}
        known |= {**ended, **said, "ended": _number(record.get("t"))}
    ranks[rank] = known


def _said(record: Mapping[str, Any]) -> str | None:
    """The exception of a rank in one line."""
    error = record.get("error")
    if not isinstance(error, Mapping):
        return None
    said = ": ".join(str(error[key]) for key in ("type", "message") if error.get(key))
    return said.splitlines()[0][:_SAID_CHARS] if said else None


def _failing(record: Mapping[str, Any]) -> dict[str, Any]:
    """Why an attempt is about to end, before its result is there."""
    failure = record.get("failure")
    if not isinstance(failure, Mapping):
        return {}
    return {
        "first_failure": failure,
        "reason": _text(record.get("reason")),
        "message": _text(record.get("message")) or "",
        "signature": _text(record.get("signature")),
        "hint": _text(record.get("hint")) or "",
    }


def _rank_view(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {key: entry.get(key) for key in _RANK_KEYS}


def _message(kind: str, attempt: int, node: int, record: Mapping[str, Any]) -> str:
    if kind == "rank_exited":
        return f"Rank {record.get('rank')} on node {node} {_how(record)}."
    texts = {
        "attempt_started": f"Attempt {attempt} starts{_from(record)}.",
        "attempt_running": f"Attempt {attempt}: all ranks have started.",
        "notice": f"Ranks are told to save and stop ({record.get('cause')}), {record.get('notice_s')} s before.",
        "stopping": f"Ranks are asked to stop ({record.get('cause')}), with {record.get('grace_s')} s of grace.",
        "killed": f"Node {node}: grace is over, {_count(record.get('pids'))} killed.",
        "agent_lost": f"The agent of node {record.get('node', node)} is lost. {record.get('detail') or ''}".strip(),
        **{said: str(record.get("text") or "") for said in _SAID},
    }
    return texts[kind]


def _how(record: Mapping[str, Any]) -> str:
    signal = record.get("signal")
    if signal is not None:
        return f"was ended by {signal_name(signal)}"
    return f"exited with code {record.get('exit_code')}"


def _from(record: Mapping[str, Any]) -> str:
    step = record.get("resume_step")
    if record.get("resume") and step is not None:
        return f" from the checkpoint of step {step}"
    return f" fresh: {record['fresh']}" if record.get("fresh") else ""


def _count(pids: object) -> str:
    count = len(pids) if isinstance(pids, Sequence) else 0
    return f"{count} {'process' if count == 1 else 'processes'}"
