"""However a flow is ended, its gang ends with a checkpoint, and the next start goes on from there."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import pytest
from tests.metaflow.flowruns import PATIENCE_S, children, kill, said

if TYPE_CHECKING:
    from tests.metaflow.flowruns import Flows

pytestmark = [pytest.mark.integration, pytest.mark.metaflow]
ENDLESS = "steps=100000"


def begin(flows: Flows, asked: str = ENDLESS) -> tuple[Any, str]:
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


def killed(flows: Flows) -> str:
    """The run of a flow whose every process was killed, and whose gang trains on."""
    process, run = begin(flows)
    kill(process.pid, *children(process.pid))
    return run


def resume(flows: Flows, run: str) -> Any:
    """One more start of the flow, once it has taken the run up."""
    process = flows.start("steps", "resume", group=True, ASKED=ENDLESS)
    flows.until(lambda: "[rank 1] rank 1 begins at 0" in said(process), process)
    assert f"Run {run} does the very same" in said(process)
    return process


def test_a_gang_that_lives_is_taken_up_again_and_again_and_by_two_at_once(flows: Flows) -> None:
    run = killed(flows)
    again = resume(flows, run)
    cut_off = flows.newest("StepsFlow")
    kill(again.pid, *children(again.pid))
    both = [resume(flows, run) for _ in range(2)]
    (flows.folder / "enough").touch()
    for process in both:
        assert process.wait(PATIENCE_S) == 0, said(process)
    assert len(flows.runs()) == 1
    assert len(flows.client.run(run)["attempts"]) == 1
    numbers = [path.name for path in (flows.store / ".metaflow/StepsFlow").iterdir() if path.name.isdigit()]
    tasks = {number: flows.task("StepsFlow", "train", number) for number in numbers}
    assert [number for number in numbers if not tasks[number]["done"]] == [cut_off]
    assert len({task["data"]["token"] for task in tasks.values() if task["done"]}) == 1  # rank 0's of the one run


def test_a_gang_that_finished_while_the_flow_was_gone_is_not_run_again(flows: Flows) -> None:
    run = killed(flows)
    (flows.folder / "enough").touch()
    assert flows.ended(run)["phase"] == "succeeded"
    code, output = flows.run("steps", "resume", ASKED=ENDLESS)
    assert code == 0, output
    assert len(flows.runs()) == 1
    assert flows.task("StepsFlow", "train")["data"]["begin"] == "0"


def test_a_gang_of_other_code_is_stopped_and_its_checkpoint_taken(flows: Flows) -> None:
    run = killed(flows)
    code, output = flows.run("steps", "resume", ASKED="steps=2")
    assert code == 0, output
    assert flows.ended(run)["phase"] == "stopped"
    (saved,) = flows.client.checkpoints(run)
    assert flows.task("StepsFlow", "train")["data"]["begin"] == str(saved["step"])
