"""Train a small network whose parameters are sharded over all ranks (FSDP2), on CPUs or GPUs.

    gangline submit --strategy fsdp --nodes 2 --procs-per-node 2 --follow train.py

A checkpoint is one folder with a shard of each rank; another number of ranks can load it, too.
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import gangline

WIDTH, BATCH = 32, 16


def make_batch(step: int) -> tuple[Tensor, Tensor]:
    """Points and their labels: is the sum of the first half larger than that of the second?"""
    rank = gangline.current().rank
    x = torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(1000 * step + rank))
    return x, (x[:, : WIDTH // 2].sum(1) > x[:, WIDTH // 2 :].sum(1)).float()


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--steps", type=int, default=60)
    options.add_argument("--save-every", type=int, default=10)
    args = options.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, 1)).to(device)
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    start = 0
    if found := gangline.latest_checkpoint():
        states = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
        dcp.load(states, checkpoint_id=found.path)
        set_state_dict(model, optimizer, model_state_dict=states["model"], optim_state_dict=states["optimizer"])
        start = found.step
    print(f"starting at step {start}", flush=True)

    for step in range(start, args.steps):
        x, y = (part.to(device) for part in make_batch(step))
        loss = nn.functional.binary_cross_entropy_with_logits(model(x).squeeze(1), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        gangline.log({"loss": loss.item()}, step=step)
        gangline.progress(step + 1, args.steps)
        stop = gangline.should_stop()
        if (step + 1) % args.save_every == 0 or stop:
            states = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
            with gangline.checkpoint(step + 1) as path:
                dcp.save(states, checkpoint_id=path)
        if stop:
            break
    print(f"done: loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
