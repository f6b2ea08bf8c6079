"""The cluster that all tests with the marker `slurm` share, whichever worker they run in."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.slurm.cluster import Cluster


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One after another, in one worker: they break what they share."""
    for item in items:
        if item.get_closest_marker("slurm") is not None:
            item.add_marker(pytest.mark.xdist_group("slurm"))


@pytest.fixture(scope="session")
def slurm_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A running cluster of 4 nodes with 8 devices each; it ends with its last user."""
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent
    with (root / "slurm.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        cluster = _join_newest(root) or Cluster.start(_next_folder(root))
    yield cluster
    cluster.leave()


@pytest.fixture
def cluster(slurm_cluster: Cluster) -> Iterator[Cluster]:
    """The cluster, with all nodes idle and every daemon alive; what a test breaks is mended after it."""
    yield slurm_cluster
    slurm_cluster.heal()


def _clusters(root: Path) -> list[Path]:
    return sorted(root.glob("slurm-*"), key=lambda folder: int(folder.name.removeprefix("slurm-")))


def _next_folder(root: Path) -> Path:
    return root / f"slurm-{len(_clusters(root))}"


def _join_newest(root: Path) -> Cluster | None:
    folders = _clusters(root)
    return Cluster.join(folders[-1]) if folders else None
