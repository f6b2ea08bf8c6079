"""Sessions over a real sshd on loopback."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.sshd import Bastion, open_bastion

from gangline.agent.bundle import render_bundle
from gangline.backends.slurm.session import Session
from gangline.domain.pool import SlurmPool

BUNDLE = render_bundle()


@pytest.fixture
def bastion(tmp_path: Path) -> Iterator[Bastion]:
    with open_bastion(tmp_path / "ssh") as found:
        yield found


@pytest.fixture
def connect(bastion: Bastion, tmp_path: Path) -> Iterator[Callable[..., Session]]:
    sessions: list[Session] = []

    def make(*options: str, host: str = "bastion", **settings: object) -> Session:
        pool = SlurmPool(
            name="a",
            work=str(tmp_path / "work"),
            ssh=host,
            ssh_options=("-F", str(bastion.folder / "ssh_config"), *options),
            python=sys.executable,
        )
        sessions.append(Session(pool, tmp_path / "home", bundle=BUNDLE, **settings))  # type: ignore[arg-type]
        return sessions[-1]

    yield make
    for session in sessions:
        session.close()
