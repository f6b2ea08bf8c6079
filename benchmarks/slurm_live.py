"""500 live runs of one Slurm pool: commands a poll, how soon a line of a log and the end of a job are seen.

The server, the bridge, its commands and the mirror are the real ones. Slurm's commands are the stubs of the tests, and
leaders are played: two cores hold no 500 gangs. Nothing goes over ssh, of which `slurm` has the cost.
"""

from __future__ import annotations

import json
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measure import ROOT, Row, new_place, wait_until

sys.path.insert(0, str(ROOT))

RUNS = 500
POLL_S = 1.0
BEAT_S = 5.0
WINDOW_S = 20.0
ENDS, LINES = 5, 20


@dataclass(slots=True)
class Live:
    """A pool whose runs all live."""

    client: Any
    stubs: Any
    leaders: dict[str, Any]
    """By run."""
    jobs: Mapping[str, str]


def measure() -> list[Row]:
    with new_live() as live:
        return [commands_a_poll(live), seen_line(live), seen_end(live)]


@contextmanager
def new_live() -> Iterator[Live]:
    from tests.slurm.stubs import Stubs

    with new_place() as place:
        stubs, work = Stubs(place.folder / "slurm"), place.folder / "work"
        pool = {"backend": "slurm", "work": str(work), "poll_s": POLL_S, "ranks_python": "python3"}
        (Path(place.env["GANGLINE_HOME"]) / "pools.yaml").write_text(json.dumps({"pools": {"lab": pool}}))
        place.gangline("server", "stop")
        place.env["PATH"] = stubs.env["PATH"]
        place.gangline("pools", "doctor", "lab", check=False)
        with place.client() as client:
            jobs = submit_all(client, stubs)
            leaders = begin_all(client, stubs, jobs, work)
            with playing(leaders):
                yield Live(client, stubs, leaders, jobs)


def submit_all(client: Any, stubs: Any) -> dict[str, str]:
    """The job of each run."""
    from gangline.domain.spec import EntryKind
    from gangline.testing import make_spec
    from gangline.wire.spec import spec_to_mapping

    spec = spec_to_mapping(make_spec(entry="sleep", entry_kind=EntryKind.COMMAND, args=("600",), pool="lab"))
    runs = [client.submit(spec, client={}, key=f"live-{number}")["id"] for number in range(RUNS)]
    wait_until(lambda: len(stubs.jobs()) >= RUNS, what="all jobs", timeout_s=600, pause_s=1)
    named = {job["name"].rpartition(".")[0]: number for number, job in stubs.jobs().items()}
    return {run: named[run] for run in runs}


def begin_all(client: Any, stubs: Any, jobs: Mapping[str, str], work: Path) -> dict[str, Any]:
    """A leader for each run, as the server sees it."""
    from gangline.rundir.layout import RunDir
    from gangline.server.clock import SystemClock
    from gangline.testing.leader import FakeLeader

    # Gangline submits with --no-requeue, as Slurm would say of each job.
    stubs.change_jobs(state="RUNNING", reason="None", nodes="node01", num_nodes="1", requeue="0")
    leaders = {run: FakeLeader(RunDir(work / "runs" / run), clock=SystemClock()) for run in jobs}
    for leader in leaders.values():
        leader.beat()
        leader.begin()

    def all_run() -> bool:
        return len(client.list_runs(phases=["running"], limit=RUNS)) == RUNS

    wait_until(all_run, what="all to be seen running", timeout_s=300, pause_s=0.5)
    return leaders


@contextmanager
def playing(leaders: Mapping[str, Any]) -> Iterator[None]:
    """Every leader shows that it lives, and every rank writes a line a second."""
    over = threading.Event()

    def play() -> None:
        second = 0
        while not over.wait(1.0):
            second += 1
            for leader in list(leaders.values()):  # some may end meanwhile
                write_line(leader, f"step {second}")
                if second % BEAT_S == 0:
                    leader.beat()

    player = threading.Thread(target=play, daemon=True)
    player.start()
    try:
        yield
    finally:
        over.set()
        player.join()


def write_line(leader: Any, text: str) -> None:
    with leader.run_dir.attempt(0).log(0).open("a") as log:
        log.write(f"{text}\n")


def commands_a_poll(live: Live) -> Row:
    """What Slurm is asked while nothing changes but logs."""
    before = len(live.stubs.calls())
    time.sleep(WINDOW_S)
    asked = [call.command for call in live.stubs.calls()[before:]]
    polls = asked.count("squeue")
    commands = [name for name in asked if name in {"squeue", "sacct", "scontrol"}]
    return Row(
        what=f"{RUNS} live runs: commands of Slurm a poll",
        unit="",
        ours=len(commands) / polls,
        goal="<= 2",
        met=len(commands) <= 2 * polls,
        samples=polls,
        note=f"a poll every {WINDOW_S / polls:.2f} s, set to {POLL_S:g} s",
    )


def seen_line(live: Live) -> Row:
    """From a line that a rank writes on the cluster to the server's answer that has it."""
    run, leader = next(iter(live.leaders.items()))
    values = []
    for number in range(LINES):
        write_line(leader, f"probe {number}.")
        began = time.monotonic()
        sign = f"probe {number}.".encode()
        wait_until(lambda: sign in b"".join(live.client.raw_log(run, 0)), what="the line", pause_s=0.02)  # noqa: B023
        values.append(time.monotonic() - began)
    return row_within(values, 2.0, what=f"{RUNS} live runs, each logs a line a second: a line written to `logs`")


def seen_end(live: Live) -> Row:
    """From another state in Slurm to the end in `show`."""
    values = []
    for run, job in list(live.jobs.items())[1 : ENDS + 1]:
        leader = live.leaders.pop(run)  # told to end by Slurm, as ranks and agents are
        leader.end("preempted", next_step="relaunch", reason="preempted", budget="preemption")
        live.stubs.change_job(job, state="CANCELLED", reason="None", exit_code=15)
        began = time.monotonic()
        wait_until(lambda: live.client.run(run)["ended"] is not None, what="the end", pause_s=0.02)  # noqa: B023
        values.append(time.monotonic() - began)
    return row_within(values, POLL_S + 1, what=f"{RUNS} live runs: another state in Slurm to the end in `show`")


def row_within(values: list[float], limit_s: float, *, what: str) -> Row:
    return Row(
        what=what,
        unit="s",
        ours=statistics.median(values),
        goal=f"< {limit_s:g}",
        met=statistics.median(values) < limit_s,
        samples=len(values),
        spread=(min(values), max(values)),
    )
