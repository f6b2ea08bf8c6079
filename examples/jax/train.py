"""Train a small model with JAX on several processes, whose devices form one mesh.

gangline submit --strategy jax --nodes 2 --procs-per-node 1 --follow train.py
"""

from __future__ import annotations

import argparse
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import gangline
import jax

WIDTH, BATCH = 32, 16


def make_batch(step: int) -> tuple[np.ndarray, np.ndarray]:
    """This process's share: points, and whether the sum of the first half is larger than that of the second."""
    x = np.random.default_rng((step, jax.process_index())).normal(size=(BATCH, WIDTH)).astype(np.float32)
    return x, (x[:, : WIDTH // 2].sum(1) > x[:, WIDTH // 2 :].sum(1)).astype(np.float32)


def compute_loss(weights: dict[str, Any], x: Any, y: Any) -> Any:
    logits = jax.nn.relu(x @ weights["w1"]) @ weights["w2"]
    return jnp.mean(jnp.logaddexp(0, logits[:, 0]) - y * logits[:, 0])


@jax.jit
def update(weights: dict[str, Any], x: Any, y: Any) -> tuple[dict[str, Any], Any]:
    """The batch lies on all processes, the weights on each: XLA adds the sum over processes."""
    loss, slopes = jax.value_and_grad(compute_loss)(weights, x, y)
    return jax.tree.map(lambda weight, slope: weight - 0.5 * slope, weights, slopes), loss


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--steps", type=int, default=60)
    options.add_argument("--save-every", type=int, default=10)
    args = options.parse_args()

    gang = gangline.current()  # JAX itself reads JAX_COORDINATOR_ADDRESS, and JAX_LOCAL_DEVICE_IDS on accelerators
    if gang.world_size > 1:
        jax.distributed.initialize(num_processes=gang.world_size, process_id=gang.rank)
    mesh = Mesh(np.array(jax.devices()), ("data",))
    split, whole = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())

    start = 0
    random = np.random.default_rng(0)
    state = {"w1": random.normal(size=(WIDTH, 64)) / 6, "w2": random.normal(size=(64, 1)) / 8}
    if found := gangline.latest_checkpoint():
        state, start = dict(np.load(found.path / "weights.npz")), found.step
    weights = {name: jax.device_put(value.astype(np.float32), whole) for name, value in state.items()}
    print(f"starting at step {start} with {jax.device_count()} devices", flush=True)

    for step in range(start, args.steps):
        x, y = (jax.make_array_from_process_local_data(split, part) for part in make_batch(step))
        weights, loss = update(weights, x, y)
        gangline.log({"loss": float(loss)}, step=step)
        gangline.progress(step + 1, args.steps)
        stop = gangline.should_stop()
        if (step + 1) % args.save_every == 0 or stop:
            with gangline.checkpoint(step + 1, rank0_only=True) as path:
                np.savez(path / "weights.npz", **{name: np.asarray(value) for name, value in weights.items()})
        if stop:
            break
    print(f"done: loss {float(loss):.3f}", flush=True)


if __name__ == "__main__":
    main()
