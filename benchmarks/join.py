"""Feather-weight ranks over many agents on this machine: all joined, and how it grows."""

from __future__ import annotations

import statistics
import time

from measure import Place, Row, new_place, wait_until

SIZES = {2: 8, 8: 8, 32: 8}
TIMES = 5


def measure() -> list[Row]:
    with new_place() as place:
        return [_measure(place, nodes, procs) for nodes, procs in SIZES.items()]


def _measure(place: Place, nodes: int, procs: int) -> Row:
    values = [join_s(place, nodes, procs) for _ in range(TIMES)]
    return Row(
        what=f"submit to all of {nodes * procs} feather-weight ranks over {nodes} agents started",
        unit="s",
        ours=statistics.median(values),
        goal="all joined" + (", within 30 s" if nodes * procs == 256 else ""),
        met=max(values) < 30,
        samples=TIMES,
        spread=(min(values), max(values)),
        note=f"{statistics.median(values) / (nodes * procs) * 1e3:.0f} ms a rank",
    )


def join_s(place: Place, nodes: int, procs: int) -> float:
    project, out = place.project("hold.py"), place.out()
    began = time.time()
    place.gangline("submit", "--nodes", str(nodes), "--procs-per-node", str(procs), "hold.py", str(out), cwd=project)
    wait_until(lambda: len(list(out.glob("rank-*"))) == nodes * procs, what=f"{nodes * procs} ranks", pause_s=0.02)
    joined = max(float(path.read_text()) for path in out.glob("rank-*")) - began
    (out / "stop").touch()
    done = place.gangline("wait", "latest")
    assert done.returncode == 0
    return joined
