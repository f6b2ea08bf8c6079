"""The JSON of comparisons: runs with one another, and the workers of one run. See `wire/views.py` for the rules."""

from __future__ import annotations

from typing_extensions import TypedDict

from gangline.wire.views import DifferenceView, RunSummary

__all__ = [
    "CodeChangeView",
    "CodeComparison",
    "CompareView",
    "MetricComparison",
    "MetricSpan",
    "RankFacts",
    "RanksView",
]


class CodeChangeView(TypedDict):
    """One file that is not the same in two snapshots."""

    path: str
    change: str
    """`added`, `removed` or `changed`."""
    lines_added: int | None
    """null where lines cannot be counted: binary or large files, links, contents that are not stored any more."""
    lines_removed: int | None
    diff: str | None
    """Unified; null unless asked for, and where there is none."""
    note: str
    """Why there is no diff, or what else changed; "" where nothing is to be said."""


class CodeComparison(TypedDict):
    """The code of one run beside that of the first."""

    run: str
    base: str
    same: bool
    changes: list[CodeChangeView]
    fault: str
    """Why it could not be compared; "" where it was."""


class MetricSpan(TypedDict):
    """One metric of rank 0 of one run."""

    last: float | None
    min: float | None
    max: float | None
    count: int


class MetricComparison(TypedDict):
    """One metric of several runs, in their order; null for those that have not logged it."""

    name: str
    values: list[MetricSpan | None]


class CompareView(TypedDict):
    """`gangline compare RUN RUN …`; lists of values are in the order of `runs`."""

    runs: list[RunSummary]
    facts: list[DifferenceView]
    """How each run went; all of them, also where they are the same."""
    spec: list[DifferenceView]
    environment: list[DifferenceView]
    """Of node 0 of the newest attempt of each."""
    code: list[CodeComparison]
    """Each run but the first, beside the first."""
    metrics: list[MetricComparison]


class RankFacts(TypedDict):
    """What one rank of an attempt did."""

    rank: int
    node: int
    host: str
    exit_code: int | None
    signal: int | None
    ended_by: str | None
    duration_s: float | None
    peak_rss_bytes: int | None
    last_step: int | None
    step_s: float | None
    """Median time between the last steps that it logged; null where it has logged fewer than two."""


class RanksView(TypedDict):
    """`gangline compare RUN --ranks`: what differs between the workers of one attempt."""

    run: str
    attempt: int
    nodes: list[int]
    hosts: list[str]
    environment: list[DifferenceView]
    """Values in the order of `nodes`."""
    missing: list[int]
    """Nodes that have described no environment."""
    ranks: list[RankFacts]
