"""What a person can do next with a run: whole commands, only those that make sense for it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gangline.cli.describe import ENDS_BY_TYPE, is_over
from gangline.domain.phase import Phase, Reason

if TYPE_CHECKING:
    from gangline.wire.views import FailureView, RunDetail

__all__ = ["next_commands"]

_OF_THE_CODE = frozenset({Reason.USER_ERROR.value, Reason.OUT_OF_MEMORY.value, Reason.HANG.value})
"""What happens again in a smaller world, where it can be looked at."""
_OF_WORKERS = frozenset({Reason.OUT_OF_MEMORY.value, Reason.HANG.value, Reason.ENVIRONMENT_MISMATCH.value})
"""What the differences between the workers may explain."""
_LOOKED_AT = frozenset({"hang_suspected", "hang", "stacks"})


def next_commands(run: RunDetail) -> list[tuple[str, str]]:
    """Commands that make sense now, each with what it does."""
    if not is_over(run):
        return _while_it_lives(run)
    return _after_failure(run) if run["phase"] == Phase.FAILED.value else _after_end(run)


def _while_it_lives(run: RunDetail) -> list[tuple[str, str]]:
    run_id, found = run["id"], []
    if run["spec"].get("pdb_rank") is not None:
        found.append((f"gangline debug {run_id} --attach", "go to its debugger"))
    found.append((f"gangline watch {run_id}", "watch it live"))
    found.append((f"gangline logs {run_id} --follow", "follow its output"))
    if _has_told(run, {"hang_suspected"}):
        found.append((f"gangline stacks {run_id}", "see where its ranks are"))
    if _has_told(run, {"straggler"}):
        found.append((f"gangline compare {run_id} --ranks", "see which of them is slow, and where"))
    return [*found, (f"gangline stop {run_id}", "end it")]


def _after_failure(run: RunDetail) -> list[tuple[str, str]]:
    run_id, reason = run["id"], run["reason"]
    attempt = next((one for one in reversed(run["attempts"]) if one["first_failure"]), None)
    failure = None if attempt is None else attempt["first_failure"]
    found = [(f"gangline logs {run_id}{_which_log(run)}", "all that it wrote")]
    if _has_told(run, _LOOKED_AT):
        found.append((f"gangline stacks {run_id}", "where its ranks were"))
    if _has_several(run) and (reason in _OF_WORKERS or _has_told(run, {"straggler"})):
        found.append((f"gangline compare {run_id} --ranks", "what differs between its workers"))
    if run["debug_of"]:
        found.append((f"gangline debug {run['debug_of']}{_pdb(run, failure)}", "once more"))
    else:
        if reason in _OF_THE_CODE:
            pdb = _pdb(run, failure)
            stops = ", and stop where it raises" if pdb else ""
            found.append((f"gangline debug {run_id}{pdb}", f"repeat it here with few ranks{stops}"))
        found += _after_an_edit(run) if reason == Reason.USER_ERROR.value else []
        found.append(_go_on(run))
    return [*found, (f"gangline show {run_id} --full", "its code, checkpoints and environment, too")]


def _after_end(run: RunDetail) -> list[tuple[str, str]]:
    run_id = run["id"]
    found = [(f"gangline logs {run_id}", "all that it wrote")]
    if run["phase"] != Phase.SUCCEEDED.value:
        found.append(_go_on(run))
    if run["metrics"]:
        found.append((f"gangline metrics {run_id}", "all metrics"))
    if run["code"]:
        found.append((f"gangline show {run_id} --code DIR", "restore its exact code"))
    return found


def _after_an_edit(run: RunDetail) -> list[tuple[str, str]]:
    """Code that raises is seldom helped by the same code with the same arguments."""
    return [
        ("gangline submit ...", "edit, then submit again: resume and rerun take the code as it was submitted"),
        (f"gangline rerun {run['id']} -- ARGS", "the same code with other arguments"),
    ]


def _go_on(run: RunDetail) -> tuple[str, str]:
    newest = next((one for one in run["checkpoints"] if one["latest"]), None)
    if newest is not None:
        return f"gangline resume {run['id']}", f"go on from its checkpoint of step {newest['step']}"
    return f"gangline rerun {run['id']}", "once more from the beginning, with the same code"


def _which_log(run: RunDetail) -> str:
    """The rank that failed first; its attempt, too, where it is not the newest."""
    for attempt in reversed(run["attempts"]):
        failure = attempt["first_failure"]
        if failure is not None:
            earlier = attempt["number"] != run["attempts"][-1]["number"]
            return f" --rank {failure['rank']}" + (f" --attempt {attempt['number']}" if earlier else "")
    return ""


def _pdb(run: RunDetail, failure: FailureView | None) -> str:
    """A debugger, where an exception of Python code would stop in it."""
    is_python = run["spec"].get("entry_kind") != "command"
    kind = None if failure is None or failure["error_in_log"] else failure["error_type"]
    raised = kind is not None and kind not in ENDS_BY_TYPE and run["reason"] != Reason.HANG.value
    return " --pdb" if is_python and raised else ""


def _has_told(run: RunDetail, kinds: set[str] | frozenset[str]) -> bool:
    """Whether the newest attempt was told of in such an entry of the history."""
    newest = run["attempt"]
    return any(one["kind"] in kinds and one["data"].get("attempt", newest) == newest for one in run["events"])


def _has_several(run: RunDetail) -> bool:
    return run["nodes"] * run["procs_per_node"] > 1
