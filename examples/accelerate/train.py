"""Train a small network with Hugging Face Accelerate; `gangline submit` takes the place of `accelerate launch`.

gangline submit --strategy accelerate --nodes 2 --procs-per-node 2 --follow train.py
"""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import gangline
from accelerate import Accelerator

WIDTH, BATCH, SIZE = 32, 16, 4096


def make_data() -> TensorDataset:
    """Points and their labels: is the sum of the first half larger than that of the second?"""
    x = torch.randn(SIZE, WIDTH, generator=torch.Generator().manual_seed(0))
    return TensorDataset(x, (x[:, : WIDTH // 2].sum(1) > x[:, WIDTH // 2 :].sum(1)).float())


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--steps", type=int, default=60)
    options.add_argument("--save-every", type=int, default=10)
    args = options.parse_args()

    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(make_data(), BATCH, shuffle=True))

    step = 0
    if found := gangline.latest_checkpoint():
        accelerator.load_state(str(found.path))
        step = found.step
    accelerator.print(f"starting at step {step} on {accelerator.num_processes} processes", flush=True)

    loss, stop = torch.zeros(()), False
    while step < args.steps and not stop:
        for x, y in loader:
            loss = nn.functional.binary_cross_entropy_with_logits(model(x).squeeze(1), y)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            step += 1
            gangline.log({"loss": loss.item()}, step=step)
            gangline.progress(step, args.steps)
            stop = gangline.should_stop()
            if step % args.save_every == 0 or stop:
                with gangline.checkpoint(step) as path:
                    accelerator.save_state(str(path))
            if step == args.steps or stop:
                break
    accelerator.print(f"done: loss {loss.item():.3f}", flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()
