"""Real flows on the shared server, and compiled ones in containers of a kind."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.metaflow.flowruns import FLOWS, Flows

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

    made = Cloud(tmp_path_factory.mktemp("cloud"))
    yield made
    made.close()


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    from tests.metaflow.containers import Image  # noqa: PLC0415 - as above

    return Image(tmp_path_factory.mktemp("image"))


@pytest.fixture
def machines(tmp_path: Path, cloud: Cloud, image: Image) -> Iterator[Machines]:
    from tests.metaflow.containers import Machines  # noqa: PLC0415 - as above

    made = Machines(tmp_path / "machines", image, cloud.env)
    yield made
    made.close()


@pytest.fixture
def deployer(tmp_path: Path, cloud: Cloud) -> dict[str, str]:
    """The environment of whoever deploys."""
    home = tmp_path / "home"
    home.mkdir()
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(("METAFLOW_", "AWS_"))},
        **cloud.env,
        "HOME": str(home),
        "GANGLINE_HOME": str(home / "gangline"),
        "METAFLOW_USER": "alice",
        "METAFLOW_DEFAULT_METADATA": "local",
    }


@pytest.fixture
def deploy(tmp_path: Path, deployer: dict[str, str]) -> Callable[..., str]:
    """Deploys a flow of these tests, and gives what that prints."""
    from tests.metaflow.containers import compile_flow  # noqa: PLC0415 - as above

    def run(name: str, *command: str, put: tuple[str, str] = ("", ""), code: int = 0) -> str:
        project = tmp_path / "project"
        project.mkdir(exist_ok=True)
        text = (FLOWS / f"{name}.py").read_text()
        (project / f"{name}.py").write_text(text.replace(*put) if put[0] else text)
        ended, output, said = compile_flow(project / f"{name}.py", deployer, *command)
        assert ended == code, said
        return said if code else output

    return run
