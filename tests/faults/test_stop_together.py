"""A notice and SIGTERM come at a random moment of a step; all ranks stop at the same step and save together."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gangline.rundir.checkpoints import newest_complete

WORLD_SIZE = 4
GANGS = 20

SCRIPT = """
import json, multiprocessing, os, random, signal, sys, time
import gangline
from gangline.rundir.files import write_json
from gangline.rundir.layout import RunDir

folder, world_size, seed, synchronised = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "True"
fork = multiprocessing.get_context("fork")

def rank_main(rank, barrier, ready, results):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world_size), GANGLINE_RUN_ID="gang", GANGLINE_ATTEMPT="0",
                      GANGLINE_RUN_DIR=folder, GANGLINE_CHECKPOINT_DIR=folder + "/ckpt")
    chance = random.Random(seed * 100 + rank)
    step = 0
    while not gangline.should_stop():
        if step == 2:
            ready.release()
        step += 1
        time.sleep(chance.uniform(0, 0.004))  # the forward pass takes as long as it takes
        if synchronised:
            barrier.wait()  # stands for the all-reduce
        time.sleep(chance.uniform(0, 0.002))
    with gangline.checkpoint(step) as path:
        (path / f"rank-{rank}").write_text(str(step))
    results.put(step)

barrier, ready, results = fork.Barrier(world_size), fork.Semaphore(0), fork.Queue()
ranks = [fork.Process(target=rank_main, args=(rank, barrier, ready, results)) for rank in range(world_size)]
for rank in ranks:
    rank.start()
for _ in ranks:
    ready.acquire()
time.sleep(random.Random(seed).uniform(0, 0.02))
write_json(RunDir(__import__("pathlib").Path(folder)).attempt(0).notice, {"kind": "stop", "time": 0, "deadline": 0})
for rank in random.Random(seed).sample(ranks, world_size):
    os.kill(rank.pid, signal.SIGTERM)
steps = [results.get(timeout=30) for _ in ranks]
for rank in ranks:
    rank.join()
print(json.dumps([steps, [rank.exitcode for rank in ranks]]))
"""

pytestmark = pytest.mark.faults


def output_of(command: list[str]) -> str:
    """Run a gang; whatever happens, none of its processes stays (ranks that disagree wait for one another for ever)."""
    gang = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        out, err = gang.communicate(timeout=60)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(gang.pid, signal.SIGKILL)
        gang.communicate()
    assert gang.returncode == 0, err
    return out


@pytest.mark.timeout(600)
@pytest.mark.parametrize("synchronised", [True, False], ids=["synchronised", "each-at-its-own-pace"])
def test_all_ranks_stop_at_the_same_step(tmp_path: Path, synchronised: bool) -> None:  # noqa: FBT001
    first = random.SystemRandom().randrange(2**31)
    print(f"seeds from {first}")
    for number in range(GANGS):
        folder = tmp_path / str(number)
        folder.mkdir()
        command = [sys.executable, "-c", SCRIPT, str(folder), str(WORLD_SIZE), str(first + number), str(synchronised)]
        steps, codes = json.loads(output_of(command))
        assert len(set(steps)) == 1, f"seed {first + number}: {steps}"
        assert codes == [0] * WORLD_SIZE
        found, _ = newest_complete(folder / "ckpt")
        assert found is not None
        assert (found.step, found.num_files) == (steps[0], WORLD_SIZE)
