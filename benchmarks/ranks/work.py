"""Steps of 20 ms of work that report a step, log and print, until OUT/stop exists: `work.py OUT`."""

import hashlib
import os
import sys
import time
from pathlib import Path

import gangline

STEP_S = 0.020


def work(rounds: int) -> float:
    began = time.perf_counter()
    hashlib.pbkdf2_hmac("sha256", b"step", b"work", rounds)
    return time.perf_counter() - began


out, rank = Path(sys.argv[1]), os.environ["RANK"]
rounds = int(20_000 * STEP_S / min(work(20_000) for _ in range(10)))
step = 0
with (out / f"steps-{rank}").open("w", buffering=1 << 16) as steps:
    (out / f"up-{rank}").touch()
    while not (out / "stop").exists():
        began, wall = time.perf_counter(), time.time()
        work(rounds)
        step += 1
        gangline.log({"loss": 1.0 / step}, step=step)
        gangline.progress(step)
        print("step", step, flush=True)
        steps.write(f"{wall} {time.perf_counter() - began}\n")
