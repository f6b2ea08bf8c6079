"""What the card of a gang shows, as Metaflow's own components. Pure.

Nothing that comes from a run goes into Markdown, which Metaflow renders with all the HTML that is in it; tables, logs
and charts show text as text.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gangline.client import RunDetail

from .cardfile import chart, log_box, section, table
from .outcome import ENDED

__all__ = ["Seen", "choose_metrics", "render_parts"]

_MOST_CHARTS = 6
_LONGEST_CELL = 500
_GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What is known of a run at one moment."""

    run: RunDetail
    metrics: Sequence[Mapping[str, Any]] = ()
    """`MetricView` of each that is drawn."""
    system: Sequence[Mapping[str, Any]] = ()
    """`SystemView` of each node."""
    rank: int = 0
    """Whose log `tail` is."""
    tail: str = ""


def choose_metrics(names: Sequence[str]) -> list[str]:
    """Those that are drawn: losses first, then how fast it goes, then the rest."""

    def order(name: str) -> tuple[int, str]:
        low = name.lower()
        return (0 if low == "loss" else 1 if "loss" in low else 2 if low.endswith("_per_s") else 3), name

    return sorted(names, key=order)[:_MOST_CHARTS]


def render_parts(seen: Seen) -> list[Any]:
    """The card's sections, from top to bottom."""
    parts = [section("Run", table(("", ""), _facts(seen.run)))]
    charts = [chart(one["name"], _curve(one), x="step") for one in seen.metrics]
    if charts:
        parts.append(section("Metrics of rank 0", *charts, columns=min(2, len(charts))))
    if any(view["samples"] for view in seen.system):
        parts.append(section("Nodes", table(_NODE, [_node(view) for view in seen.system if view["samples"]])))
        parts.append(section("Use over time, %", chart("busy", _use(seen.system), x="s", by="what")))
    if seen.run["attempts"]:
        parts.append(section("Attempts", table(_ATTEMPT, [_attempt(one) for one in seen.run["attempts"]])))
    parts.append(section("Logs", table(("", ""), _commands(seen.run)), log_box(f"rank {seen.rank}", seen.tail)))
    return parts


def _facts(run: RunDetail) -> list[tuple[str, str]]:
    how = run["phase"] if run["reason"] is None else f"{run['phase']} ({run['reason']})"
    gang = f"{run['nodes']} nodes x {run['procs_per_node']} ranks"
    step = "-" if run["step"] is None else str(run["step"])
    rate = _steps_per_s(run)
    latest = next((one["path"] for one in run["checkpoints"] if one["latest"]), None)
    rows = [
        ("run", run["id"]),
        ("phase", how),
        ("message", run["message"]),
        ("pool, gang", f"{run['pool']}, {gang}"),
        ("job", run["backend"].get("job", "")),
        ("dashboard", _dashboard(run)),
        ("step", step if run["total_steps"] is None else f"{step} of {run['total_steps']}"),
        ("steps/s, restarts included", "" if rate is None else f"{rate:.3g}"),
        ("tokens/s", "" if run["tokens_per_s"] is None else f"{run['tokens_per_s']:.4g}"),
        ("restarts", str(run["restarts"])),
        ("trained for", "" if run["duration_s"] is None else f"{run['duration_s']:.0f} s"),
        ("newest checkpoint", "" if latest is None else latest),
        ("seen", _clock(time.time())),
    ]
    return [(name, _cut(value)) for name, value in rows if value]


def _dashboard(run: RunDetail) -> str:
    """Of the Ray cluster that lives as long as an attempt."""
    if run["phase"] in ENDED:
        return ""
    return next((event["message"] for event in reversed(run["events"]) if event["kind"] == "dashboard"), "")


def _steps_per_s(run: RunDetail) -> float | None:
    if run["step"] is None or not run["duration_s"] or not run["attempts"]:
        return None
    return max(0, run["step"] - (run["attempts"][0]["resume_step"] or 0)) / run["duration_s"]


def _curve(metric: Mapping[str, Any]) -> list[dict[str, Any]]:
    points = ((bucket["step"], bucket["mean"]) for bucket in metric["buckets"])
    return [{"x": step, "y": value} for step, value in points if value is not None and math.isfinite(value)]


_NODE = ("node", "host", "CPU", "memory", "devices")


def _node(view: Mapping[str, Any]) -> tuple[str, ...]:
    sample = view["samples"][-1]
    busy, memory = (sample.get("cpu") or {}).get("busy"), sample.get("memory") or {}
    devices = ", ".join(f"{one.get('id')}: {_percent(one.get('use_percent'))}" for one in sample.get("devices") or ())
    used, limit = memory.get("used_bytes"), memory.get("limit_bytes")
    held = "-" if used is None or not limit else f"{used / _GIB:.1f} of {limit / _GIB:.1f} GiB"
    return str(view["node"]), _cut(view["host"]), _percent(None if busy is None else busy * 100), held, devices or "-"


def _use(system: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A curve for the processors of each node, and one for each of its devices."""
    begin = min(sample["t"] for view in system for sample in view["samples"])
    points: list[dict[str, Any]] = []
    for view in system:
        for sample in view["samples"]:
            at = round(sample["t"] - begin, 1)
            busy = (sample.get("cpu") or {}).get("busy")
            if busy is not None:
                points.append({"x": at, "y": round(busy * 100, 1), "what": f"node {view['node']} CPU"})
            points += [
                {"x": at, "y": one["use_percent"], "what": f"node {view['node']} device {one.get('id')}"}
                for one in sample.get("devices") or ()
                if one.get("use_percent") is not None
            ]
    return points


_ATTEMPT = ("attempt", "began", "from step", "ended as", "why", "first failing rank")


def _attempt(attempt: Mapping[str, Any]) -> tuple[str, ...]:
    failure = attempt["first_failure"]
    who = ""
    if failure is not None:
        said = ": ".join(str(failure[name]) for name in ("error_type", "error_message") if failure[name])
        who = f"rank {failure['rank']} on node {failure['node']} ({failure['host']}) {said}"
    why = " ".join(str(word) for word in (attempt["reason"], attempt["message"]) if word)
    came = "-" if attempt["resume_step"] is None else str(attempt["resume_step"])
    row = (str(attempt["number"]), _clock(attempt["started"]), came, attempt["outcome"] or "runs", why or "-", who)
    return tuple(_cut(cell) for cell in row)


def _commands(run: RunDetail) -> list[tuple[str, str]]:
    return [
        ("all ranks", f"gangline logs {run['id']} --all-ranks"),
        ("all of it", f"gangline show {run['id']}"),
        ("one page", f"gangline report {run['id']}"),
        ("files", _cut(run["run_dir"])),
        *((name, _cut(value)) for name, value in run["backend"].items() if name != "job"),
    ]


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f} %"


def _clock(moment: float | None) -> str:
    return "-" if moment is None else time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(moment))


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_CELL else f"{text[:_LONGEST_CELL]} …"
