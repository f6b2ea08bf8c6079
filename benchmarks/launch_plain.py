"""The same launch with a script that imports nothing: next to a shell loop that starts four pythons."""

from __future__ import annotations

import statistics
import subprocess
import time
from pathlib import Path

from measure import PYTHON, Place, Row, in_turns, new_place
from submit_to_allreduce import last_time

RANKS = 4


def measure() -> list[Row]:
    with new_place() as place:
        project = place.project("plain.py")
        ours, peer = in_turns(lambda: submit_s(place, project), lambda: loop_s(place, project), times=7)
    mine, theirs = statistics.median(ours), statistics.median(peer)
    return [
        Row(
            what="submit to every rank's first line, 4 ranks, script without torch",
            unit="s",
            ours=mine,
            peer=theirs,
            peer_is="shell loop starting 4 pythons",
            goal="<= 1.5, and < 0.5 s above it",
            met=mine / theirs <= 1.5 and mine - theirs < 0.5,
            samples=len(ours),
            spread=(min(ours), max(ours)),
            note=f"{mine - theirs:+.2f} s",
        )
    ]


def submit_s(place: Place, project: Path) -> float:
    out = place.out()
    began = time.time()
    place.gangline("submit", "--procs-per-node", str(RANKS), "--follow", "plain.py", str(out), cwd=project)
    return last_time(out, RANKS) - began


def loop_s(place: Place, project: Path) -> float:
    out = place.out()
    began = time.time()
    loop = f'for i in 0 1 2 3; do "{PYTHON}" plain.py "{out}" $i & done; wait'
    subprocess.run(["sh", "-c", loop], cwd=project, env=place.env, check=True)
    return last_time(out, RANKS) - began
