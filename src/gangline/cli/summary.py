"""One run on one screen: what `gangline show` prints, and the demo at its end.

Pure: from a RunDetail and a metric to lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from gangline.cli.describe import (
    describe_attempt,
    describe_code,
    describe_phase,
    describe_room,
    explain,
    has_begun,
    is_over,
    num_ranks,
    smaller_gang,
)
from gangline.cli.nextsteps import next_commands
from gangline.cli.plot import render_plot
from gangline.cli.prose import fold_message
from gangline.cli.table import Column, render_table
from gangline.cli.terminal import Terminal
from gangline.cli.text import (
    render_age,
    render_clock,
    render_count,
    render_duration,
    render_metric,
    render_size,
    render_step,
    visible,
    wrap,
)
from gangline.cli.why import LEAST_QUOTED, failed_attempt, render_hint, render_why
from gangline.wire.views import AttemptView, CheckpointView, CodeView, EventView, MetricView, RunDetail

__all__ = [
    "main_metric",
    "metric_points",
    "render_attempts",
    "render_checkpoints",
    "render_events",
    "render_metric_plot",
    "render_summary",
]

_LABEL_COLUMNS = 12
_MOST_LINES = 8
SCREEN_LINES = 40
"""What a brief summary tries to stay within."""
_MOST_HEAD = 6
_MOST_ATTEMPTS = 3
"""On a screen that has to hold a failure, too."""
_MOST_CHECKPOINTS = 6
_MOST_METRICS = 8
_WARNING_CHARS = 200
_KNOWN_PACKAGES = ("torch", "numpy", "jax", "tensorflow", "deepspeed", "accelerate", "lightning", "transformers")


def render_summary(
    run: RunDetail, terminal: Terminal, *, metric: MetricView | None = None, brief: bool = False
) -> list[str]:
    """The whole screen.

    Args:
        metric: the curve to draw, if any; `main_metric` says which to fetch.
        brief: leave out what does not help with a failure, so that the screen is enough.
    """
    if not brief:
        return _render_blocks(run, terminal, render_why(run, terminal), metric=metric)
    least = render_why(run, terminal, room=0)
    left = SCREEN_LINES - len(_render_blocks(run, terminal, least, brief=True))
    return _render_blocks(run, terminal, render_why(run, terminal, room=left + LEAST_QUOTED), brief=True)


def _render_blocks(
    run: RunDetail, terminal: Terminal, why: list[str], *, metric: MetricView | None = None, brief: bool = False
) -> list[str]:
    told = explain(run, terminal.now)
    head = _render_head(run, terminal)
    blocks = [
        head[:_MOST_HEAD] if brief else head,
        _render_facts(run, terminal),
        _titled(_name_failure(run), _indent(why), terminal),
        _titled("attempts", _newest_attempts(run["attempts"], terminal, told=told, brief=brief), terminal),
        _titled(metric["name"], _indent(render_metric_plot(metric, terminal)), terminal) if metric else [],
        [] if brief else _titled("checkpoints", _newest_checkpoints(run["checkpoints"], terminal), terminal),
        _render_job(run, terminal, why=why) if brief else _render_origin(run, terminal),
        _render_next(run, terminal),
    ]
    lines: list[str] = []
    for block in blocks:
        if block:
            lines += [*([""] if lines else []), *block]
    return lines


def main_metric(names: Iterable[str]) -> str | None:
    """The metric that a summary draws: `loss`, else one that is called so, else the first."""
    ordered = sorted(names)
    preferred = ("loss", "train_loss", "train/loss", "training_loss")
    for name in preferred:
        if name in ordered:
            return name
    return next((name for name in ordered if "loss" in name.lower()), ordered[0] if ordered else None)


def metric_points(metric: MetricView) -> list[tuple[float, float]]:
    """(step, mean) of every bucket; a mean that is not finite is NaN."""
    return [
        (float(bucket["step"]), float("nan") if bucket["mean"] is None else bucket["mean"])
        for bucket in metric["buckets"]
    ]


def render_metric_plot(metric: MetricView, terminal: Terminal, *, height: int = 12) -> list[str]:
    """The curve of one metric; one line if there is nothing to draw."""
    lines = render_plot(
        metric_points(metric), width=min(64, terminal.page - 2), height=height, unicode=terminal.unicode
    )
    return lines or [f"nothing to draw: none of its {render_count(metric['count'], 'value')} is finite"]


def render_attempts(
    attempts: Sequence[AttemptView], terminal: Terminal, *, indent: int = 0, told: str = ""
) -> list[str]:
    """A row for each attempt: how it ended and why, how long it took, where it started from.

    Args:
        told: what stands above already and is not said again.
    """
    if not attempts:
        return []
    columns = [
        Column(title="#", right=True),
        Column(title="outcome", paint=_outcome_painter(attempts)),
        Column(title="started", drop=3),
        Column(title="took", right=True, drop=2),
        *([Column(title="nodes", right=True, drop=4)] if _sizes_differ(attempts) else []),
        Column(title="resumed from", drop=5),
        Column(title="start", drop=6),
        Column(title="why", shrink_to=16, drop=4),
    ]
    rows = [_attempt_row(attempt, terminal.now, told, sized=_sizes_differ(attempts)) for attempt in attempts]
    return render_table(columns, rows, terminal, indent=indent)


def render_checkpoints(checkpoints: Sequence[CheckpointView], terminal: Terminal, *, indent: int = 0) -> list[str]:
    """A row for each checkpoint, in the order given."""
    columns = [
        Column(title="step", right=True),
        Column(title="attempt", right=True, drop=3),
        Column(title="size", right=True),
        Column(title="files", right=True, drop=5),
        Column(title="saved", drop=2),
        Column(title="took", right=True, drop=4),
        Column(title="state"),
        Column(title="path", drop=6),
    ]
    rows = [
        (
            str(item["step"]),
            str(item["attempt"]),
            render_size(item["size_bytes"]),
            str(item["num_files"]),
            f"{render_age(item['time'], terminal.now)} ago",
            render_duration(item["duration_s"]),
            "latest" if item["latest"] else item["state"],
            item["path"],
        )
        for item in checkpoints
    ]
    return render_table(columns, rows, terminal, indent=indent)


def render_events(events: Sequence[EventView], terminal: Terminal) -> list[str]:
    """A line for each event: when, what kind, what happened."""
    return [
        terminal.clip(f"{render_clock(e['time'])}  {visible(e['kind']):<16} {fold_message(e['message'])}")
        for e in events
    ]


def _render_head(run: RunDetail, terminal: Terminal) -> list[str]:
    name = "" if run["name"] == run["id"] else f"  {visible(run['name'])}"
    facts = [describe_phase(run)]
    if is_over(run) and run["exit_code"] is not None:
        facts.append(f"exit code {run['exit_code']}")
    return [
        terminal.clip(terminal.heading(run["id"]))
        if not name
        else terminal.heading(run["id"]) + terminal.clip(name, 60),
        terminal.phase(run["phase"], terminal.dot.join(facts)),
        *wrap(explain(run, terminal.now), terminal.page),
    ]


def _render_facts(run: RunDetail, terminal: Terminal) -> list[str]:
    facts = {
        "progress": _progress(run, terminal),
        "origin": _origin(run, terminal),
        "gang": _gang(run, terminal),
        "time": _time(run, terminal),
        "room now": "; ".join(describe_room(part) for part in run["room"]),
        "metrics": _newest_metrics(run["metrics"], terminal),
        "avoided": _avoided(run["events"]),
        "watchdog": _suspicion(run),
        "slow": _slow(run),
        "warnings": _warnings(run),
        "dashboard": "" if is_over(run) else _newest(run["events"], "dashboard"),
    }
    return _labelled(facts, terminal)


def _progress(run: RunDetail, terminal: Terminal) -> str:
    parts = [f"step {render_step(run['step'], run['total_steps'])}"] if run["step"] is not None else []
    if run["tokens_per_s"]:
        parts.append(f"{run['tokens_per_s']:,.0f} tokens/s")
    return terminal.dot.join(parts)


def _origin(run: RunDetail, terminal: Terminal) -> str:
    """The run that it was made from, and what the newest `gangline resume` has changed of its spec."""
    parts = [f"rerun of {run['rerun_of']}"] if run["rerun_of"] else []
    parts += [f"smaller world of {run['debug_of']}, for debugging"] if run["debug_of"] else []
    told = [event["message"] for event in run["events"] if event["kind"] == "revised"]
    if run["revision"]:
        what = visible(told[-1].removeprefix("The spec was changed: ").rstrip(".")) if told else ""
        parts.append(f"revision {run['revision']} of its spec{f': {what}' if what else ''}")
    return terminal.dot.join(parts)


def _gang(run: RunDetail, terminal: Terminal) -> str:
    parts = [
        _script_job(run)
        or f"{render_count(run['nodes'], 'node')} x {render_count(run['procs_per_node'], 'rank')}"
        + (f" = {num_ranks(run)} ranks" if run["nodes"] > 1 else ""),
        *_smaller(run),
        f"{render_count(run['gpus_per_node'], 'accelerator')} a node" if run["gpus_per_node"] else "no accelerators",
        f"pool {visible(run['pool'])}",
        f"strategy {visible(str(run['spec'].get('strategy', '-')))}",
    ]
    return terminal.dot.join(parts)


def _script_job(run: RunDetail) -> str:
    """What an existing batch script has been given, or else asks for; "" of other runs."""
    asked = (run["spec"].get("slurm") or {}).get("directives") or {}
    given = [node for attempt in run["attempts"][-1:] for node in attempt["nodes"] if node["machines"]]
    if given:
        return f"{render_count(len(given[0]['machines']), 'node')}, {render_count(given[0]['tasks'] or 0, 'task')}"
    if not (run["spec"].get("slurm") or {}).get("script"):
        return ""
    told = [f"--{name}={visible(asked[name])}" for name in ("nodes", "ntasks", "ntasks-per-node") if asked.get(name)]
    return f"as its script asks: {' '.join(told) or '1 node'}"


def _smaller(run: RunDetail) -> list[str]:
    """What the newest attempt of an elastic gang has of the nodes that were asked for, unless it has all."""
    nodes = smaller_gang(run)
    if nodes is None:
        return []
    when = "ran at last" if is_over(run) else "now"
    return [f"{nodes} of {run['nodes']} nodes {when} = {nodes * run['procs_per_node']} ranks"]


def _time(run: RunDetail, terminal: Terminal) -> str:
    parts = [f"submitted {render_age(run['created'], terminal.now)} ago by {visible(run['user'])}"]
    if run["started"] is not None:
        parts.append(f"waited {render_duration(run['started'] - run['created'])}")
        parts.append(f"{'took' if is_over(run) else 'runs for'} {render_duration(run['duration_s'])}")
    if restarts := run["restarts"] - (not all(map(has_begun, run["attempts"][-1:]))):
        parts.append(render_count(restarts, "restart"))
    return terminal.dot.join(parts)


def _avoided(events: Sequence[EventView]) -> str:
    """Machines that the newest launch that avoided any was kept from, and why."""
    told = [event["data"] for event in events if event["kind"] == "avoided"]
    newest = [data for data in told if data.get("launch") == told[-1].get("launch")]
    return visible("; ".join(f"node {data.get('avoids')} ({data.get('why')})" for data in newest))


def _warnings(run: RunDetail) -> str:
    """What the newest attempt was warned of first, and how many more there are."""
    newest = run["attempt"]
    told = [
        event["message"]
        for event in run["events"]
        if event["kind"] == "warning" and event["data"].get("attempt", newest) == newest
    ]
    if not told:
        return ""
    first = fold_message(told[0])
    first = first if len(first) <= _WARNING_CHARS else f"{first[:_WARNING_CHARS].rstrip()}…"
    more = f" ({len(told) - 1} more: gangline show {run['id']} --events)" if len(told) > 1 else ""
    return f"{first}{more}"


def _suspicion(run: RunDetail) -> str:
    """What the newest look at a gang that did not move has found; when tells whether it still holds."""
    newest = next((e for e in reversed(run["events"]) if e["kind"] in {"hang_suspected", "hang"}), None)
    if newest is None or newest["data"].get("attempt", run["attempt"]) != run["attempt"] or is_over(run):
        return ""
    return f"{render_clock(newest['time'])} {fold_message(newest['message'])}"


def _slow(run: RunDetail) -> str:
    """Ranks that are slower than their peers just now."""
    newest = {
        event["data"].get("rank"): event
        for event in run["events"]
        if event["kind"] == "straggler" and event["data"].get("attempt") == run["attempt"]
    }
    told = [event["message"] for event in newest.values() if event["data"].get("on")]
    return "" if is_over(run) else fold_message(" ".join(told))


def _newest(events: Sequence[EventView], kind: str) -> str:
    return fold_message(next((event["message"] for event in reversed(events) if event["kind"] == kind), ""))


def _newest_metrics(metrics: Mapping[str, float | None], terminal: Terminal) -> str:
    names = list(metrics)
    shown = [f"{visible(name)} {render_metric(metrics[name])}" for name in names[:_MOST_METRICS]]
    more = len(names) - len(shown)
    return terminal.dot.join([*shown, *([f"{more} more"] if more > 0 else [])])


def _sizes_differ(attempts: Sequence[AttemptView]) -> bool:
    return len({len(attempt["nodes"]) for attempt in attempts if attempt["nodes"]}) > 1


def _attempt_row(attempt: AttemptView, now: float, told: str, *, sized: bool) -> tuple[str, ...]:
    started, ended = attempt["started"], attempt["ended"]
    took = None if started is None else (ended or now) - started
    step, why = attempt["resume_step"], attempt["message"]
    is_told = bool(why) and attempt["outcome"] != "succeeded" and fold_message(why) in told
    return (
        str(attempt["number"]),
        describe_attempt(attempt),
        render_clock(started),
        render_duration(took),
        *([str(len(attempt["nodes"]) or "-")] if sized else []),
        f"step {step}" if step is not None else ("checkpoint" if attempt["resume"] else "-"),
        attempt["start_mode"] or "-",
        "as said above" if is_told else fold_message(why),
    )


def _outcome_painter(attempts: Sequence[AttemptView]) -> Callable[[Terminal, str, int], str]:
    def paint(terminal: Terminal, cell: str, row: int) -> str:
        return terminal.phase(attempts[row]["outcome"] or "running", cell)

    return paint


def _name_failure(run: RunDetail) -> str:
    attempt = failed_attempt(run)
    is_newest = attempt is None or attempt["number"] == run["attempts"][-1]["number"]
    return "first failure" if attempt is None or is_newest else f"first failure of attempt {attempt['number']}"


def _newest_attempts(attempts: Sequence[AttemptView], terminal: Terminal, *, told: str, brief: bool) -> list[str]:
    shown = attempts[-_MOST_ATTEMPTS:] if brief else attempts
    lines = render_attempts(shown, terminal, indent=2, told=told)
    more = len(attempts) - len(shown)
    return [*lines, f"  and {render_count(more, 'earlier one')}"] if more else lines


def _newest_checkpoints(checkpoints: Sequence[CheckpointView], terminal: Terminal) -> list[str]:
    if not checkpoints:
        return []
    newest = sorted(checkpoints, key=lambda item: (item["step"], item["attempt"]), reverse=True)
    lines = render_checkpoints(newest[:_MOST_CHECKPOINTS], terminal, indent=2)
    more = len(newest) - _MOST_CHECKPOINTS
    return [*lines, f"  and {render_count(more, 'older one')}"] if more > 0 else lines


def _render_origin(run: RunDetail, terminal: Terminal) -> list[str]:
    """Where it came from and where it lies: command, code, environment, folder."""
    code = _code_lines(run["code"])
    facts = {
        "command": _command(run["spec"]),
        "code": code[0],
        **{" " * (i + 1): line for i, line in enumerate(code[1:])},
        "environment": _environment(run, terminal),
        "hosts": _hosts(run),
        "folder": visible(run["run_dir"]),
        **_of_backend(run),
    }
    return _labelled(facts, terminal)


def _render_job(run: RunDetail, terminal: Terminal, *, why: list[str]) -> list[str]:
    """Where else to look, if no rank has said what was wrong."""
    return [] if why else _labelled(_of_backend(run), terminal)


def _of_backend(run: RunDetail) -> dict[str, str]:
    return {name: visible(run["backend"][key]) for key, name in _OF_BACKEND.items() if run["backend"].get(key)}


_OF_BACKEND = {"job": "job", "log": "job's log", "queue": "in queue", "details": "details"}
"""What a backend says of a launch that people look at, and its title."""


def _command(spec: Mapping[str, Any]) -> str:
    import shlex  # noqa: PLC0415 - only summaries quote commands

    from gangline.domain.redact import Redactor, secret_values  # noqa: PLC0415 - as above

    kind = spec.get("entry_kind")
    words = [*(["-m"] if kind == "module" else []), str(spec.get("entry", "")), *map(str, spec.get("args", ()))]
    given = (spec.get("environment") or {}).get("env") or {}
    return visible(shlex.join(Redactor(secret_values(given)).value(words)))


def _environment(run: RunDetail, terminal: Terminal) -> str:
    for attempt in reversed(run["attempts"]):
        for node in attempt["nodes"]:
            if node["environment"]:
                return terminal.dot.join(_environment_facts(node["environment"]))
    return ""


def _environment_facts(environment: Mapping[str, Any]) -> list[str]:
    python = environment.get("python")
    if isinstance(python, Mapping):
        python = python.get("version")
    packages = environment.get("packages")
    known = packages if isinstance(packages, Mapping) else {}
    found = [f"{name} {known[name]}" for name in _KNOWN_PACKAGES if name in known]
    return [visible(fact) for fact in [*([f"Python {python}"] if python else []), *found]]


def _hosts(run: RunDetail) -> str:
    if not run["attempts"]:
        return ""
    nodes = run["attempts"][-1]["nodes"]
    hosts = dict.fromkeys(host for node in nodes for host in node["machines"] or [node["host"]] if host)
    return ", ".join(map(visible, hosts))


def _render_next(run: RunDetail, terminal: Terminal) -> list[str]:
    commands = next_commands(run)
    width = max(len(command) for command, _ in commands)
    lines = [f"{command:<{width}}  {terminal.paint(text, dim=True)}" for command, text in commands]
    return _titled("what to do next", _indent([*render_hint(run, terminal), *lines]), terminal)


def _labelled(facts: Mapping[str, str], terminal: Terminal) -> list[str]:
    """Each fact beside its label, in as many lines as it needs."""
    lines = []
    for label, value in facts.items():
        names = [label.strip()] + [""] * _MOST_LINES
        for name, line in zip(names, wrap(value, terminal.page - _LABEL_COLUMNS), strict=False):
            lines.append(f"{terminal.paint(f'{name:<{_LABEL_COLUMNS}}', dim=True)}{line}")
    return lines


def _titled(title: str, lines: list[str], terminal: Terminal) -> list[str]:
    return [terminal.heading(visible(title)), *lines] if lines else []


def _indent(lines: Iterable[str]) -> list[str]:
    return [f"  {line}" for line in lines]


def _code_lines(code: CodeView | None) -> list[str]:
    if code is None:
        return ["no snapshot"]
    return [visible(code["fault"])] if code.get("fault") else describe_code(code)
