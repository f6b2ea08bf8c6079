"""How a run ended, for Metaflow: the text of the error, and what is noted with the task. Pure."""

from __future__ import annotations

from typing import Any

from gangline.client import RunDetail

__all__ = ["ENDED", "describe_end", "run_metadata"]

ENDED = frozenset({"succeeded", "failed", "stopped"})
"""Phases of a run that is over."""


def describe_end(run: RunDetail, step: str) -> str:
    """Which rank failed, why, where its log is, and what to do."""
    attempts = run["attempts"]
    failed = next((one for one in reversed(attempts) if one["first_failure"] is not None), None)
    how = run["phase"] if run["reason"] is None else f"{run['phase']} ({run['reason']})"
    lines = [f"The gang of step *{step}*, run {run['id']}, {'has ' if run['phase'] == 'failed' else 'was '}{how}."]
    if run["message"]:
        lines.append(run["message"])
    if failed is not None and failed["first_failure"] is not None and run["phase"] == "failed":
        lines += _failure(run, failed["first_failure"], failed["number"])
        if failed["hint"]:
            lines.append(f"What to do: {failed['hint']}")
    lines.append(f"All of it: gangline show {run['id']}")
    return "\n".join(lines)


def _failure(run: RunDetail, failure: Any, attempt: int) -> list[str]:
    rank = failure["rank"]
    said = ": ".join(str(failure[name]) for name in ("error_type", "error_message") if failure[name])
    lines = [f"Rank {rank} on node {failure['node']} ({failure['host']}), attempt {attempt}: {said or 'see its log'}"]
    path = f"{run['run_dir']}/attempts/{attempt}/rank-{rank:05d}.log"
    lines.append(f"Its log: gangline logs {run['id']} --rank {rank} --attempt {attempt} ({path})")
    return lines


def run_metadata(run: RunDetail) -> dict[str, str]:
    """Fields for the metadata of the task."""
    latest = next((one["path"] for one in run["checkpoints"] if one["latest"]), "")
    return {
        "gangline-run-id": run["id"],
        "gangline-pool": run["pool"],
        "gangline-run-dir": run["run_dir"],
        "gangline-logs": f"gangline logs {run['id']} --all-ranks",
        "gangline-job": run["backend"].get("job", ""),
        "gangline-phase": run["phase"] if run["phase"] in ENDED else "",
        "gangline-attempts": str(len(run["attempts"])) if run["attempts"] else "",
        "gangline-checkpoint": f"file://{latest}" if latest else "",
    }
