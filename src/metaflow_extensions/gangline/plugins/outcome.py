"""How a run ended, for Metaflow: the text of the error, and what is noted with the task. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gangline.client import RunDetail

__all__ = ["CONTAINER", "ENDED", "describe_end", "run_metadata"]

CONTAINER = "container"
"""What is said of a gang that runs in the container of its step, in place of a pool."""
ENDED = frozenset({"succeeded", "failed", "stopped"})
"""Phases of a run that is over."""


def describe_end(run: RunDetail | Mapping[str, Any], step: str, *, served: bool = True) -> str:
    """Which rank failed, why, where its log is, and what to do.

    Args:
        served: a server knows the run, so that commands show more of it.
    """
    attempts = run["attempts"]
    failed = next((one for one in reversed(attempts) if one["first_failure"] is not None), None)
    how = run["phase"] if run["reason"] is None else f"{run['phase']} ({run['reason']})"
    lines = [f"The gang of step *{step}*, run {run['id']}, {'has ' if run['phase'] == 'failed' else 'was '}{how}."]
    if run["message"]:
        lines.append(run["message"])
    if failed is not None and failed["first_failure"] is not None and run["phase"] == "failed":
        lines += _failure(run, failed["first_failure"], failed["number"], served=served)
        if failed["hint"]:
            lines.append(f"What to do: {failed['hint']}")
    if served:
        lines.append(f"All of it: gangline show {run['id']}")
    return "\n".join(lines)


def _failure(run: Any, failure: Any, attempt: int, *, served: bool) -> list[str]:
    rank = failure["rank"]
    said = ": ".join(str(failure[name]) for name in ("error_type", "error_message") if failure[name])
    lines = [f"Rank {rank} on node {failure['node']} ({failure['host']}), attempt {attempt}: {said or 'see its log'}"]
    path = f"{run['run_dir']}/attempts/{attempt}/rank-{rank:05d}.log"
    where = f"gangline logs {run['id']} --rank {rank} --attempt {attempt}" if served else f"lines `[rank {rank}]` above"
    lines.append(f"Its log: {where} ({path})")
    return lines


def run_metadata(run: RunDetail | Mapping[str, Any]) -> dict[str, str]:
    """Fields for the metadata of the task."""
    latest = next((one["path"] for one in run["checkpoints"] if one["latest"]), "")
    return {
        "gangline-run-id": run["id"],
        "gangline-pool": run["pool"],
        "gangline-run-dir": run["run_dir"],
        "gangline-logs": f"gangline logs {run['id']} --all-ranks" if run["pool"] != CONTAINER else "",
        "gangline-job": run["backend"].get("job", ""),
        "gangline-phase": run["phase"] if run["phase"] in ENDED else "",
        "gangline-attempts": str(len(run["attempts"])) if run["attempts"] else "",
        "gangline-checkpoint": f"file://{latest}" if latest else "",
    }
