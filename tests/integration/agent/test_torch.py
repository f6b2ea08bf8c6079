"""Gangs that really train: gloo over the ports and addresses that the agent chose."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Gang

pytestmark = [pytest.mark.integration, pytest.mark.torch]

ALL_REDUCE = """
    import os, time
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    total = torch.ones(1)
    dist.all_reduce(total)
    print("sum", int(total), "attempt", os.environ["GANGLINE_ATTEMPT"], flush=True)
    while os.environ["GANGLINE_ATTEMPT"] == "0":
        dist.all_reduce(total)
        time.sleep(0.05)
    dist.destroy_process_group()
"""


@pytest.mark.parametrize("start", ["exec", "auto"])
def test_a_killed_rank_ends_the_collective_and_the_gang_starts_anew(gang: Gang, start: str) -> None:
    gang.script(ALL_REDUCE)
    gang.start(nodes=2, start=start, restarts={"max_infrastructure_restarts": 1})
    pids = gang.until_running()
    for rank in range(4):
        gang.until_said("sum 4 attempt 0", rank=rank)
    os.kill(pids[3], signal.SIGKILL)
    gang.wait()
    first, second = gang.result(0), gang.result(1)
    assert (first["reason"], first["first_failure"]["rank"], first["next"]) == ("killed", 3, "restart")
    assert second["outcome"] == "succeeded"
    assert second["start_mode"] == ("exec" if start == "exec" else "warm")
    assert {gang.log(rank, 1) for rank in range(4)} == {"sum 4 attempt 1\n"}
    assert first["first_failure"]["time"] <= first["ended"]
