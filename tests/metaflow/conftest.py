"""Real flows on the shared server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.metaflow.flowruns import Flows

from gangline.client import connect
from gangline.rundir.home import Home


@pytest.fixture
def flows(tmp_path: Path, shared_server: Path) -> Iterator[Flows]:
    with connect(Home(shared_server)) as client:
        made = Flows(tmp_path, shared_server, client)
        yield made
        made.close()
