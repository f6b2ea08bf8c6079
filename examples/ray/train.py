"""Train a small network with Ray Train on a Ray cluster that is there for this run alone.

    gangline submit --strategy ray --nodes 2 --follow train.py

What the workers report, metrics and checkpoints, shows up in Gangline. A run that is started again goes on from the
newest of these checkpoints, because it keeps its name and its folder.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

import torch
from ray.train.torch import TorchTrainer, prepare_model
from torch import nn

import ray
import ray.train

WIDTH, BATCH = 32, 16


def train(config: dict[str, Any]) -> None:
    """The body of each worker."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, 1))
    start = 0
    if found := ray.train.get_checkpoint():
        with found.as_directory() as folder:
            state = torch.load(Path(folder, "state.pt"), weights_only=True)
        model.load_state_dict(state["model"])
        start = state["step"]
    rank = ray.train.get_context().get_world_rank()
    print(f"worker {rank} is starting at step {start}", flush=True)
    model = prepare_model(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(start, config["steps"]):
        x = torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(1000 * step + rank))
        y = (x[:, : WIDTH // 2].sum(1) > x[:, WIDTH // 2 :].sum(1)).float()
        loss = nn.functional.binary_cross_entropy_with_logits(model(x).squeeze(1), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        done = {"loss": loss.item(), "step": step + 1}
        if (step + 1) % config["save_every"]:
            ray.train.report(done)
            continue
        with tempfile.TemporaryDirectory() as folder:
            if rank == 0:
                state = {"model": getattr(model, "module", model).state_dict(), "step": step + 1}
                torch.save(state, Path(folder, "state.pt"))
            ray.train.report(done, checkpoint=ray.train.Checkpoint.from_directory(folder) if rank == 0 else None)


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--steps", type=int, default=60)
    options.add_argument("--save-every", type=int, default=10)
    args = options.parse_args()

    ray.init()
    nodes = len([node for node in ray.nodes() if node["Alive"]])
    trainer = TorchTrainer(
        train,
        train_loop_config={"steps": args.steps, "save_every": args.save_every},
        scaling_config=ray.train.ScalingConfig(num_workers=nodes, resources_per_worker={"CPU": 0.5}),
        run_config=ray.train.RunConfig(
            name=os.environ.get("GANGLINE_RUN_ID", "local"),
            storage_path=os.environ.get("GANGLINE_CHECKPOINT_DIR") or str(Path("checkpoints").absolute()),
        ),
    )
    result = trainer.fit()
    print(f"done: {result.metrics}", flush=True)


if __name__ == "__main__":
    main()
