"""One database for each test; written so that PostgreSQL can join as another parameter."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gangline.store.rows import NewRun
from gangline.store.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(tmp_path / "gangline.db")
    yield opened
    opened.close()


@pytest.fixture
def new_run():
    def make(run_id: str = "r-1", **changes) -> NewRun:
        values = {
            "id": run_id, "key": f"key of {run_id}", "name": "name", "project": "p", "user": "u", "pool": "local",
            "priority": 0, "nodes": 1, "procs_per_node": 1, "gpus_per_node": 0, "labels": {"a": "b"}, "spec": {"x": 1},
            "client": {"user": "u"}, "snapshot": None, "created": 1.0, **changes,
        }  # fmt: skip
        return NewRun(**values)

    return make
