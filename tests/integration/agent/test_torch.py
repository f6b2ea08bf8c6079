"""Gangs that really train: gloo over the ports and addresses that the agent chose."""

from __future__ import annotations

import json
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


OPEN = """
    import json, os
    import importlib.metadata
    def table():
        found = {}
        for number in os.listdir("/proc/self/fd"):
            try:
                found[int(number)] = os.readlink("/proc/self/fd/" + number)
            except OSError:  # the one that reads the list
                pass
        return found
    before = table()
    import torch
    list(importlib.metadata.distributions())
    import gangline.training
    after = table()
    child = os.popen("ls /proc/self/fd").read().split()
    print(json.dumps([before, after, child, gangline.__file__]))
"""


@pytest.mark.parametrize("start", ["exec", "auto"])
def test_a_rank_has_no_file_of_ours_open_but_the_one_for_its_stacks(gang: Gang, start: str) -> None:
    """Whatever asks every entry of `sys.path` for its packages, as `import torch` does: zips among them stay open."""
    gang.script(OPEN)
    result = gang.run_to_end(start=start, procs_per_node=1)
    assert (result["outcome"], result["start_mode"]) == ("succeeded", "exec" if start == "exec" else "warm")
    before, after, child, _ = json.loads(gang.log())
    attempt = gang.attempt()
    own = {"0": "/dev/null", "1": str(attempt.log(0)), "2": str(attempt.log(0)), "250": str(attempt.stacks(0))}
    assert (before, after) == (own, own)
    assert len(child) == 4, "0, 1, 2, and the list itself"
