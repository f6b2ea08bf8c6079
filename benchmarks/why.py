"""One of four ranks killed with -9: how soon `gangline show` has its reason, although the others take long to end."""

from __future__ import annotations

import os
import signal
import statistics
import time
from pathlib import Path

from measure import Place, Row, new_place, wait_until

RANKS, VICTIM, TIMES = 4, 2, 7
GOAL_S = 0.5


def measure() -> list[Row]:
    with new_place() as place:
        project = place.project("stubborn.py")
        times = [time_to_reason_s(place, project) for _ in range(TIMES)]
        shown = place.gangline("show", "latest").stdout
    median = statistics.median(times)
    return [
        Row(
            what="a rank's death to its reason in `show`, while the others ignore SIGTERM for 5 s",
            unit="s",
            ours=median,
            goal="< 0.5 s",
            met=median < GOAL_S and "was killed by SIGKILL" in shown,
            samples=len(times),
            spread=(min(times), max(times)),
        )
    ]


def time_to_reason_s(place: Place, project: Path) -> float:
    out = place.out()
    limits = ["--procs-per-node", str(RANKS), "--max-infra-restarts", "0", "--failure-grace", "5"]
    place.gangline("submit", *limits, "stubborn.py", str(out), cwd=project)
    files = [out / f"up-{rank}" for rank in range(RANKS)]
    wait_until(lambda: all(file.exists() for file in files), what="all ranks")
    with place.client() as client:
        run = client.list_runs()[0]["id"]
        wait_until(lambda: client.run(run)["phase"] == "running", what="the run to be running")
        began = time.time()
        os.kill(int(files[VICTIM].read_text()), signal.SIGKILL)
        wait_until(lambda: client.run(run)["attempts"][-1]["first_failure"], what="the reason", pause_s=0.005)
        took = time.time() - began
        wait_until(lambda: client.run(run)["phase"] == "failed", what="the end", pause_s=0.1)
    return took
