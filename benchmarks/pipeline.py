"""A step of two ranks with @gang against the same step with Metaflow's @parallel; lines of ranks in Metaflow's log.

The peer starts its second process with the `python` that is first on PATH: where that is not the flow's own, the first
waits for it for ever.
"""

from __future__ import annotations

import re
import socket
import statistics
import subprocess
import threading
import time
from datetime import datetime
from pathlib import Path

from measure import PYTHON, WAIT_S, Place, Row, in_turns, new_place, row_of

STEP_GOAL, LINE_GOAL_S = 1.2, 1.0
LINES = 30
_STEP = re.compile(r"^(\S+ \S+) \[\d+/train/\d+ .*\] Task (is starting|finished successfully)", re.MULTILINE)
_LINE = re.compile(r"printed (\d+\.\d+ by \d)")


def measure() -> list[Row]:
    with new_place() as place:
        project = place.project("meet.py", "gang_flow.py", "parallel_flow.py")
        ours, peer = in_turns(
            lambda: step_time_s(place, project, "gang_flow.py"),
            lambda: step_time_s(place, project, "parallel_flow.py"),
            times=5,
        )
        shown, stored = line_delays_s(place, project)
    step = row_of(
        ours,
        peer,
        limit=STEP_GOAL,
        what="a Metaflow step of two ranks that meet and add up once, from its start to its end",
        unit="s",
        peer_is="the same step with num_parallel=2",
        goal=f"<= {STEP_GOAL}",
    )
    return [
        step,
        _line_row("a line printed in a rank to visible in the flow's output", shown),
        _line_row("a line printed in a rank to stored in the log of Metaflow's task", stored),
    ]


def _line_row(what: str, delays: list[float]) -> Row:
    median = statistics.median(delays)
    return Row(
        what=what,
        unit="s",
        ours=median,
        goal=f"< {LINE_GOAL_S:g} s",
        met=max(delays) < LINE_GOAL_S,
        samples=len(delays),
        spread=(min(delays), max(delays)),
    )


def step_time_s(place: Place, project: Path, flow: str) -> float:
    """How long the step took, as Metaflow itself tells it."""
    with _run(place, project, flow) as process:
        output, _ = process.communicate(timeout=WAIT_S)
    told = [datetime.fromisoformat(moment) for moment, _ in _STEP.findall(output)]
    if process.returncode != 0 or len(told) != 2:
        raise RuntimeError(f"{flow} ended with {process.returncode}:\n{output}")
    return (told[1] - told[0]).total_seconds()


def line_delays_s(place: Place, project: Path) -> tuple[list[float], list[float]]:
    """How long each line of two ranks took to the flow's output, and to the log that is stored with its task."""
    left = threading.Event()
    stored: dict[str, float] = {}
    store = project / ".metaflow" / "GangFlow"
    before = {path.name for path in store.iterdir()}
    watcher = threading.Thread(target=_watch_store, args=(store, before, stored, left))
    watcher.start()
    shown: dict[str, float] = {}
    try:
        with _run(place, project, "gang_flow.py", lines=LINES) as process:
            for line in process.stdout or ():
                _note(line, shown)
    finally:
        left.set()
        watcher.join()
    if len(shown) < 2 * LINES or len(stored) < 2 * LINES:
        raise RuntimeError(f"of {2 * LINES} lines {len(shown)} were shown and {len(stored)} stored")
    return _delays(shown), _delays(stored)


def _watch_store(store: Path, before: set[str], stored: dict[str, float], left: threading.Event) -> None:
    """Read again and again what has been stored of the newest run."""
    is_last = False
    while not is_last:
        is_last = left.wait(0.02)
        runs = [path for path in store.iterdir() if path.name not in before]
        for path in [log for run in runs for log in run.glob("train/*/*stdout*.log")]:
            _note(path.read_text(encoding="utf-8", errors="replace"), stored)


def _note(text: str, seen: dict[str, float]) -> None:
    now = time.time()
    for moment in _LINE.findall(text):
        seen.setdefault(moment, now)


def _delays(seen: dict[str, float]) -> list[float]:
    return [now - float(printed.partition(" ")[0]) for printed, now in seen.items()]


def _run(place: Place, project: Path, flow: str, *, lines: int = 0) -> subprocess.Popen[str]:
    env = {
        **place.env,
        "PATH": f"{Path(PYTHON).parent}:{place.env['PATH']}",
        "HOME": str(place.folder),
        "METAFLOW_USER": "bench",
        "METAFLOW_BENCH_LINES": str(lines),
        "MASTER_PORT": str(_free_port()),
        "PYTHONUNBUFFERED": "1",
    }
    command = [PYTHON, flow, "--no-pylint", "run"]
    return subprocess.Popen(command, cwd=project, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
