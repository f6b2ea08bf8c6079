"""From the command to the first all-reduce done on every rank: `gangline submit` next to `torchrun --standalone`."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from measure import TORCHRUN, Place, Row, in_turns, new_place, row_of, wait_until

GOALS = {4: 0.4, 2: 0.65}


def measure() -> list[Row]:
    with new_place() as place:
        return [_measure(place, ranks, limit) for ranks, limit in GOALS.items()]


def _measure(place: Place, ranks: int, limit: float) -> Row:
    project = place.project("allreduce.py")
    ours, peer = in_turns(lambda: submit_s(place, project, ranks), lambda: torchrun_s(place, project, ranks), times=5)
    return row_of(
        ours,
        peer,
        limit=limit,
        what=f"submit to the first all-reduce done, {ranks} ranks, script imports torch, server up",
        unit="s",
        peer_is="torchrun --standalone",
        goal=f"<= {limit}",
    )


def submit_s(place: Place, project: Path, ranks: int) -> float:
    """Seconds for one run of ours."""
    out = place.out()
    began = time.time()
    run = place.gangline("submit", "--procs-per-node", str(ranks), "--follow", "allreduce.py", str(out), cwd=project)
    assert run.returncode == 0
    return last_time(out, ranks) - began


def torchrun_s(place: Place, project: Path, ranks: int) -> float:
    """Seconds for one run of the peer."""
    out = place.out()
    began = time.time()
    command = [TORCHRUN, "--standalone", f"--nproc-per-node={ranks}", "allreduce.py", str(out)]
    subprocess.run(command, cwd=project, env=place.env, check=True, capture_output=True)
    return last_time(out, ranks) - began


def last_time(out: Path, ranks: int) -> float:
    """When the last rank was done."""
    wait_until(lambda: len(list(out.glob("rank-*"))) == ranks, what=f"{ranks} ranks")
    return max(float(path.read_text()) for path in out.glob("rank-*"))
