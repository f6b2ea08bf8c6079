"""Comparisons as lines. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gangline.cli.describe import describe_exit
from gangline.cli.differences import render_difference_table
from gangline.cli.table import Column, render_table
from gangline.cli.terminal import Terminal
from gangline.cli.text import render_count, render_duration, render_metric, render_number, render_size, visible
from gangline.wire.compared import CodeChangeView, CodeComparison, CompareView, MetricComparison, RankFacts, RanksView
from gangline.wire.views import DifferenceView

__all__ = ["render_code_diff", "render_comparison", "render_ranks"]

_MOST_FILES = 20
_SLOW = 1.2
"""A rank whose steps take this many times the median's is marked."""


def render_comparison(found: CompareView, terminal: Terminal) -> list[str]:
    """Blocks for how the runs went, spec, code, environment and metrics; those without differences say so."""
    names = [run["id"] for run in found["runs"]]
    facts = [
        DifferenceView(key=row["key"], values=[_fact(row["key"], value) for value in row["values"]])
        for row in found["facts"]
    ]
    shown = [row for row in facts if any(value is not None for value in row["values"])]
    return [
        terminal.heading("how they went"),
        *render_difference_table(shown, names, terminal),
        *_block("spec", render_difference_table(found["spec"], names, terminal), terminal),
        *_block("code", [line for one in found["code"] for line in _render_code(one)], terminal),
        *_block("environment", render_difference_table(found["environment"], names, terminal), terminal),
        *_metrics(found["metrics"], names, terminal),
    ]


def render_code_diff(found: CompareView) -> list[str]:
    """The differences of the code as `diff -u` writes them, with a word on each file that has none."""
    lines: list[str] = []
    for one in found["code"]:
        if one["fault"] or one["same"] or len(found["code"]) > 1:
            lines.append(f"# {one['base']} → {one['run']}: {_headline(one)}")
        for change in one["changes"]:
            text = visible(change["diff"] or "", multiline=True).rstrip("\n")
            lines.append(text or f"# {_describe_change(change)}")
    return lines


def render_ranks(found: RanksView, terminal: Terminal) -> list[str]:
    """What differs between the nodes, then a row for each rank."""
    names = [f"node {node} ({host})" for node, host in zip(found["nodes"], found["hosts"], strict=True)]
    silent = found["missing"]
    unknown = [f"  {render_count(len(silent), 'node')} described none: {', '.join(map(str, silent))}"] if silent else []
    alone = ["  there is one node, nothing to compare"] if len(names) == 1 and not silent else []
    return [
        f"{terminal.heading(found['run'])} attempt {found['attempt']}",
        *_block(
            "environment",
            [*(alone or render_difference_table(found["environment"], names, terminal)), *unknown],
            terminal,
            same="  the same on all nodes" if names else "",
        ),
        *_block("ranks", _rank_table(found["ranks"], terminal), terminal, same="  none has started"),
    ]


def _rank_table(ranks: Sequence[RankFacts], terminal: Terminal) -> list[str]:
    if not ranks:
        return []
    times = sorted(one["step_s"] for one in ranks if one["step_s"] is not None)
    usual = times[len(times) // 2] if times else None
    columns = [
        Column(title="rank", right=True),
        Column(title="node", right=True),
        Column(title="host", shrink_to=8, drop=3),
        Column(title="end"),
        Column(title="by", drop=4),
        Column(title="ran for", right=True),
        Column(title="peak memory", right=True),
        Column(title="step", right=True),
        Column(title="step time", right=True),
        Column(title=""),
    ]
    return render_table(columns, [_rank_row(one, usual) for one in ranks], terminal, indent=2)


def _rank_row(one: RankFacts, usual: float | None) -> tuple[str, ...]:
    ended = one["ended_by"] is not None
    slow = usual and one["step_s"] and one["step_s"] > _SLOW * usual
    return (
        str(one["rank"]),
        str(one["node"]),
        one["host"],
        describe_exit(one["exit_code"], None, one["signal"]) if ended else "runs",
        one["ended_by"] or "-",
        render_duration(one["duration_s"]),
        render_size(one["peak_rss_bytes"]),
        "-" if one["last_step"] is None else str(one["last_step"]),
        "-" if one["step_s"] is None else f"{one['step_s'] * 1000:.1f} ms",
        f"{(one['step_s'] or 0) / usual:.1f} x the median" if slow and usual else "",
    )


def _fact(key: str, value: Any) -> Any:  # noqa: ANN401 - JSON
    if value is None or value == []:
        return None
    if key == "duration_s":
        return render_duration(value)
    if key in {"steps_per_s", "tokens_per_s"}:
        return render_number(value)
    if key == "commit":
        return str(value)[:12]
    return ", ".join(map(str, value)) if isinstance(value, list) else value


def _block(title: str, lines: list[str], terminal: Terminal, *, same: str = "  the same") -> list[str]:
    return ["", terminal.heading(title), *(lines or [same])]


def _metrics(metrics: Sequence[MetricComparison], names: Sequence[str], terminal: Terminal) -> list[str]:
    rows: list[tuple[str, ...]] = []
    for one in metrics:
        for part in ("last", "min", "max"):
            values = [render_metric(value[part]) if value else "-" for value in one["values"]]
            rows.append((one["name"] if part == "last" else "", part, *values))
    columns = [
        Column(title="metric", shrink_to=12),
        Column(title=""),
        *(Column(title=name, verbatim=True, right=True) for name in names),
    ]
    lines = render_table(columns, rows, terminal, indent=2) if rows else []
    return _block("metrics", lines, terminal, same="  none was logged")


def _render_code(one: CodeComparison) -> list[str]:
    if one["same"]:
        return [f"  {one['run']}: the same as {one['base']}"]
    lines = [f"  {one['run']}: {_headline(one)}"]
    lines += [f"    {_describe_change(change)}" for change in one["changes"][:_MOST_FILES]]
    more = len(one["changes"]) - _MOST_FILES
    if more > 0:
        lines.append(f"    and {render_count(more, 'more file')}")
    if one["changes"]:
        lines.append(f"    gangline compare {one['base']} {one['run']} --code shows the lines")
    return lines


def _headline(one: CodeComparison) -> str:
    if one["fault"]:
        return visible(one["fault"])
    return "the same" if one["same"] else f"{render_count(len(one['changes']), 'file')} differ from {one['base']}"


def _describe_change(change: CodeChangeView) -> str:
    counted = change["lines_added"] is not None
    lines = f" +{change['lines_added']} -{change['lines_removed']}" if counted else ""
    note = f" ({visible(change['note'])})" if change["note"] else ""
    return f"{change['change']} {visible(change['path'])}{lines}{note}"
