"""Sentences about runs, from the JSON that the server answers with.

Pure; imports the domain and text alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gangline.cli.prose import fold_message
from gangline.cli.text import join_words, render_count, render_duration, render_size, visible
from gangline.domain.phase import TERMINAL, Phase

if TYPE_CHECKING:
    from gangline.wire.views import AttemptView, CodeView, FailureView, PoolPartView, RunSummary

__all__ = [
    "ENDS_BY_TYPE",
    "describe_attempt",
    "describe_code",
    "describe_exit",
    "describe_failure",
    "describe_gang",
    "describe_phase",
    "describe_room",
    "exit_code_of",
    "explain",
    "has_begun",
    "is_over",
    "num_ranks",
    "script_nodes",
    "smaller_gang",
]

_TERMINAL_NAMES = frozenset(str(phase) for phase in TERMINAL)
EXIT_UNKNOWN_OUTCOME = 1
ENDS_BY_TYPE: Mapping[str | None, str] = {"Hang": "hung", "LeftEarly": "left"}
"""What stands in place of an exception, where a rank is to blame that has raised none."""


def is_over(run: RunSummary) -> bool:
    """Whether the run has ended, however."""
    return run["phase"] in _TERMINAL_NAMES


def exit_code_of(run: RunSummary) -> int:
    """What `gangline` exits with for a run that is over: the run's own outcome."""
    code = run["exit_code"]
    if code is not None:
        return code
    return 0 if run["phase"] == Phase.SUCCEEDED.value else EXIT_UNKNOWN_OUTCOME


def num_ranks(run: RunSummary) -> int:
    """Ranks of the whole gang."""
    return run["nodes"] * run["procs_per_node"]


def describe_phase(run: RunSummary) -> str:
    """`failed (user_error)`; the reason is left out where the phase says the same."""
    reason = run["reason"]
    redundant = {"stopped": "stopped_by_user", "preempted": "preempted"}.get(run["phase"])
    return run["phase"] if not reason or reason == redundant else f"{run['phase']} ({reason})"


def smaller_gang(run: RunSummary) -> int | None:
    """Nodes of the newest attempt, where an elastic gang has fewer than were asked for."""
    nodes = run["attempt_nodes"]
    waits = run["phase"] in {Phase.QUEUED.value, Phase.STARTING.value}
    return None if waits or nodes is None or nodes >= run["nodes"] else nodes


def describe_room(part: PoolPartView) -> str:
    """`gpu: 3 of 8 nodes idle, 96 of 512 CPUs and 24 of 64 accelerators free`."""
    devices = f" and {part['free_devices']} of {part['devices']} accelerators" if part["devices"] else ""
    nodes = f"{part['idle_nodes']} of {render_count(part['nodes'], 'node')} idle"
    return f"{visible(part['name'])}: {nodes}, {part['free_cpus']} of {part['cpus']} CPUs{devices} free"


def script_nodes(run: RunSummary) -> int | None:
    """Nodes that the scheduler has given an existing batch script, which looks after them itself; None: not so."""
    nodes = run["attempt_nodes"]
    return nodes if nodes is not None and nodes > run["nodes"] else None


def describe_gang(run: RunSummary) -> str:
    """`2x2`: nodes by ranks on each, with accelerators where there are any; `2/4x2` where two of four nodes run.

    `4 nodes` of an existing batch script, whose tasks are its own business.
    """
    if (nodes := script_nodes(run)) is not None:
        return f"{nodes} nodes"
    smaller = smaller_gang(run)
    gang = f"{'' if smaller is None else f'{smaller}/'}{run['nodes']}x{run['procs_per_node']}"
    return f"{gang} {run['gpus_per_node']}gpu" if run["gpus_per_node"] else gang


def explain(run: RunSummary, now: float) -> str:
    """How the run stands and why, in one sentence."""
    if run["message"]:
        text = fold_message(run["message"]).strip()
        return text if text.endswith((".", "!", "?")) else f"{text}."
    took = render_duration(run["duration_s"])
    phase = run["phase"]
    sentences = {
        "queued": f"Waits in pool {visible(run['pool'])} for {render_duration(now - run['created'])}.",
        "starting": "Its agents and ranks are being started.",
        "running": f"{_name_ranks(run)} run, for {took} so far.",
        "restarting": "The gang is being started again.",
        "stopping": "The ranks were told to stop and have time to save.",
        "succeeded": f"{_name_ranks(run)} ended with exit code 0 after {took}.",
        "stopped": f"Stopped after {took}.",
    }
    return sentences.get(phase, f"{phase.capitalize()}.")


