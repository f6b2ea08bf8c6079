"""Each test starts as a process that has not used `import gangline` yet."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gangline.training import session


@pytest.fixture(autouse=True)
def _fresh_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NNODES", "NODE_RANK", "GROUP_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    handler = signal.getsignal(signal.SIGTERM)
    session.forget()
    yield
    session.forget()
    signal.signal(signal.SIGTERM, handler)


@pytest.fixture
def as_rank(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Path]:
    """Make this process a rank of a run; returns the run directory."""

    def become(rank: int = 0, world_size: int = 1, **more: str) -> Path:
        run_dir = tmp_path / "run"
        run_dir.mkdir(exist_ok=True)
        values = {
            "RANK": str(rank),
            "WORLD_SIZE": str(world_size),
            "GANGLINE_RUN_ID": "llama-7k3q",
            "GANGLINE_ATTEMPT": "2",
            "GANGLINE_RUN_DIR": str(run_dir),
            "GANGLINE_CHECKPOINT_DIR": str(run_dir / "checkpoints"),
            "GANGLINE_RESUME": "",
            **more,
        }
        for name, value in values.items():
            monkeypatch.setitem(os.environ, name, value)
        session.forget()
        return run_dir

    return become
