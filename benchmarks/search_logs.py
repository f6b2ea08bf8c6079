"""1 GB in 64 rank logs searched, next to `rg -j2`; and the last 100 lines of a log of 1 GB, next to `tail`."""

from __future__ import annotations

import random
import statistics
import time
from pathlib import Path

from gangline.rundir.layout import AttemptDir
from gangline.server.ranklogs import Begin, find_begin, read_piece
from gangline.server.search import find_program
from measure import Place, Row, command_time_s, in_turns, new_place, row_of

NODES, PROCS = 4, 16
LOG_BYTES = 16_000_000
TIMES = 5
PATTERNS = {"a rare line": "RuntimeError: CUDA.*rank", "a pattern of classes": r"loss 0\.9999[0-9]+ lr"}


def measure() -> list[Row]:
    with new_place() as place:
        logs = _fill(place)
        return [*(_search(place, logs, what, pattern) for what, pattern in PATTERNS.items()), _tail(place, logs[0])]


def _fill(place: Place) -> list[Path]:
    project, out = place.project("plain.py"), place.out()
    sizes = ["--nodes", str(NODES), "--procs-per-node", str(PROCS)]
    place.gangline("submit", *sizes, "--start", "exec", "plain.py", str(out), cwd=project)
    place.gangline("wait", "latest")
    folder = next(Path(place.env["GANGLINE_HOME"], "runs").iterdir()) / "attempts" / "0"
    logs = [folder / f"rank-{rank:05d}.log" for rank in range(NODES * PROCS)]
    dice = random.Random(0)
    lines = "".join(
        f"step {n} loss {dice.random():.6f} lr 3.0e-4 tokens/s {dice.randrange(10**6)}\n" for n in range(20_000)
    )
    for rank, log in enumerate(logs):
        with log.open("ab") as file:
            for _ in range(LOG_BYTES // len(lines)):
                file.write(lines.encode())
            file.write(b"RuntimeError: CUDA error on rank %d\n" % rank)
    return logs


def _search(place: Place, logs: list[Path], what: str, pattern: str) -> Row:
    program = find_program()[0]
    peer = [program, "--no-config", "-j2", "-a", pattern, *map(str, logs)]
    with place.client() as client:

        def ours() -> float:
            began = time.perf_counter()
            *_, end = client.search("latest", pattern, limit=100_000)
            assert end["hits"] >= len(logs)
            return time.perf_counter() - began

        values, peers = in_turns(ours, lambda: command_time_s(peer), times=TIMES)
    return row_of(
        values,
        peers,
        limit=1.5,
        what=f"search 1 GB in {len(logs)} rank logs for {what}, hits at the client",
        unit="s",
        peer_is="rg -j2",
        goal="<= 1.5",
    )


def _tail(place: Place, log: Path) -> Row:
    block = log.read_bytes()
    with log.open("ab") as file:
        while file.tell() < 1_000_000_000:
            file.write(block)
    attempt = AttemptDir(log.parent)

    def ours() -> float:
        began = time.perf_counter()
        offset = find_begin(attempt, 0, Begin(tail=100))
        piece = read_piece(attempt, 0, offset=offset, limit_bytes=1 << 20, over=True)
        took_s = time.perf_counter() - began
        assert piece["text"].count("\n") == 100
        return took_s * 1e3

    values, peers = in_turns(ours, lambda: command_time_s(["tail", "-n", "100", str(log)]) * 1e3, times=20)
    with place.client() as client:
        began = time.perf_counter()
        client.log_chunk("latest", 0, tail=100)
        call_ms = (time.perf_counter() - began) * 1e3
    median = statistics.median(values)
    return Row(
        what="last 100 lines of one rank in a log of 1 GB, time of the server",
        unit="ms",
        ours=median,
        peer=statistics.median(peers),
        peer_is="tail",
        goal="<= 5 ms",
        met=median <= 5,
        samples=len(values),
        spread=(min(values), max(values)),
        note=f"{call_ms:.0f} ms with the call",
    )
