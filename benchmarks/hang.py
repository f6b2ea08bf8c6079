"""One of two ranks stopped with SIGSTOP: how soon the next attempt steps. And the stacks of 64 ranks.

The peer gets the same limit as the time-out of its process group; without one, it notices after half an hour.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import time
from pathlib import Path

from measure import GANGLINE, TORCHRUN, Place, Row, command_time_s, new_place, wait_until
from restart import _running

RANKS, VICTIM, LIMIT_S, MANY = 2, 1, 15.0, 64
SLACK_S, STACKS_S = 3.0, 5.0


def measure() -> list[Row]:
    with new_place() as place:
        project = place.project("stopped.py")
        ours = [stopped_s(place, project, [GANGLINE, "submit", *_OURS]) for _ in range(3)]
        peer = stopped_s(place, project, [TORCHRUN, *_PEER])
        stacks = stacks_s(place, project)
    median = statistics.median(ours)
    stopped = Row(
        what=f"one of {RANKS} ranks SIGSTOPped, limit {LIMIT_S:.0f} s, to the next attempt's first step",
        unit="s",
        ours=median,
        peer=peer,
        peer_is=f"torchrun with a group time-out of {LIMIT_S:.0f} s",
        goal=f"<= {LIMIT_S + SLACK_S:.0f} s",
        met=median <= LIMIT_S + SLACK_S,
        samples=len(ours),
        spread=(min(ours), max(ours)),
    )
    taken = Row(
        what=f"`gangline stacks` of {MANY} ranks, the command as a whole",
        unit="s",
        ours=statistics.median(stacks),
        goal=f"< {STACKS_S:.0f} s",
        met=statistics.median(stacks) < STACKS_S,
        samples=len(stacks),
        spread=(min(stacks), max(stacks)),
    )
    return [stopped, taken]


_OURS = ("--procs-per-node", str(RANKS), "--hang-timeout", f"{LIMIT_S:.0f}s", "--follow", "stopped.py")
_PEER = ("--standalone", f"--nproc-per-node={RANKS}", "--max-restarts", "1", "stopped.py")


def stopped_s(place: Place, project: Path, command: list[str]) -> float:
    out = place.out()
    with _running([*command, str(out), f"{LIMIT_S if command[0] == TORCHRUN else 1800.0:.0f}"], place, project, out):
        first = wait_until(lambda: _firsts(out, 0), what="attempt 0")
        began = time.time()
        os.kill(int(first[VICTIM].split()[0]), signal.SIGSTOP)
        again = wait_until(lambda: _firsts(out, 1), what="attempt 1", timeout_s=180)
        return max(float(text.split()[1]) for text in again) - began


def stacks_s(place: Place, project: Path) -> list[float]:
    """Ranks that weigh nothing: what is measured is the way there and back."""
    (project / "sleep.py").write_text("import time\nprint('up', flush=True)\ntime.sleep(600)\n")
    submit = ["submit", "--json", "--start", "exec", "--procs-per-node", str(MANY), "sleep.py"]
    run = json.loads(place.gangline(*submit, cwd=project).stdout)["id"]
    folder = Path(place.env["GANGLINE_HOME"]) / "runs" / run / "attempts" / "0"
    wait_until(lambda: sum(path.stat().st_size > 0 for path in folder.glob("rank-*.log")) == MANY, what="64 ranks")
    times = [command_time_s([GANGLINE, "stacks", run], env=place.env) for _ in range(5)]
    place.gangline("stop", run, "--grace", "0", check=False)
    place.gangline("wait", run, check=False)
    return times


def _firsts(out: Path, attempt: int) -> list[str]:
    found = sorted(out.glob(f"first-{attempt}-*"))
    return [path.read_text() for path in found] if len(found) == RANKS else []
