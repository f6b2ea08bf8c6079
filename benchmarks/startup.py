"""What a process pays before it does anything: `import gangline`, `gangline --help`, `gangline ps` with 1,000 runs, and
the first command of all, which starts the embedded server.
"""

from __future__ import annotations

import os
import shutil
import statistics

from measure import GANGLINE, PYTHON, Place, Row, command_time_s, in_turns, new_place

TIMES, RUNS = 15, 1000
STARTS, START_S = 7, 1.5


def measure() -> list[Row]:
    env = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    rows = [
        _row([PYTHON, "-c", "import gangline"], env, what="import gangline", limit_ms=30),
        _row([GANGLINE, "--help"], env, what="gangline --help", limit_ms=150),
    ]
    with new_place() as place:
        fill(place)
        rows.append(_row([GANGLINE, "ps"], place.env, what=f"gangline ps, server up, {RUNS:,} runs", limit_ms=300))
        rows.append(
            _row([GANGLINE, "ps", "--all"], place.env, what=f"gangline ps --all of {RUNS:,} runs", limit_ms=None)
        )
    rows.append(_first_command())
    return rows


def _first_command() -> Row:
    """`gangline ps` in a new state folder, and the same with the server up."""

    def first() -> float:
        place.gangline("server", "stop", check=False)
        shutil.rmtree(place.env["GANGLINE_HOME"])
        return command_time_s([GANGLINE, "ps"], env=place.env)

    with new_place() as place:
        ours, peer = in_turns(first, lambda: command_time_s([GANGLINE, "ps"], env=place.env), times=STARTS)
    mine = statistics.median(ours)
    return Row(
        what="gangline ps that starts the embedded server, new state folder",
        unit="s",
        ours=mine,
        peer=statistics.median(peer),
        peer_is="gangline ps, server up",
        goal=f"< {START_S} s",
        met=mine < START_S,
        samples=STARTS,
        spread=(min(ours), max(ours)),
    )


def _row(command: list[str], env: dict[str, str], *, what: str, limit_ms: float | None) -> Row:
    bare = [PYTHON, "-c", "pass"]
    ours, peer = in_turns(lambda: command_time_s(command, env=env), lambda: command_time_s(bare, env=env), times=TIMES)
    mine, theirs = statistics.median(ours) * 1e3, statistics.median(peer) * 1e3
    return Row(
        what=what,
        unit="ms",
        ours=mine,
        peer=theirs,
        peer_is="python -c pass",
        goal="" if limit_ms is None else f"< {limit_ms:.0f} ms more",
        met=None if limit_ms is None else mine - theirs < limit_ms,
        samples=TIMES,
        spread=(min(ours) * 1e3, max(ours) * 1e3),
        note=f"{mine - theirs:+.0f} ms",
    )


def fill(place: Place) -> None:
    """Put runs into the store: submitted behind one that holds every core, then stopped where they wait."""
    project, out = place.project("hold.py"), place.out()
    cores = str(os.cpu_count())
    place.gangline("submit", "--cpus-per-rank", cores, "--name", "holder", "hold.py", str(out), cwd=project)
    with place.client() as client:
        first = client.run("latest")
        spec = {**first["spec"], "name": "waits"}
        waiting = [client.submit(spec, client={}, key=f"fill-{i}")["id"] for i in range(RUNS)]
        for run in reversed(waiting):  # from the end of the queue: nobody moves up
            client.stop(run)
        (out / "stop").touch()
        client.wait(first["id"], timeout_s=30)
