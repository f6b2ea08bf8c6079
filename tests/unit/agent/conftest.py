"""Launches for tests that need one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gangline.agent.launchspec import LaunchSpec
from gangline.domain.spec import CheckpointPolicy, EntryKind


@pytest.fixture
def make_launch() -> Callable[..., LaunchSpec]:
    base = LaunchSpec(
        run_id="llama-7k3q",
        run_name="llama",
        launch=1,
        first_attempt=3,
        nodes=2,
        procs_per_node=2,
        token="secret",
        entry_kind=EntryKind.SCRIPT,
        entry="train.py",
        python="python",
        checkpoint=CheckpointPolicy(path="/ckpt"),
    )

    def make(**changes: Any) -> LaunchSpec:
        return replace(base, **changes)

    return make
