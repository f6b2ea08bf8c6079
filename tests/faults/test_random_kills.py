"""Kill -9 of ranks, agents and the server at random moments of a real gang: the run ends well, and nothing is lost.

GANGLINE_FAULT_ROUNDS says how many gangs (default 4), GANGLINE_FAULT_SEED repeats one.
"""

from __future__ import annotations

import os
import random
import re
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gangline.client import Client, connect
from gangline.rundir.layout import RunDir

STEPS = 60
KILLS = 3
ROUNDS = int(os.environ.get("GANGLINE_FAULT_ROUNDS", "4"))
SEED = int(os.environ.get("GANGLINE_FAULT_SEED", random.SystemRandom().randrange(2**31)))

SCRIPT = f"""
import time
import gangline

found = gangline.latest_checkpoint()
first = found.step if found else 0
print("from", first)
for step in range(first + 1, {STEPS} + 1):
    time.sleep(0.03)
    print("step", step)
    gangline.log({{"loss": 1.0 / step}}, step=step)
    gangline.progress(step, {STEPS})
    if step % 5 == 0:
        with gangline.checkpoint(step) as folder:
            (folder / f"rank-{{gangline.current().rank}}").write_text(str(step))
"""

pytestmark = [pytest.mark.faults, pytest.mark.integration]


def submit(client: Client, folder: Path) -> str:
    from gangline.client import RunSpec, submit  # noqa: PLC0415 - what a user of the Python client writes
    from gangline.domain.spec import Resources, RestartPolicy  # noqa: PLC0415

    spec = RunSpec(
        entry="train.py",
        resources=Resources(nodes=2, procs_per_node=2),
        restarts=RestartPolicy(max_infrastructure_restarts=20, backoff_s=0.1, max_backoff_s=0.2),
    )
    return submit(spec, root=folder, client=client)["id"]


def victims(run: dict[str, Any], client: Client) -> dict[str, list[int]]:
    """What may be hit now, by kind."""
    attempt = run["attempts"][-1]
    return {
        "rank": [rank["pid"] for rank in attempt["ranks"] if rank["pid"] and rank["ended"] is None],
        "agent": [node["agent_pid"] for node in attempt["nodes"] if node["agent_pid"]],
        "server": [client.health()["pid"]],
    }


def kill_something(client: Client, run_id: str, chance: random.Random) -> str:
    kind = chance.choice(["rank", "rank", "agent", "server"])
    pids = victims(client.run(run_id), client)[kind] if client.run(run_id)["attempts"] else []
    if pids:
        with suppress(ProcessLookupError):
            os.kill(chance.choice(pids), signal.SIGKILL)
    return kind if pids else "nothing"


def check_logs(run_dir: RunDir) -> None:
    """Every attempt of every rank begins where its checkpoint ends, and no line of it is lost."""
    for attempt in run_dir.attempts():
        for rank in attempt.ranks():
            lines = attempt.log(rank).read_text().splitlines()
            if not lines:  # hit before its first line
                continue
            first = int(re.fullmatch(r"from (\d+)", lines[0])[1])
            assert first % 5 == 0
            steps = [int(line.split()[1]) for line in lines[1:]]
            assert steps == list(range(first + 1, first + 1 + len(steps)))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", range(ROUNDS))
def test_whatever_is_killed_the_run_ends_well(home: Path, tmp_path: Path, number: int) -> None:
    seed = SEED + number
    print("GANGLINE_FAULT_SEED", seed)
    chance = random.Random(seed)
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text(SCRIPT)
    client = connect()
    run_id = submit(client, code)
    hit = []
    for _ in range(KILLS):
        time.sleep(chance.uniform(0.3, 1.2))
        hit.append(kill_something(client, run_id, chance))
    run = client.run(run_id)
    deadline = time.monotonic() + 120
    while run["phase"] != "succeeded" and run["ended"] is None and time.monotonic() < deadline:
        client.wait(run_id, timeout_s=5.0, version=run["version"])
        run = client.run(run_id)
    assert run["phase"] == "succeeded", (seed, hit, run["message"])
    assert [attempt["number"] for attempt in run["attempts"]] == list(range(len(run["attempts"]))), (seed, hit)
    check_logs(RunDir(home / "runs" / run_id))
    metric = client.metric(run_id, "loss", rank=0, buckets=2 * STEPS)
    assert [(bucket["step"], bucket["count"]) for bucket in metric["buckets"]] == [
        (step, 1) for step in range(1, STEPS + 1)
    ]
    checkpoints = [one["step"] for one in client.checkpoints(run_id) if one["state"] == "complete"]
    assert max(checkpoints) == STEPS, (seed, hit)
    client.close()
