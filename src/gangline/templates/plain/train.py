"""Fit a line by gradient descent in plain Python, on one process or on a gang whose ranks work side by side.

    python train.py                                                    # alone
    gangline submit --nodes 2 --procs-per-node 2 --follow train.py     # four ranks

There is no PyTorch here, so the ranks do not share gradients. Everything else is as in real training: steps, loss,
checkpoints, restarts. Install torch and run `gangline init` in another folder for a script whose ranks train together.
"""

import argparse
import json
import random
import time

import gangline


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--lr", type=float, default=0.05)
    options = parser.parse_args()

    run = gangline.current()
    slope, offset, first_step = 0.0, 0.0, 0
    if (saved := gangline.latest_checkpoint()) is not None:  # a restart, or `gangline resume`
        state = json.loads((saved.path / "state.json").read_text())
        slope, offset, first_step = state["slope"], state["offset"], state["step"]

    draw = random.Random(1000 * first_step + run.rank)  # every rank draws its own data
    for step in range(first_step + 1, options.steps + 1):
        xs = [draw.uniform(-1, 1) for _ in range(64)]
        errors = [slope * x + offset - (3 * x + 1) for x in xs]
        loss = sum(error * error for error in errors) / len(xs)
        slope -= options.lr * 2 * sum(error * x for error, x in zip(errors, xs, strict=True)) / len(xs)
        offset -= options.lr * 2 * sum(errors) / len(xs)
        time.sleep(0.005)  # a real step takes longer than this

        gangline.log({"loss": loss}, step=step)
        gangline.progress(step, options.steps)
        stopping = gangline.should_stop()
        if step % 100 == 0 or step == options.steps or stopping:
            with gangline.checkpoint(step) as folder:
                if run.rank == 0:
                    state = {"slope": slope, "offset": offset, "step": step}
                    (folder / "state.json").write_text(json.dumps(state))
            if run.rank == 0:
                print(f"step {step}: loss {loss:.4f}, saved")
        if stopping:
            break


if __name__ == "__main__":
    main()
