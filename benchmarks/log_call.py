"""`gangline.log` of ten scalars on the caller's thread, next to one JSON line written and flushed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measure import PYTHON, Row, row_of

CALLS, BLOCKS = 2000, 15


def measure() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, **rank_environment(Path(folder))}
        done = subprocess.run([PYTHON, __file__, folder], env=env, check=True, capture_output=True, text=True)
    times = json.loads(done.stdout)
    return [
        row_of(
            times["ours"],
            times["peer"],
            limit=1.1,
            what="gangline.log of 10 scalars, per call on the caller's thread",
            unit="µs",
            peer_is="one JSON line: json.dumps, write, flush",
            goal="<= 1.1",
        )
    ]


def rank_environment(run_dir: Path) -> dict[str, str]:
    """What an agent would set for a rank of one."""
    return {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "GANGLINE_RUN_ID": "bench",
        "GANGLINE_ATTEMPT": "0",
        "GANGLINE_RUN_DIR": str(run_dir),
    }


def _blocks(folder: str) -> dict[str, list[float]]:
    """Microseconds a call, block by block in turns."""
    import gangline

    values = {f"metric_{i}": i * 1.2345 for i in range(10)}
    times: dict[str, list[float]] = {"ours": [], "peer": []}
    with open(f"{folder}/peer.jsonl", "a", encoding="utf-8") as file:
        for block in range(BLOCKS + 1):
            ours = _time_us(lambda step: gangline.log(values, step=step))
            peer = _time_us(lambda step: _json_line(file, step, values))
            if block:  # the first warms up
                times["ours"].append(ours)
                times["peer"].append(peer)
    return times


def _json_line(file, step, values):
    file.write(json.dumps({"t": time.time(), "step": step, **values}) + "\n")
    file.flush()


def _time_us(call) -> float:
    began = time.perf_counter()
    for step in range(CALLS):
        call(step)
    return (time.perf_counter() - began) / CALLS * 1e6


if __name__ == "__main__":
    print(json.dumps(_blocks(sys.argv[1])))
