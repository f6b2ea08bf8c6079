"""Train a small network with DeepSpeed (ZeRO, stage 1); `gangline submit` takes the place of `deepspeed`.

gangline submit --strategy deepspeed --nodes 2 --procs-per-node 2 --follow train.py
"""

from __future__ import annotations

import argparse
import os

import torch
from torch import Tensor, nn

import gangline

if not torch.cuda.is_available():
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
import deepspeed

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

    deepspeed.init_distributed("nccl" if torch.cuda.is_available() else "gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, 1))
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-2),
        config={
            "train_micro_batch_size_per_gpu": BATCH,
            "zero_optimization": {"stage": 1},
            "zero_allow_untested_optimizer": True,
        },
    )

    start = 0
    if found := gangline.latest_checkpoint():
        engine.load_checkpoint(str(found.path), tag="state")
        start = found.step
    print(f"starting at step {start}", flush=True)

    for step in range(start, args.steps):
        x, y = (part.to(engine.device) for part in make_batch(step))
        loss = nn.functional.binary_cross_entropy_with_logits(engine(x).squeeze(1), y)
        engine.backward(loss)
        engine.step()
        gangline.log({"loss": loss.item()}, step=step)
        gangline.progress(step + 1, args.steps)
        stop = gangline.should_stop()
        if (step + 1) % args.save_every == 0 or stop:
            with gangline.checkpoint(step + 1) as path:
                engine.save_checkpoint(str(path), tag="state")
        if stop:
            break
    print(f"done: loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
