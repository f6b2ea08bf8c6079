"""Train a small network with Lightning, whose own launcher stays out: the ranks are there already.

gangline submit --strategy lightning --nodes 2 --procs-per-node 2 --follow train.py
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import gangline
import lightning

WIDTH, BATCH, SIZE = 32, 16, 4096


class Model(lightning.LightningModule):
    """Is the sum of the first half larger than that of the second?"""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, 1))

    def training_step(self, batch: tuple[Tensor, Tensor], _index: int) -> Tensor:
        x, y = batch
        return nn.functional.binary_cross_entropy_with_logits(self.net(x).squeeze(1), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


class Gangline(lightning.Callback):
    """Metrics, progress, checkpoints and the wish to stop, at the end of each step."""

    def __init__(self, every: int) -> None:
        self.every = every

    def on_train_batch_end(self, trainer: lightning.Trainer, _module: Any, outputs: Any, *_: Any) -> None:
        step = trainer.global_step
        gangline.log({"loss": outputs["loss"]}, step=step)
        gangline.progress(step, trainer.max_steps)
        stop = gangline.should_stop()
        if step % self.every == 0 or stop:
            with gangline.checkpoint(step) as path:
                trainer.save_checkpoint(path / "state.ckpt")
        trainer.should_stop = trainer.should_stop or stop


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--steps", type=int, default=60)
    options.add_argument("--save-every", type=int, default=10)
    args = options.parse_args()

    torch.manual_seed(0)
    x = torch.randn(SIZE, WIDTH)
    data = TensorDataset(x, (x[:, : WIDTH // 2].sum(1) > x[:, WIDTH // 2 :].sum(1)).float())
    gang = gangline.current()
    trainer = lightning.Trainer(
        accelerator="auto",
        devices=gang.local_world_size,
        num_nodes=gang.num_nodes,
        strategy="ddp",
        max_steps=args.steps,
        max_epochs=-1,
        callbacks=[Gangline(args.save_every)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    found = gangline.latest_checkpoint()
    print(f"starting at step {found.step if found else 0}", flush=True)
    trainer.fit(Model(), DataLoader(data, BATCH), ckpt_path=str(found.path / "state.ckpt") if found else None)
    print(f"done: step {trainer.global_step}", flush=True)


if __name__ == "__main__":
    main()
