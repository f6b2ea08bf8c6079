"""All-reduce with a time-out of LIMIT seconds; note each attempt's first step and pid: `stopped.py OUT LIMIT`."""

import os
import sys
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

out, limit_s, rank = Path(sys.argv[1]), float(sys.argv[2]), os.environ["RANK"]
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
report = None
with suppress(ImportError):
    if "GANGLINE_RUN_DIR" in os.environ:
        import gangline

        report = gangline.progress
dist.init_process_group("gloo", timeout=timedelta(seconds=limit_s))
step = 0
while True:
    flag = torch.tensor([float((out / "stop").exists())])
    dist.all_reduce(flag)
    step += 1
    if report is not None:
        report(step)
    if step == 1:
        part = out / f"part-{attempt}-{rank}"
        part.write_text(f"{os.getpid()} {time.time()}")
        part.rename(out / f"first-{attempt}-{rank}")
    if flag.item():
        break
    time.sleep(0.02)
dist.destroy_process_group()
