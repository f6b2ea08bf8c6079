"""Train a small model with TensorFlow's MultiWorkerMirroredStrategy, which finds its workers in TF_CONFIG.

gangline submit --strategy tensorflow --nodes 2 --procs-per-node 1 --follow train.py
"""

from __future__ import annotations

import argparse
from typing import Any

import gangline
import tensorflow as tf

WIDTH, BATCH = 32, 16


def make_batch(step: int) -> tuple[Any, Any]:
    """This worker's share: points, and whether the sum of the first half is larger than that of the second."""
    x = tf.random.stateless_normal((BATCH, WIDTH), seed=(step, gangline.current().rank))
    half = WIDTH // 2
    return x, tf.cast(tf.reduce_sum(x[:, :half], 1) > tf.reduce_sum(x[:, half:], 1), tf.float32)


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--steps", type=int, default=60)
    options.add_argument("--save-every", type=int, default=10)
    args = options.parse_args()

    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before anything else of TensorFlow
    with strategy.scope():
        w1 = tf.Variable(tf.random.stateless_normal((WIDTH, 64), seed=(0, 1)) / 6)
        w2 = tf.Variable(tf.random.stateless_normal((64, 1), seed=(0, 2)) / 8)
    state = tf.train.Checkpoint(w1=w1, w2=w2)

    start = 0
    if found := gangline.latest_checkpoint():
        state.read(str(found.path / "weights")).assert_consumed()
        start = found.step
    print(f"starting at step {start} with {strategy.num_replicas_in_sync} workers", flush=True)

    @tf.function
    def train(x: Any, y: Any) -> Any:
        def step(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                logits = tf.squeeze(tf.nn.relu(x @ w1) @ w2, 1)
                loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=y, logits=logits))
            slopes = tf.distribute.get_replica_context().all_reduce(
                tf.distribute.ReduceOp.MEAN, tape.gradient(loss, [w1, w2])
            )
            for weight, slope in zip((w1, w2), slopes, strict=True):
                weight.assign_sub(0.5 * slope)
            return loss

        return strategy.reduce(tf.distribute.ReduceOp.MEAN, strategy.run(step, (x, y)), axis=None)

    for step in range(start, args.steps):
        loss = float(train(*make_batch(step)))
        gangline.log({"loss": loss}, step=step)
        gangline.progress(step + 1, args.steps)
        stop = gangline.should_stop()
        if (step + 1) % args.save_every == 0 or stop:
            # Every worker has to save; what workers other than the first write is thrown away.
            with gangline.checkpoint(step + 1, rank0_only=True) as path:
                state.write(str(path / "weights"))
        if stop:
            break
    print(f"done: loss {loss:.3f}", flush=True)


if __name__ == "__main__":
    main()
