"""A training step of 20 ms that logs ten scalars, next to the same step without."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from log_call import rank_environment
from measure import PYTHON, Row, row_of

STEP_S, STEPS = 0.020, 400


def measure() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, **rank_environment(Path(folder))}
        done = subprocess.run([PYTHON, __file__], env=env, check=True, capture_output=True, text=True)
    times = json.loads(done.stdout)
    return [
        row_of(
            times["ours"],
            times["peer"],
            limit=1.01,
            what="training step of 20 ms with 10 scalars logged each step",
            unit="ms",
            peer_is="the same without logging",
            goal="<= 1.01",
        )
    ]


def _steps() -> dict[str, list[float]]:
    """Milliseconds of each step, with and without logging in turns, so that both see the same machine."""
    import gangline

    values = {f"metric_{i}": i * 1.2345 for i in range(10)}
    rounds = _rounds_for(STEP_S)
    times: dict[str, list[float]] = {"ours": [], "peer": []}
    for step in range(STEPS):
        for kind in ("ours", "peer"):
            began = time.perf_counter()
            hashlib.pbkdf2_hmac("sha256", b"step", b"work", rounds)
            if kind == "ours":
                gangline.log(values, step=step)
            times[kind].append((time.perf_counter() - began) * 1e3)
    return times


def _rounds_for(step_s: float) -> int:
    """How much work fills a step on this machine, when nothing disturbs it."""
    quickest = min(_time_s(20_000) for _ in range(10))
    return int(20_000 * step_s / quickest)


def _time_s(rounds: int) -> float:
    began = time.perf_counter()
    hashlib.pbkdf2_hmac("sha256", b"step", b"work", rounds)
    return time.perf_counter() - began


if __name__ == "__main__":
    json.dump(_steps(), sys.stdout)
