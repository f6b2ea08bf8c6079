"""Real flows on the shared server, and compiled ones in containers of a kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.metaflow.flowruns import Flows

from gangline.client import connect
from gangline.rundir.home import Home

if TYPE_CHECKING:
    from tests.metaflow.containers import Cloud, Image, Machines


@pytest.fixture
def flows(tmp_path: Path, shared_server: Path) -> Iterator[Flows]:
    with connect(Home(shared_server)) as client:
        made = Flows(tmp_path, shared_server, client)
        yield made
        made.close()


@pytest.fixture(scope="session")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    from tests.metaflow.containers import Cloud  # noqa: PLC0415 - needs moto, which few tests do

    made = Cloud.start(tmp_path_factory.mktemp("cloud"))
    yield made
    made.close()


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    from tests.metaflow.containers import Image  # noqa: PLC0415 - as above

    return Image(tmp_path_factory.mktemp("image"))


@pytest.fixture
def machines(tmp_path: Path, cloud: Cloud, image: Image) -> Iterator[Machines]:
    from tests.metaflow.containers import Machines  # noqa: PLC0415 - as above

    made = Machines(tmp_path / "machines", image.bin, cloud.env)
    yield made
    made.close()


@pytest.fixture
def deploy(tmp_path: Path, cloud: Cloud) -> Callable[..., str]:
    """Deploys a flow of these tests, and gives what that prints."""
    from tests.metaflow.containers import Deployer  # noqa: PLC0415 - as above

    return Deployer(tmp_path, cloud.env)
