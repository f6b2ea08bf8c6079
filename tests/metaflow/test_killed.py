"""However a flow is ended, its gang ends with a checkpoint, and the next start goes on from there."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest
from tests.metaflow.flowruns import children, kill, said

if TYPE_CHECKING:
    from tests.metaflow.flowruns import Flows

pytestmark = [pytest.mark.integration, pytest.mark.metaflow]
ENDLESS = "steps=100000"


def begin(flows: Flows, asked: str = ENDLESS) -> tuple[object, str]:
    process = flows.start("steps", "run", group=True, ASKED=asked)
    flows.until(lambda: "[rank 1] rank 1 begins at 0" in said(process), process)
    (run,) = flows.runs()
    return process, run["id"]


@pytest.mark.parametrize("how", ["interrupted", "terminated", "killed", "both killed"])
def test_the_gang_ends_with_a_checkpoint(flows: Flows, how: str) -> None:
    process, run = begin(flows, f"{ENDLESS},lease=8" if how in {"both killed", "interrupted"} else ENDLESS)
    trampolines = children(process.pid)
    if how == "interrupted":
        os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C does
    elif how == "terminated":
        process.terminate()
    elif how == "killed":
        process.kill()
    else:
        kill(process.pid, *trampolines)
    ended = flows.ended(run)
    assert ended["phase"] == "stopped"
    # Metaflow's runtime kills what has not ended 5 s after Ctrl-C: on a busy machine the lease is what is left then.
    assert ended["reason"] in ({"lease_ended"} if how == "both killed" else {"stopped_by_user", "lease_ended"})
    (saved,) = flows.client.checkpoints(run)
    assert saved["state"] == "complete"
    assert not flows.task("StepsFlow", "train")["ok"]
    if how == "both killed":
        code, output = flows.run("steps", "resume", ASKED="steps=2")
        assert code == 0, output
        assert flows.task("StepsFlow", "train")["data"]["begin"] == str(saved["step"])


def test_a_run_that_a_person_stops_is_no_finished_step(flows: Flows) -> None:
    process, run = begin(flows)
    flows.client.stop(run)
    assert process.wait(60) == 1
    assert "stopped (stopped_by_user)" in said(process)
    assert not flows.task("StepsFlow", "train")["ok"]
