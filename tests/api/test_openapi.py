"""The HTTP API is a promise: what it looks like is written down, and changes only on purpose.

After a change that is meant: `python tests/api/test_openapi.py` writes openapi.json anew; read its diff.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gangline.domain.version import VERSION
from gangline.rundir.home import Home
from gangline.server.app import make_api
from gangline.server.parts import Parts, Stopping
from gangline.snapshot.objects import ObjectStore
from gangline.testing.commands import FakeCommands

FROZEN = Path(__file__).with_name("openapi.json")


def render_openapi() -> dict[str, Any]:
    nowhere = Path("/nowhere")
    parts = Parts(
        commands=FakeCommands(), objects=ObjectStore(nowhere), home=Home(nowhere), started=0.0, stopping=Stopping()
    )
    return make_api(parts).openapi()


def test_the_api_is_as_it_was_promised():
    frozen = json.loads(FROZEN.read_text(encoding="utf-8"))
    current = json.loads(json.dumps(render_openapi()))
    assert current["info"].pop("version") == VERSION
    frozen["info"].pop("version")
    assert current["paths"] == frozen["paths"]
    assert current["components"]["schemas"].keys() == frozen["components"]["schemas"].keys()
    for name, shape in current["components"]["schemas"].items():
        assert shape == frozen["components"]["schemas"][name], name


def test_every_view_is_in_it():
    shapes = render_openapi()["components"]["schemas"]
    assert {"RunSummary", "RunDetail", "HealthView", "PoolView", "LogChunk", "MetricView", "EventView"} <= set(shapes)


if __name__ == "__main__":
    FROZEN.write_text(json.dumps(render_openapi(), indent=1, sort_keys=True) + "\n", encoding="utf-8")
