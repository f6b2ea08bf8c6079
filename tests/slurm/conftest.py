"""The cluster that all tests with the marker `slurm` share, whichever worker they run in."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.conftest import assert_nothing_left, stop_server
from tests.slurm.cluster import Cluster
from tests.slurm.laptop import Laptop


@pytest.fixture(scope="session")
def slurm_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that all workers have in common."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session")
def slurm_cluster(slurm_root: Path) -> Iterator[Cluster]:
    """A running cluster of 4 nodes with 8 devices each; it ends with its last user."""
    with locked(slurm_root / "slurm-start.lock"):
        running = _join_newest(slurm_root) or Cluster.start(_next_folder(slurm_root))
    yield running
    running.leave()


@pytest.fixture
def cluster(slurm_root: Path, slurm_cluster: Cluster) -> Iterator[Cluster]:
    """The cluster, for this test alone, with all nodes idle and every daemon alive; what is broken is mended."""
    with locked(slurm_root / "slurm-test.lock"):
        yield slurm_cluster
        slurm_cluster.heal()


@pytest.fixture(scope="session")
def slurm_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A state folder whose server serves the cluster, for all tests of this worker; nothing of it may be left."""
    folder = tmp_path_factory.mktemp("slurm-home")
    yield folder
    stop_server(folder)
    assert_nothing_left(folder)


@pytest.fixture
def laptop(cluster: Cluster, slurm_home: Path, tmp_path: Path) -> Laptop:
    """A machine with the command line, whose pool `lab` is the cluster."""
    return Laptop(tmp_path, slurm_home, cluster)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _clusters(root: Path) -> list[Path]:
    return sorted(root.glob("slurm-[0-9]*"), key=lambda folder: int(folder.name.removeprefix("slurm-")))


def _next_folder(root: Path) -> Path:
    return root / f"slurm-{len(_clusters(root))}"


def _join_newest(root: Path) -> Cluster | None:
    folders = _clusters(root)
    return Cluster.join(folders[-1]) if folders else None
