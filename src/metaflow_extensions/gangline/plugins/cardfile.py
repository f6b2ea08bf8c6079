"""What Metaflow does not promise to keep of its cards, in one place: components, the page around them, where it goes.

Imports Metaflow alone.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from copy import copy
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

from metaflow.cards import Table, VegaChart
from metaflow.plugins.cards.card_datastore import CardDatastore
from metaflow.plugins.cards.card_modules.basic import BlankCard, LogComponent, SectionComponent

from .task import CARD, GangTask

__all__ = ["CardFile", "chart", "log_box", "section", "table"]

_VEGA = "https://vega.github.io/schema/vega-lite/v5.json"


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> Any:
    """Rows of plain text."""
    return Table([list(row) for row in rows], headers=list(headers) if any(headers) else None)


def chart(title: str, points: Sequence[Mapping[str, Any]], *, x: str, by: str | None = None) -> Any:
    """A line over points with `x` and `y`; one for each value of `by`."""
    encoding: dict[str, Any] = {
        "x": {"field": "x", "type": "quantitative", "title": x},
        "y": {"field": "y", "type": "quantitative", "title": None, "scale": {"zero": False}},
    }
    if by is not None:
        encoding["color"] = {"field": by, "type": "nominal", "title": None}
    mark = {"type": "line", "point": len(points) == 1}
    data = {"values": list(points)}
    return VegaChart({"$schema": _VEGA, "title": title, "data": data, "mark": mark, "encoding": encoding})


def log_box(title: str, text: str) -> Any:
    """Text as it was printed."""
    return SectionComponent(title=title, contents=[LogComponent(data=text or "nothing yet")])


def section(title: str, *parts: Any, columns: int = 1) -> Any:
    """Parts under a title, in columns."""
    return SectionComponent(title=title, contents=list(parts), columns=columns)


class CardFile:
    """The card of one attempt of a task, which is written as a whole each time."""

    def __init__(self, flow_datastore: Any, task: GangTask) -> None:
        storage = copy(flow_datastore._storage_impl)  # noqa: SLF001 - cards have a root of their own
        storage.datastore_root = CardDatastore.get_storage_root(storage.TYPE)
        where = SimpleNamespace(_storage_impl=storage, flow_name=task.flow)
        self._store = CardDatastore(where, pathspec=task.pathspec)
        self._task = task
        self._uuid = str(uuid4()).replace("-", "")
        self._drawn = 0

    def save(self, title: str, parts: Sequence[Any], *, is_final: bool) -> None:
        """Write the card; a page that shows it loads it anew."""
        token = "final" if is_final else f"render-seq-{self._drawn}"
        page = BlankCard(options={"title": title}, components=[part.render() for part in parts])
        html = page.render(SimpleNamespace(pathspec=self._task.pathspec), runtime=not is_final)
        self._store.save_card(self._uuid, CARD, html.replace(BlankCard.RELOAD_POLICY_TOKEN, token))
        self._store.save_data(self._uuid, CARD, {"reload_token": token, "data": {}, "created_on": time.time()})
        self._drawn += 1
