"""The HTTP API is a promise: what it looks like is written down, and changes only on purpose.

After a change that is meant: `python tests/api/test_openapi.py` writes openapi.json anew; read its diff.
"""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

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
        commands=FakeCommands(),
        pools=None,
        objects=ObjectStore(nowhere),
        home=Home(nowhere),
        started=0.0,
        stopping=Stopping(),
        owner="alice",
    )
    return make_api(parts).openapi()


def promise_of(value: Any) -> Any:
    """The part that callers rely on: without titles and operation ids, which another FastAPI words differently."""
    if isinstance(value, dict):
        return {name: promise_of(item) for name, item in value.items() if name not in {"title", "operationId"}}
    return [promise_of(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("part", ["paths", "components"])
def test_the_api_is_as_it_was_promised(part: str):
    frozen = json.loads(FROZEN.read_text(encoding="utf-8"))
    assert promise_of(json.loads(json.dumps(render_openapi()[part]))) == promise_of(frozen[part])


def test_the_version_is_that_of_the_package():
    assert render_openapi()["info"]["version"] == VERSION == metadata.version("gangline")


def test_every_error_has_one_shape():
    for path in render_openapi()["paths"].values():
        for call in path.values():
            failed = call["responses"]["default"]["content"]["application/json"]["schema"]
            assert failed == {"$ref": "#/components/schemas/ErrorBody"}


def test_every_view_is_in_it():
    shapes = render_openapi()["components"]["schemas"]
    assert {"RunSummary", "RunDetail", "HealthView", "PoolView", "LogChunk", "MetricView", "EventView"} <= set(shapes)


if __name__ == "__main__":
    FROZEN.write_text(json.dumps(render_openapi(), indent=1, sort_keys=True) + "\n", encoding="utf-8")
