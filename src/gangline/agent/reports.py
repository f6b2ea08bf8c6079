"""What nodes report of an attempt, noted in what its leader knows of it. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gangline.agent.attempt import Attempt, RankRecord
from gangline.agent.memory import Memory

__all__ = ["describe_lost_support", "note_cleared", "note_exited", "note_ready", "note_started"]

_EXITED_KEYS = (
    *("pid", "started", "exit_code", "signal", "ended_by", "peak_rss_bytes", "error", "printed", "log_tail"),
    *("step", "total", "phase", "place"),
)
_SAID_CHARS = 200
_FAR_S = 60.0
"""A clock that is further off than it was when the node joined has been set since; no report takes that long."""


def note_ready(attempt: Attempt, node: int, message: Mapping[str, Any]) -> None:
    """A node can start the attempt, or says in `refused` why not."""
    attempt.ready[node] = message["ports"]
    attempt.seen[node] = message["environment"]


def note_started(attempt: Attempt, node: int, message: Mapping[str, Any], *, host: str, ahead_s: float = 0.0) -> None:
    """A node has started its ranks; `ahead_s` as in `note_exited`."""
    attempt.started_nodes.add(node)
    attempt.start_mode = message["mode"]
    for one in message["ranks"]:
        record = _record(attempt, node, one["rank"], host)
        record.pid, record.started = one["pid"], one["time"] - ahead_s


def note_exited(
    attempt: Attempt, node: int, message: Mapping[str, Any], *, host: str, ahead_s: float = 0.0, heard: float
) -> RankRecord:
    """A rank has ended; what is known of it now, with all times by the leader's clock, so that they tell who was first.

    Args:
        ahead_s: how far the clock of the node was ahead of the leader's when the node joined.
        heard: when the message came, by the leader's clock.
    """
    if abs(message["time"] - ahead_s - heard) > _FAR_S:
        ahead_s = message["time"] - heard
    record = _record(attempt, node, message["rank"], host)
    for key in _EXITED_KEYS:
        setattr(record, key, message[key])
    record.error, record.printed = _set_back(message["error"], ahead_s), _set_back(message["printed"], ahead_s)
    record.started, record.ended = message["started"] - ahead_s, message["time"] - ahead_s
    left = _set_back(message["left"], ahead_s) or {}
    record.left, record.left_code = left.get("time"), left.get("code")
    record.lost_runtime = attempt.lost_code is not None and record.exit_code == attempt.lost_code and not record.error
    record.kernel_oom_kills = message["oom_kills"]
    record.memory = Memory(**message["memory"]) if message["memory"] else None
    return record


def note_cleared(attempt: Attempt, node: int, message: Mapping[str, Any]) -> None:
    """No process of the attempt is left on a node, but those that even SIGKILL did not end."""
    attempt.cleared.add(node)
    if message["stuck"]:
        attempt.stuck[node] = message["stuck"]


def describe_lost_support(record: RankRecord) -> str:
    """A rank that others need has left them: what is said of it."""
    lines = [line.strip() for line in record.log_tail.splitlines() if line.strip()]
    said = f": {lines[-1][:_SAID_CHARS].rstrip('.')}" if lines else ""
    who = f"Rank {record.rank} on node {record.node} ({record.host})"
    return f"{who}, which the others need, ended with exit code {record.exit_code}{said}."


def _set_back(told: Mapping[str, Any] | None, ahead_s: float) -> Mapping[str, Any] | None:
    """With its time by the leader's clock."""
    when = (told or {}).get("time")
    return told if told is None or not isinstance(when, int | float) else {**told, "time": when - ahead_s}


def _record(attempt: Attempt, node: int, rank: int, host: str) -> RankRecord:
    return attempt.ranks.setdefault(rank, RankRecord(rank=rank, node=node, host=host))