def _name_ranks(run: RunSummary) -> str:
    """`All 8 ranks`, or `The 4 ranks of 2 of 4 nodes`."""
    if (nodes := script_nodes(run)) is not None:
        return f"The script and its tasks on {nodes} nodes"
    smaller = smaller_gang(run)
    if smaller is None:
        return f"All {num_ranks(run)} ranks"
    return f"The {render_count(smaller * run['procs_per_node'], 'rank')} of {smaller} of {run['nodes']} nodes"


def describe_exit(exit_code: int | None, signal_name: str | None, signal: int | None = None) -> str:
    """`exit code 3` or `SIGKILL`."""
    if signal_name or signal:
        return signal_name or f"signal {signal}"
    return "unknown end" if exit_code is None else f"exit code {exit_code}"


def describe_failure(failure: FailureView, started: float | None) -> str:
    """`rank 2 (node 1, host gpu-7, pid 7): SIGKILL, 12s after the start, at step 120 of 200, in eval`."""
    end = _describe_end(failure)
    after = f", {render_duration(failure['time'] - started)} after the start" if started is not None else ""
    host = f", host {visible(failure['host'])}" if failure["host"] else ""
    pid = f", pid {failure['pid']}" if failure["pid"] else ""
    step, total, phase = failure["step"], failure["total_steps"], failure["phase"]
    at = "" if step is None else f", at step {step}{f' of {total}' if total else ''}"
    within = f", in {visible(phase)}" if phase else ""
    return f"rank {failure['rank']} (node {failure['node']}{host}{pid}): {end}{after}{at}{within}"


def _describe_end(failure: FailureView) -> str:
    if failure["error_type"] and failure["signal_name"] in {"SIGTERM", "SIGKILL"}:
        return "raised"  # the platform was faster than its own end
    if failure["exit_code"] is None and failure["error_type"] in ENDS_BY_TYPE:
        return ENDS_BY_TYPE[failure["error_type"]]
    return describe_exit(failure["exit_code"], failure["signal_name"], failure["signal"])


def has_begun(attempt: AttemptView) -> bool:
    """Whether it came to its start: a run that is stopped between two attempts has a last one that never did."""
    return attempt["outcome"] != "stopped" or attempt["start_mode"] is not None


def describe_attempt(attempt: AttemptView) -> str:
    """`failed (killed)`, `running`, `starting`, `not begun (stopped_by_user)`."""
    if attempt["outcome"] is None:
        return "running" if attempt["running"] else "starting"
    outcome = attempt["outcome"] if has_begun(attempt) else "not begun"
    return f"{outcome} ({attempt['reason']})" if attempt["reason"] else outcome


def describe_code(code: CodeView) -> list[str]:
    """What was packed, from which commit, and what was left out by which rule; a line for each."""
    packed = f"{render_count(code['num_files'], 'file')}, {render_size(code['size_bytes'])}"
    return [f"{packed} from {visible(code['root'])}", *_describe_commit(code), *_describe_excluded(code)]


def _describe_commit(code: CodeView) -> list[str]:
    commit = code["commit"]
    if not commit:
        return []
    branch = f" on {visible(code['branch'])}" if code["branch"] else ""
    changes = []
    if code["diff"]:
        changes.append(f"{render_count(code['diff'].count(_DIFF_HEAD), 'changed file')}")
    if code["untracked"]:
        changes.append(f"{render_count(len(code['untracked']), 'untracked file')}")
    dirty = f", with {join_words(changes)}" if changes else (", with changes" if code["dirty"] else ", clean")
    return [f"commit {commit[:12]}{branch}{dirty}"]


_DIFF_HEAD = "diff --git "
_BUILT_IN = "built-in list:"
_MOST_RULES = 6


def _describe_excluded(code: CodeView) -> list[str]:
    """Rules of the project, a line each; then what is always left out, in one line."""
    known = [entry for entry in code["excluded"] if str(entry.get("rule")).startswith(_BUILT_IN)]
    own = [entry for entry in code["excluded"] if entry not in known]
    lines = [_describe_rule(entry) for entry in own[:_MOST_RULES]]
    if more := len(own) - len(own[:_MOST_RULES]):
        lines.append(f"left out {render_count(more, 'more entry', 'more entries')}; `--json` lists all")
    if known:
        names = ", ".join(sorted({str(entry["rule"]).removeprefix(_BUILT_IN).strip() for entry in known}))
        lines.append(f"left out as always: {visible(names)}")
    return lines


def _describe_rule(entry: Mapping[str, Any]) -> str:
    files, examples = entry.get("num_files"), entry.get("examples") or [entry.get("path")]
    amount = f" ({render_count(files, 'file')}, {render_size(entry.get('size_bytes'))})" if files else ""
    # The path of a rule that matched in several places is what they have in common, which may be all of the tree.
    path = entry.get("path") if entry.get("path") != "./" else f"{examples[0]} and others"
    return f"left out {visible(str(path))}{amount}: {visible(str(entry.get('rule')))}"
