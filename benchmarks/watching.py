"""What watchdog, samplers, index of logs and the server's reading cost a training step of 20 ms, on every core at once.

The peer is the same run in the same seconds: agent and server are stopped with SIGSTOP for every other window, so that
nobody watches. Means of windows are compared, as whoever is in the way takes few steps much time.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from measure import Row, new_place, row_of, wait_until

RANKS, WINDOW_S, PAIRS = os.cpu_count() or 2, 2.0, 15
SETTLE_S = 0.2
"""After agent and server go on, until they have caught up."""


def measure() -> list[Row]:
    with new_place() as place:
        out, home = place.out(), Path(place.env["GANGLINE_HOME"])
        options = ("--procs-per-node", str(RANKS), "--start", "exec", "--json")
        run = json.loads(place.gangline("submit", *options, "work.py", str(out), cwd=place.project("work.py")).stdout)[
            "id"
        ]
        wait_until(lambda: len(list(out.glob("up-*"))) == RANKS, what="the ranks")
        pids = [
            int((home / "runs" / run / "launches" / "000" / "node-000.lock").read_text()),
            json.loads((home / "server.json").read_text())["pid"],
        ]
        time.sleep(3.0)
        windows = [
            (is_watched, *_window(pids, is_watched=is_watched)) for _ in range(PAIRS) for is_watched in (True, False)
        ]
        (out / "stop").touch()
        place.gangline("wait", run)
        steps = [line.split() for path in out.glob("steps-*") for line in path.read_text().splitlines()]
    times = [(float(wall), float(took) * 1e3) for wall, took in steps]
    means: dict[bool, list[float]] = {True: [], False: []}
    for is_watched, begin, end in windows:
        means[is_watched].append(statistics.mean(took for wall, took in times if begin <= wall < end))
    return [
        row_of(
            means[True],
            means[False],
            limit=1.01,
            what=f"step of 20 ms on each of {RANKS} cores, watched, sampled, indexed and read by the server",
            unit="ms",
            peer_is="agent and server stopped",
            goal="<= 1.01",
        )
    ]


def _window(pids: Sequence[int], *, is_watched: bool) -> tuple[float, float]:
    """When it began and ended."""
    if not is_watched:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
    time.sleep(SETTLE_S)
    begin = time.time()
    time.sleep(WINDOW_S)
    end = time.time()
    if not is_watched:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
    return begin, end
