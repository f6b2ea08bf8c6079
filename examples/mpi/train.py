"""Train a small model with MPI (mpi4py and NumPy): each rank has its share of the data, `Allreduce` sums the slopes.

gangline submit --strategy mpi --nodes 2 --procs-per-node 2 --follow train.py
"""

from __future__ import annotations

import argparse

import numpy as np
from mpi4py import MPI

import gangline

WIDTH, BATCH = 32, 64


def make_batch(step: int, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """Points, and whether the sum of the first half is larger than that of the second."""
    x = np.random.default_rng((step, rank)).normal(size=(BATCH, WIDTH))
    return x, (x[:, : WIDTH // 2].sum(1) > x[:, WIDTH // 2 :].sum(1)).astype(float)


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--steps", type=int, default=60)
    options.add_argument("--save-every", type=int, default=10)
    args = options.parse_args()

    world = MPI.COMM_WORLD
    start, weights = 0, np.zeros(WIDTH)
    if found := gangline.latest_checkpoint():
        start, weights = found.step, np.load(found.path / "weights.npy")
    print(f"starting at step {start} as rank {world.rank} of {world.size}", flush=True)

    for step in range(start, args.steps):
        x, y = make_batch(step, world.rank)
        chance = 1 / (1 + np.exp(-x @ weights))
        slope = np.empty(WIDTH)
        world.Allreduce(x.T @ (chance - y) / BATCH, slope)
        weights -= 0.5 * slope / world.size
        loss = -np.mean(y * np.log(chance + 1e-9) + (1 - y) * np.log(1 - chance + 1e-9))
        gangline.log({"loss": loss}, step=step)
        gangline.progress(step + 1, args.steps)
        stop = gangline.should_stop()
        if (step + 1) % args.save_every == 0 or stop:
            with gangline.checkpoint(step + 1, rank0_only=True) as path:
                np.save(path / "weights.npy", weights)
        if stop:
            break
    print(f"done: loss {loss:.3f}", flush=True)


if __name__ == "__main__":
    main()
