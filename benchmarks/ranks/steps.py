"""All-reduce until OUT/stop exists; note each attempt's first step and pid: `steps.py OUT`."""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

out, rank = Path(sys.argv[1]), os.environ["RANK"]
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
dist.init_process_group("gloo")
step = 0
while True:
    flag = torch.tensor([float((out / "stop").exists())])
    dist.all_reduce(flag)
    step += 1
    if step == 1:
        part = out / f"part-{attempt}-{rank}"
        part.write_text(f"{os.getpid()} {time.time()}")
        part.rename(out / f"first-{attempt}-{rank}")
    if flag.item():
        break
    time.sleep(0.005)
dist.destroy_process_group()
