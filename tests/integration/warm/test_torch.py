# ruff: noqa: E501 - a script of a rank is one line of a table
"""Ranks that were forked with torch in them train as fresh processes do, alone and as a gang."""

from __future__ import annotations

import json
import socket

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.torch]

ALONE = """
import json, os, sys, threading, warnings
import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset


class Squares(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, i):
        return torch.tensor(i * i)


def train():
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    losses = []
    for _ in range(3):
        loss = model(torch.ones(2, 4)).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    dist.destroy_process_group()
    return losses


if __name__ == "__main__":
    big = torch.arange(160_000, dtype=torch.float64).reshape(400, 400)
    print(json.dumps({
        "threads": [torch.get_num_threads(), torch.get_num_interop_threads(), torch.__config__.parallel_info()],
        "matmul": [(big @ big).sum().item(), float((big.numpy() @ big.numpy()).sum())],
        "workers": [[batch.tolist() for batch in DataLoader(Squares(), batch_size=2, num_workers=1, multiprocessing_context=method)]
                    for method in ("fork", "spawn", "forkserver")],
        "train": train(),
        "seeded": torch.rand(2).tolist(),
        "defaults": [str(torch.get_default_dtype()), torch.is_grad_enabled(), torch.cuda.is_initialized(), torch.cuda.is_available()],
        "filters": sorted(str(one) for one in warnings.filters),
        "environment": sorted(os.environ.items()),
        "main thread": threading.main_thread().native_id == os.getpid(),
        "numpy": np.random.RandomState(3).rand(2).tolist(),
    }))
"""


@pytest.mark.parametrize("threads", ["1", "2"])
def test_training_alone_is_the_same(bench, threads):
    bench.write({"train.py": ALONE})
    env = {"OMP_NUM_THREADS": threads}
    warm = bench.run("warm", bench.rank("train.py", env=env)).json
    plain = bench.run("plain", bench.rank("train.py", env=env)).json
    assert warm == plain


GANG = """
import json, os, random
import numpy as np
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
x = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(x)
print(json.dumps([x.item(), dist.get_rank(), random.random(), np.random.rand(), torch.initial_seed()]))
dist.destroy_process_group()
"""


def test_a_gang_of_forks_reduces_and_each_draws_its_own_numbers(bench):
    bench.write({"train.py": GANG})
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "3"}
    ranks = [bench.rank("train.py", env=meet, number=number) for number in range(3)]
    starter = bench.open(ranks[0], start="auto")
    pids = {starter.start(rank): rank for rank in ranks}
    ended = bench.finish(starter, pids)
    assert (starter.mode, starter.fallback_reason) == ("warm", None)
    said = [ended[pid].json for pid in pids]
    assert [one[:2] for one in said] == [[6.0, 0], [6.0, 1], [6.0, 2]]
    assert len({one[2] for one in said}) == len({one[3] for one in said}) == 3
    plain = [bench.run("plain", bench.rank("train.py", env={**meet, "WORLD_SIZE": "1"})).json[4] for _ in range(2)]
    assert (len({one[4] for one in said}) == 1) == (len(set(plain)) == 1)


def test_what_a_listed_module_seeds_stays_seeded(bench):
    module = "import random, torch\nimport numpy as np\nrandom.seed(1)\nnp.random.seed(2)\ntorch.manual_seed(3)\n"
    script = "import seeds, json, random, torch\nimport numpy as np\nprint(json.dumps([random.random(), np.random.rand(), torch.rand(1).item()]))"
    bench.write({"train.py": script, "seeds.py": module})
    warm = bench.run("warm", bench.rank("train.py"), preload=["seeds"]).json
    assert warm == bench.run("plain", bench.rank("train.py")).json


@pytest.mark.compiler
def test_compiled_code_runs(bench):
    script = (
        "import torch, json\n@torch.compile\ndef f(x): return (x.sin() + x.cos()).sum()\n"
        "print(json.dumps([f(torch.ones(n)).item() for n in (8, 9)]))"
    )
    bench.write({"train.py": script})
    env = {"TORCHINDUCTOR_CACHE_DIR": str(bench.logs / "cache")}
    warm = bench.run("warm", bench.rank("train.py", env=env))
    assert json.loads(warm.text.splitlines()[-1]) == pytest.approx([11.05419, 12.43596], rel=1e-5)
