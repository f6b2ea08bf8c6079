"""The training API in the company of torch: tensors, DataLoader workers, torchrun."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gangline.rundir.checkpoints import find_checkpoints, newest_complete

pytestmark = [pytest.mark.integration, pytest.mark.torch]

LOOP = """
import multiprocessing, os, sys, time
import numpy, torch
from torch.utils.data import DataLoader
import gangline

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        gangline.log({"worker": index})
        return torch.full((2,), float(index))

def rest(_):
    time.sleep(600)

if __name__ == "__main__":
    assert not gangline.should_stop()
    for step, batch in enumerate(DataLoader(Data(), batch_size=2, num_workers=2)):
        loss = batch.sum().requires_grad_()
        others = {"half": loss.detach().half(), "numpy": numpy.float32(0.5), "ok": numpy.bool_(True)}
        gangline.log({"loss": loss, **others}, step=step)
        gangline.log({"matrix": torch.zeros(2, 2)}, step=torch.tensor(step))
    pool = multiprocessing.get_context("fork").Pool(2)
    pool.map_async(rest, range(2))
    pool.terminate()  # its workers must die of SIGTERM, which this process has taken over for itself
    pool.join()
    print("done")
"""

GANG = """
import torch, torch.distributed as dist
import gangline
dist.init_process_group("gloo")
context = gangline.current()
latest = gangline.latest_checkpoint()
start = 0 if latest is None else torch.load(latest.path / f"rank-{context.rank}.pt")["step"]
for step in range(start + 1, start + 4):
    dist.all_reduce(torch.ones(1))
    with gangline.checkpoint(step) as path:
        torch.save({"step": step, "rank": context.rank}, path / f"rank-{context.rank}.pt")
dist.barrier()
dist.destroy_process_group()
print(f"rank {context.rank} of {context.world_size} ended at {step}")  # one text: two processes share this pipe
"""


def test_tensors_and_the_children_of_training(tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(LOOP)
    env = {**os.environ, "GANGLINE_RUN_ID": "r", "GANGLINE_RUN_DIR": str(tmp_path / "run"), "GANGLINE_ATTEMPT": "0"}
    command = [sys.executable, str(tmp_path / "loop.py")]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    lines = (tmp_path / "run" / "metrics" / "rank-00000.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    losses = [record for record in records if record["k"] == "m" and "loss" in record["v"]]
    assert [(record["s"], record["v"]["loss"]) for record in losses] == [(0, 2.0), (1, 10.0), (2, 18.0), (3, 26.0)]
    assert losses[0]["v"] == {"loss": 2.0, "half": 2.0, "numpy": 0.5, "ok": 1}
    assert sorted(record["v"]["worker"] for record in records if "worker" in record.get("v", {})) == list(range(8))
    assert [record["text"] for record in records if record["k"] == "w"] == [
        "gangline.log left out `matrix`: Tensor is not a number (one with `.item()` would do)"
    ]


def test_under_torchrun_all_ranks_save_into_the_same_checkpoints_and_resume(tmp_path: Path) -> None:
    (tmp_path / "gang.py").write_text(GANG)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    for start in range(2):
        done = subprocess.run(
            [*torchrun, str(tmp_path / "gang.py")],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert f"rank 1 of 2 ended at {3 * start + 3}" in done.stdout
    found = find_checkpoints(tmp_path / "checkpoints")
    assert [(one.step, one.attempt, one.complete, one.num_files) for one in found] == [
        (3, 0, True, 2),  # the one that the second start came from
        (4, 1, True, 2),
        (5, 1, True, 2),
        (6, 1, True, 2),
    ]
    assert newest_complete(tmp_path / "checkpoints", checksums=True)[1] == []
