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
from tests.slurm.files import Shape
from tests.slurm.laptop import Laptop

ACCOUNTING = Shape(
    nodes=2,
    accounting="db",
    settings={"MinJobAge": "2", "JobAcctGatherParams": "OverMemoryKill", "JobAcctGatherFrequency": "task=1"},
)
"""Whose jobs are soon forgotten by all but accounting, and may not use more memory than they have asked for."""


@pytest.fixture(scope="session")
def slurm_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that all workers have in common."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session")
def slurm_cluster(slurm_root: Path) -> Iterator[Cluster]:
    """A running cluster of 4 nodes with 8 devices each; it ends with its last user."""
    yield from share(slurm_root, "slurm", Shape())


@pytest.fixture(scope="session")
def accounting_cluster(slurm_root: Path) -> Iterator[Cluster]:
    """One of 2 nodes that keeps accounts, in a database of its own."""
    yield from share(slurm_root, "accounting", ACCOUNTING)


@pytest.fixture
def cluster(slurm_root: Path, slurm_cluster: Cluster) -> Iterator[Cluster]:
    """The cluster, for this test alone, with all nodes idle and every daemon alive; what is broken is mended."""
    with locked(slurm_root / "slurm-test.lock"):
        yield slurm_cluster
        slurm_cluster.heal()


@pytest.fixture
def accounting(slurm_root: Path, accounting_cluster: Cluster) -> Iterator[Cluster]:
    """The same of the one that keeps accounts."""
    with locked(slurm_root / "accounting-test.lock"):
        yield accounting_cluster
        accounting_cluster.heal()


@pytest.fixture(scope="session")
def slurm_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A state folder whose server serves the cluster, for all tests of this worker; nothing of it may be left."""
    folder = tmp_path_factory.mktemp("slurm-home")
    yield folder
    stop_server(folder)
    assert_nothing_left(folder)


@pytest.fixture(scope="session")
def accounting_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The same, for the cluster that keeps accounts."""
    folder = tmp_path_factory.mktemp("accounting-home")
    yield folder
    stop_server(folder)
    assert_nothing_left(folder)


@pytest.fixture
def accounting_laptop(accounting: Cluster, accounting_home: Path, tmp_path: Path) -> Laptop:
    """The same, whose pool `lab` is the cluster that keeps accounts."""
    return Laptop(tmp_path, accounting_home, accounting)


@pytest.fixture
def laptop(cluster: Cluster, slurm_home: Path, tmp_path: Path) -> Laptop:
    """A machine with the command line, whose pool `lab` is the cluster."""
    return Laptop(tmp_path, slurm_home, cluster)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def share(root: Path, name: str, shape: Shape) -> Iterator[Cluster]:
    """The cluster of this name that others use already, or a new one."""
    with locked(root / f"{name}-start.lock"):
        folders = sorted(root.glob(f"{name}-[0-9]*"), key=lambda folder: int(folder.name.rpartition("-")[2]))
        running = Cluster.join(folders[-1]) if folders else None
        running = running or Cluster.start(root / f"{name}-{len(folders)}", shape)
    yield running
    running.leave()
