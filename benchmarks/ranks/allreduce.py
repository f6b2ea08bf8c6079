"""Join the others, add up once, and note when that was done: `allreduce.py OUT`."""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
value = torch.ones(1)
dist.all_reduce(value)
done = time.time()
assert value.item() == dist.get_world_size()
Path(sys.argv[1], f"rank-{os.environ['RANK']}.part").write_text(str(done))
Path(sys.argv[1], f"rank-{os.environ['RANK']}.part").rename(Path(sys.argv[1], f"rank-{os.environ['RANK']}"))
dist.destroy_process_group()
