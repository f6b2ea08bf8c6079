"""One fault at a random moment of a real gang of torch ranks: right reason, right rank, nothing left, nothing lost.

Every kind of fault is tried once; GANGLINE_FAULT_ROUNDS says how often (200 rounds in all: 15). GANGLINE_FAULT_SEED
repeats a failure.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.faults.scene import (
    EVERY,
    FAULTS,
    RANKS,
    SCRIPT,
    STEPS,
    Fault,
    Scene,
    small_disk,
)

from gangline.client import connect, spec, submit

ROUNDS = int(os.environ.get("GANGLINE_FAULT_ROUNDS", "1"))
SEED = int(os.environ.get("GANGLINE_FAULT_SEED", random.SystemRandom().randrange(2**31)))

pytestmark = [pytest.mark.faults, pytest.mark.integration, pytest.mark.torch]


@pytest.fixture
def resources() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def cases() -> Iterator[object]:
    for number in range(ROUNDS):
        for fault in FAULTS:
            marks = [pytest.mark.root] if fault.needs == "root" else []
            if fault.needs == "memory group":
                marks = [pytest.mark.memory_group]
            yield pytest.param(fault, SEED + number, id=f"{fault.name}-{number}", marks=marks)


def begin(fault: Fault, seed: int, home: Path, folder: Path, resources: ExitStack) -> Scene:
    code = folder / "code"
    for made in (code, folder / "orders"):
        made.mkdir()
    (code / "train.py").write_text(SCRIPT)
    checkpoints = resources.enter_context(small_disk(folder / "disk")) / "saved" if fault.on_disk else None
    asked = spec(
        script="train.py",
        resources={"nodes": 2, "procs_per_node": 2},
        environment={"env": {"ORDERS": str(folder / "orders")}},
        checkpoint={} if checkpoints is None else {"path": str(checkpoints)},
        watch={"hang_timeout": fault.hang_timeout_s},
        restarts={
            "max_restarts": 50,
            "same_failure_limit": 0,
            "max_infrastructure_restarts": 20,
            "backoff": 0.1,
            "max_backoff": 0.2,
        },
    )
    client = resources.enter_context(connect())
    run_id = submit(asked, root=code, client=client)["id"]
    return Scene(client=client, run_id=run_id, home=home, folder=folder, chance=random.Random(seed))


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("fault", "seed"), list(cases()))
def test_a_fault_is_told_and_survived(
    home: Path, tmp_path: Path, resources: ExitStack, fault: Fault, seed: int
) -> None:
    print("GANGLINE_FAULT_SEED", seed)
    scene = begin(fault, seed, home, tmp_path, resources)
    victim = scene.chance.randrange(RANKS)
    scene.until(lambda: scene.client.run(scene.run_id)["attempts"] and scene.saved(0), "the first checkpoint")
    time.sleep(scene.chance.uniform(0.0, 0.5))
    fault.strike(scene, victim)
    scene.order("go-on")
    if fault.reasons:
        scene.until(lambda: scene.client.run(scene.run_id)["attempts"][0]["outcome"], "the end of the first attempt")
    for undo in scene.undo:
        undo()
    run = scene.wait_for_the_end()
    assert (run["phase"], run["step"]) == ("succeeded", STEPS), run["message"]
    first = run["attempts"][0]
    if fault.reasons:
        assert first["reason"] in fault.reasons, first["message"]
        scene.check_resume(0)
    else:
        assert len(run["attempts"]) == 1
    if fault.reasons and fault.blames:
        assert first["first_failure"]["rank"] == victim, first["message"]
    kept = [one["step"] for one in scene.client.checkpoints(scene.run_id) if one["state"] == "complete"]
    assert max(kept) == STEPS - STEPS % EVERY
    scene.check_logs()
    if fault.name == "clock shift":
        assert scene.clock_spread_s() > 3000.0, "the fault was not felt"
    scene.check_nothing_left()
