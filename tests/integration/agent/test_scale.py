"""Many agents on one machine, and many restarts in a row."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Gang

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

ROUNDS = 100


def test_256_ranks_over_32_agents_join_although_some_come_late(gang: Gang) -> None:  # B1
    gang.write_launch(
        nodes=32, procs_per_node=8, entry_kind="command", entry="echo up; exec sleep 600", stop={"grace_s": 30.0}
    )
    late = {7, 21}
    for node in sorted(set(range(32)) - late):
        gang.start_agent(node)
    gang.until(gang.run.launch(0).leader.exists)
    time.sleep(1.0)
    for node in late:
        gang.start_agent(node)
    pids = gang.until_running()
    assert len(pids) == 256
    for rank in range(256):
        gang.until_said("up", rank=rank)
    gang.stop()
    assert set(gang.wait().values()) == {0}
    result = gang.result()
    assert result["outcome"] == "stopped"
    assert len(result["ranks"]) == 256
    assert {one["signal"] for one in result["ranks"]} == {15}


def test_a_hundred_kills_in_a_row_are_a_hundred_restarts(gang: Gang) -> None:
    gang.start(
        nodes=2,
        entry_kind="command",
        entry="echo up; exec sleep 600",
        restarts={"max_infrastructure_restarts": ROUNDS, "backoff_s": 0.0},
    )
    for attempt in range(ROUNDS):
        pids = gang.until_running(attempt)
        os.kill(pids[attempt % 4], signal.SIGKILL)
        gang.until(gang.attempt(attempt).result.exists)
        result = gang.result(attempt)
        assert (result["reason"], result["next"]) == ("killed", "restart")
        assert result["first_failure"]["rank"] == attempt % 4
    gang.until_running(ROUNDS)
    gang.stop(grace_s=0.0)
    gang.wait()
    assert gang.result()["outcome"] == "stopped"
    assert len(gang.run.attempts()) == ROUNDS + 1
