"""What `make demo` runs: train a small GPT as a gang of four, kill one rank half-way, show how the run gets over it.

It uses what anybody can use: the command line to submit and to show, the Python client to watch. It fails, with a
reason, if the held-out loss did not fall, if the run did not go on from a checkpoint, or if a line of a log is missing.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from gangline.client import Client, connect

HERE = Path(__file__).resolve().parent
GANGLINE = str(Path(sys.executable).with_name("gangline"))
NODES, PROCS_PER_NODE = 2, 2
VICTIM = 3
LEAST_FALL = 0.5
"""By how much the held-out loss must fall, in nats a byte."""
PRINT_EVERY = 10
"""Steps between the lines that `train.py` prints."""


def main(arguments: list[str] | None = None) -> int:
    options = parse_options(arguments)
    started = time.monotonic()
    say("Submitting a small GPT: 2 nodes of 2 ranks each, on this machine.")
    run_id = submit(options)
    with connect() as client:
        watch(client, run_id, options=options)
        say(f"Over after {time.monotonic() - started:.0f} s. This is what Gangline kept of the run:\n")
        subprocess.run([GANGLINE, "show", run_id], check=True)
        complaints = find_faults(client, run_id, options=options)
    for complaint in complaints:
        print(f"The demo went wrong: {complaint}", file=sys.stderr)
    if not complaints:
        print_next_steps(run_id)
    return 1 if complaints else 0


def parse_options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--save-every", type=int, default=50)
    parser.add_argument("--batch", type=int, default=8)
    return parser.parse_args(arguments)


def submit(options: argparse.Namespace) -> str:
    """Queue the run by the command line, as a person would; returns its id."""
    size = ["--nodes", str(NODES), "--procs-per-node", str(PROCS_PER_NODE)]
    numbers = {"--steps": options.steps, "--save-every": options.save_every, "--batch": options.batch}
    script = ["train.py", "--", *(str(word) for pair in numbers.items() for word in pair)]
    print(f"  $ gangline submit {' '.join([*size, '--name', 'demo-gpt', *script])}\n", flush=True)
    command = [GANGLINE, "submit", *size, "--name", "demo-gpt", "--json", *script]
    answer = subprocess.run(command, cwd=HERE, stdout=subprocess.PIPE, text=True, check=True)
    return str(json.loads(answer.stdout)["id"])


def watch(client: Client, run_id: str, *, options: argparse.Namespace) -> None:
    """Tell the run's story line by line, and kill a rank when it is half-way."""
    told, has_killed = -1, False
    while True:
        run = client.run(run_id)
        for event in run["events"]:
            if event["seq"] > told:
                told = event["seq"]
                if event["kind"] != "phase" or not run["attempts"]:  # later ones say again what attempts say
                    say(event["message"])
        if not has_killed and is_half_way(run, options=options):
            has_killed = kill_one(run)
        if run["exit_code"] is not None:
            return
        show_step(run)
        client.wait(run_id, timeout_s=0.5, version=run["version"])


def is_half_way(run: Any, *, options: argparse.Namespace) -> bool:
    """Half of the steps are done, and there is a checkpoint to go back to."""
    return bool(run["checkpoints"]) and (run["step"] or 0) > options.steps // 2


def kill_one(run: Any) -> bool:
    """Send SIGKILL to one rank, as a machine in trouble would; False while it has no process."""
    pid = next((rank["pid"] for rank in run["attempts"][-1]["ranks"] if rank["rank"] == VICTIM), None)
    if pid is None:
        return False
    say(f"Half-way, at step {run['step']}. Now kill -9 {pid}: rank {VICTIM} is gone.")
    os.kill(pid, signal.SIGKILL)
    return True


def show_step(run: Any) -> None:
    """A line that overwrites itself, where a person watches."""
    if sys.stdout.isatty() and run["step"]:
        loss = run["metrics"].get("loss")
        text = f"step {run['step']} of {run['total_steps']}" + (f", loss {loss:.3f}" if loss is not None else "")
        print(f"           {text}", end="\x1b[K\r", flush=True)


def find_faults(client: Client, run_id: str, *, options: argparse.Namespace) -> list[str]:
    """What is wrong with the finished run; nothing, if all is well."""
    run = client.run(run_id)
    if run["phase"] != "succeeded":
        return [f"the run is {run['phase']}, not succeeded: {run['message']}"]
    faults = []
    if len(run["attempts"]) != 2 or not run["attempts"][-1]["resume_step"]:
        steps = [attempt["resume_step"] for attempt in run["attempts"]]
        faults.append(f"expected a second attempt that goes on from a checkpoint, got resume steps {steps}")
    curve = client.metric(run_id, "heldout_loss", buckets=1000)["buckets"]
    first, last = curve[0]["mean"] or 0.0, curve[-1]["mean"] or 0.0
    if first - last < LEAST_FALL:
        faults.append(f"the held-out loss went from {first:.2f} to {last:.2f}: not by {LEAST_FALL}")
    say(f"Held-out loss: {first:.2f} at first, {last:.2f} at the end (nats a byte; lower is better).")
    return faults + find_lost_lines(client, run, last_step=options.steps)


def find_lost_lines(client: Client, run: Any, *, last_step: int) -> list[str]:
    """Logs that lack a line: each must hold every tenth step from where its attempt began, the last up to the end."""
    faults, num_lines = [], 0
    for attempt in run["attempts"]:
        for rank in range(NODES * PROCS_PER_NODE):
            log = b"".join(client.raw_log(run["id"], rank, attempt=attempt["number"])).decode()
            steps = [int(step) for step in re.findall(r"^step (\d+) loss", log, re.MULTILINE)]
            first = (attempt["resume_step"] or 0) // PRINT_EVERY * PRINT_EVERY + PRINT_EVERY
            end = last_step if attempt is run["attempts"][-1] else max(steps, default=0)
            num_lines += len(steps)
            if not steps or steps != list(range(first, end + 1, PRINT_EVERY)):
                faults.append(
                    f"the log of rank {rank} in attempt {attempt['number']} lacks lines: it has steps {steps}"
                )
    if not faults:
        say(f"Logs: {num_lines} lines about steps from {len(run['attempts'])} attempts, none missing.")
    return faults


def print_next_steps(run_id: str) -> None:
    commands = {
        f"gangline show {run_id}": "attempts and reasons, curves, checkpoints",
        f"gangline logs {run_id} --rank {VICTIM} --attempt 0": f"what rank {VICTIM} printed until it was killed",
        f"gangline metrics {run_id} heldout_loss": "the curve",
        f"gangline checkpoints {run_id}": "what is saved, and what was removed",
        "gangline server stop": "when you are done; it starts again by itself",
    }
    width = max(map(len, commands))
    print("\nLook further (put the tools on your path first:  . .venv/bin/activate):")
    for command, meaning in commands.items():
        print(f"  {command:<{width}}  {meaning}")
    print("Train it once more, with another learning rate:")
    print("  gangline submit --nodes 2 --procs-per-node 2 --follow examples/gpt/train.py -- --lr 3e-3")
    print("Next: docs/tutorial/first-run.md, and copy examples/gpt/train.py.")


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
