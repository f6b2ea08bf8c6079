"""The page. Everything that comes from a run is escaped by the template engine; the page loads nothing."""

from __future__ import annotations

import json
import pkgutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gangline.domain.version import VERSION
from gangline.report.charts import Chart
from gangline.wire.views import RunDetail

__all__ = ["Excerpt", "Page", "render_page"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Excerpt:
    """A text of one rank, or of several: a log, or stacks."""

    title: str
    text: str
    note: str = ""
    """What was left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """All that the page shows, without secrets."""

    run: RunDetail
    charts: Sequence[Chart]
    logs: Sequence[Excerpt]
    stacks: Sequence[Excerpt]
    environments: Mapping[str, Any]
    removed: int
    created: float


def render_page(page: Page) -> str:
    """HTML in one file."""
    from jinja2 import Environment, StrictUndefined  # noqa: PLC0415 - the start of the server need not wait for it

    source = pkgutil.get_data("gangline.report", "report.html")
    assert source is not None  # noqa: S101 - it is part of the package
    env = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    env.filters["clock"] = _clock
    env.filters["pretty"] = lambda value: json.dumps(value, indent=2, ensure_ascii=False)
    return env.from_string(source.decode("utf-8")).render(page=page, run=page.run, version=VERSION)


def _clock(moment: float | None) -> str:
    if moment is None:
        return "-"
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(moment))
