"""64 ranks x 1,000 lines/s followed together: lines lost, how far behind, what it costs; next to TailLog and `tail -F`.

The three follow the same logs in turns. The cost is processor time of the process that follows, and for Gangline of its
server, too; figures of the machine are those of a machine on which 64 ranks print.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

from measure import GANGLINE, PYTHON, Place, Row, new_place, wait_until

NODES, PROCS, LINES_PER_S = 4, 16, 1000
WINDOW_S = 6.0
TICKS = os.sysconf("SC_CLK_TCK")
TAIL_LOG = """
import sys, threading
from torch.distributed.elastic.multiprocessing.tail_log import TailLog
logs = {rank: path for rank, path in enumerate(sys.argv[1:])}
tail = TailLog("rank", logs, sys.stdout, interval_sec=0.1).start()
threading.Event().wait()
"""


def measure() -> list[Row]:
    with new_place() as place:
        try:
            return _measure(place)
        finally:
            place.gangline("stop", "latest", "--grace", "1s", check=False)


def _measure(place: Place) -> list[Row]:
    project, out = place.project("lines.py"), place.out()
    sizes = ["--nodes", str(NODES), "--procs-per-node", str(PROCS)]
    place.gangline("submit", *sizes, "--start", "exec", "lines.py", str(out), str(LINES_PER_S), cwd=project)
    run_dir = next(Path(place.env["GANGLINE_HOME"], "runs").iterdir())
    logs = [run_dir / "attempts" / "0" / f"rank-{rank:05d}.log" for rank in range(NODES * PROCS)]
    wait_until(lambda: all(log.exists() and log.stat().st_size for log in logs), what="64 ranks that print")
    server = _server_pid(place)
    ours, tail_log, tail = [], [], []
    for _ in range(2):
        ours.append(_follow([GANGLINE, "logs", "latest", "-A", "-f", "-n", "0"], place, server=server))
        tail_log.append(_follow([PYTHON, "-c", TAIL_LOG, *map(str, logs)], place))
        tail.append(_follow(["tail", "-q", "-n", "0", "-F", *map(str, logs)], place))
    lost = _lost(place, out, logs)
    cores, behind = [one[0] for one in ours], [one[1] for one in ours]
    torch, tails = statistics.median(one[0] for one in tail_log), statistics.median(one[0] for one in tail)
    what = f"follow {NODES * PROCS} ranks x {LINES_PER_S:,} lines/s, merged"
    return [
        Row(
            what=f"{what}: processor time, command and server",
            unit="cores",
            ours=statistics.median(cores),
            peer=torch,
            peer_is=f"torch's TailLog; tail -F {tails:.3f}",
            goal="<= 0.1",
            met=statistics.median(cores) <= 0.1,
            samples=len(ours),
            spread=(min(cores), max(cores)),
        ),
        Row(
            what=f"{what}: 99 of 100 lines are shown within",
            unit="s",
            ours=statistics.median(behind),
            peer=statistics.median(one[1] for one in tail),
            peer_is="tail -F",
            goal="< 0.5 s",
            met=statistics.median(behind) < 0.5,
            spread=(min(behind), max(behind)),
        ),
        Row(what=f"{what}: lines that are lost", unit="", ours=lost, goal="0", met=lost == 0),
    ]


def _follow(command: list[str], place: Place, *, server: int | None = None) -> tuple[float, float]:
    """Cores that following takes, and how far behind the 99th of 100 lines is."""
    with _started(command, place) as process:
        os.read(process.stdout.fileno(), 1)  # it has started
        lags, busy, since, until = [], 0.0, 0.0, time.monotonic() + 1.0 + WINDOW_S
        began = None
        while time.monotonic() < until:
            data = os.read(process.stdout.fileno(), 1 << 20)
            now = time.time()
            if time.monotonic() < until - WINDOW_S:
                continue
            if began is None:
                began, since = _cpu_s(process.pid, server), time.monotonic()
            line = data[data.rfind(b"\n", 0, data.rfind(b"\n")) + 1 :].replace(b"| ", b"").split()
            stamp = next((word for word in line if word.count(b".") == 1 and len(word) == 14), None)
            if stamp is not None:
                lags.append(now - float(stamp))
        busy = (_cpu_s(process.pid, server) - began) / (time.monotonic() - since)
    return busy, statistics.quantiles(lags, n=100)[98] if len(lags) > 1 else float("nan")


def _lost(place: Place, out: Path, logs: list[Path]) -> int:
    """Lines that the ranks have written while they are followed from the beginning, and that are not shown in order."""
    with _started([GANGLINE, "logs", "latest", "-A", "-f", "--attempt", "0"], place) as process:
        shown: dict[bytes, int] = {}
        wrong = 0
        (out / "stop").touch()
        for line in process.stdout:
            words = line.partition(b"| ")[2].split()
            if len(words) > 2:
                wrong += int(words[2]) != shown.get(words[1], 0)
                shown[words[1]] = shown.get(words[1], 0) + 1
    written = {path.name.removeprefix("rank-").encode(): int(path.read_text()) for path in out.glob("rank-*")}
    return wrong + sum(written[rank] - shown.get(rank, 0) for rank in written) + (len(logs) - len(written))


@contextmanager
def _started(command, place):
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=place.env)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def _cpu_s(*pids: int | None) -> float:
    total = 0.0
    for pid in pids:
        with suppress(OSError, TypeError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += (int(fields[11]) + int(fields[12])) / TICKS
    return total


def _server_pid(place: Place) -> int:
    return int(Path(place.env["GANGLINE_HOME"], "server.lock").read_text())


if __name__ == "__main__":
    for row in measure():
        sys.stdout.write(f"{row.what}: {row.ours:.3f} ({row.peer} {row.peer_is}) {row.met} {row.spread}\n")
