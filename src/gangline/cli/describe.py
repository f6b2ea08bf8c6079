"""Sentences about runs, from the JSON that the server answers with.

Pure; imports the domain and text alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gangline.cli.text import join_words, render_count, render_duration, render_size, visible
from gangline.domain.phase import TERMINAL, Phase
from gangline.wire.views import AttemptView, CodeView, FailureView, RunDetail, RunSummary

__all__ = [
    "describe_attempt",
    "describe_code",
    "describe_exit",
    "describe_failure",
    "describe_gang",
    "describe_phase",
    "exit_code_of",
    "explain",
    "is_over",
    "next_commands",
    "num_ranks",
    "run_duration_s",
]

_TERMINAL_NAMES = frozenset(str(phase) for phase in TERMINAL)
EXIT_UNKNOWN_OUTCOME = 1


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


def run_duration_s(run: RunSummary, now: float) -> float | None:
    """Time since the run first started, up to its end; None while it has not started."""
    if run["started"] is None:
        return None
    return (run["ended"] or now) - run["started"]


def describe_phase(run: RunSummary) -> str:
    """`failed (user_error)`; the reason is left out where the phase says the same."""
    reason = run["reason"]
    redundant = {"stopped": "stopped_by_user", "preempted": "preempted"}.get(run["phase"])
    return run["phase"] if not reason or reason == redundant else f"{run['phase']} ({reason})"


def describe_gang(run: RunSummary) -> str:
    """`2x2`: nodes by ranks on each, with accelerators where there are any."""
    gang = f"{run['nodes']}x{run['procs_per_node']}"
    return f"{gang} {run['gpus_per_node']}gpu" if run["gpus_per_node"] else gang


def explain(run: RunSummary, now: float) -> str:
    """How the run stands and why, in one sentence."""
    if run["message"]:
        text = visible(run["message"]).strip()
        return text if text.endswith((".", "!", "?")) else f"{text}."
    took = render_duration(run_duration_s(run, now))
    phase = run["phase"]
    sentences = {
        "queued": f"Waits in pool {visible(run['pool'])} for {render_duration(now - run['created'])}.",
        "starting": "Its agents and ranks are being started.",
        "running": f"All {num_ranks(run)} ranks run, for {took} so far.",
        "restarting": "The gang is being started again.",
        "stopping": "The ranks were told to stop and have time to save.",
        "succeeded": f"All {num_ranks(run)} ranks ended with exit code 0 after {took}.",
        "stopped": f"Stopped after {took}.",
    }
    return sentences.get(phase, f"{phase.capitalize()}.")


def describe_exit(exit_code: int | None, signal_name: str | None, signal: int | None = None) -> str:
    """`exit code 3` or `SIGKILL`."""
    if signal_name or signal:
        return signal_name or f"signal {signal}"
    return "unknown end" if exit_code is None else f"exit code {exit_code}"


def describe_failure(failure: FailureView, started: float | None) -> str:
    """`rank 2 (node 1, host gpu-7, pid 7): SIGKILL, 12s after the start, at step 120 of 200, in eval`."""
    end = describe_exit(failure["exit_code"], failure["signal_name"], failure["signal"])
    after = f", {render_duration(failure['time'] - started)} after the start" if started is not None else ""
    host = f", host {visible(failure['host'])}" if failure["host"] else ""
    pid = f", pid {failure['pid']}" if failure["pid"] else ""
    step, total, phase = failure["step"], failure["total_steps"], failure["phase"]
    at = "" if step is None else f", at step {step}{f' of {total}' if total else ''}"
    within = f", in {visible(phase)}" if phase else ""
    return f"rank {failure['rank']} (node {failure['node']}{host}{pid}): {end}{after}{at}{within}"


def describe_attempt(attempt: AttemptView) -> str:
    """`failed (killed)`, `running`, `starting`."""
    if attempt["outcome"] is None:
        return "running" if attempt["running"] else "starting"
    return f"{attempt['outcome']} ({attempt['reason']})" if attempt["reason"] else attempt["outcome"]


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


def next_commands(run: RunDetail) -> list[tuple[str, str]]:
    """Commands that make sense now, each with what it does."""
    run_id = run["id"]
    if not is_over(run):
        return [
            (f"gangline watch {run_id}", "watch it live"),
            (f"gangline logs {run_id} --follow", "follow its output"),
            (f"gangline stop {run_id}", "end it"),
        ]
    failure = next(
        (attempt["first_failure"] for attempt in reversed(run["attempts"]) if attempt["first_failure"]), None
    )
    rank = f" --rank {failure['rank']}" if failure and run["phase"] == Phase.FAILED.value else ""
    commands = [(f"gangline logs {run_id}{rank}", "all that it wrote")]
    if run["phase"] == Phase.FAILED.value:
        commands.append((f"gangline show {run_id} --full", "its code, checkpoints and environment, too"))
    if run["phase"] != Phase.SUCCEEDED.value:
        commands.append((f"gangline resume {run_id}", "start it again from its newest checkpoint"))
    if run["phase"] == Phase.FAILED.value:
        return commands
    if run["metrics"]:
        commands.append((f"gangline metrics {run_id}", "all metrics"))
    if run["code"]:
        commands.append((f"gangline show {run_id} --code DIR", "restore its exact code"))
    return commands
