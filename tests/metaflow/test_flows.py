"""`@gang` in real flows that are run on this machine."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.metaflow.flowruns import Flows

pytestmark = [pytest.mark.integration, pytest.mark.metaflow]
EXAMPLES = Path(__file__).parents[2] / "examples/pipelines"


def test_a_gang_is_one_task_with_the_artifacts_of_rank_0_and_metadata_both_ways(flows: Flows) -> None:
    code, output = flows.run("whole", "run", "--tag", "nightly", "--size", "7")
    assert code == 0, output
    train = flows.task("WholeFlow", "train")
    assert train["data"]["rank"] == "0"
    (run,) = flows.runs(step="train")
    assert train["data"]["run_id"] == repr(run["id"])
    for rank in range(2):
        line = f"rank {rank} of 2 in {run['id']}, light blue, size 7"  # T3: one id
        assert f"[rank {rank}] {line}" in output
        assert f"[rank {rank}] {line}" in train["stdout"]
        assert line in b"".join(flows.client.raw_log(run["id"], rank)).decode()
    join = flows.task("WholeFlow", "join")
    assert join["data"]["scores"] == "['cats-0', 'dogs-0']"
    assert sorted(one["labels"]["metaflow.split"] for one in flows.runs(step="evaluate")) == ["0", "1"]

    labels = {name.removeprefix("metaflow."): value for name, value in run["labels"].items()}
    told = {"flow": "WholeFlow", "run": flows.newest("WholeFlow"), "project": "pets", "branch": "user.alice"}
    assert told.items() <= labels.items()
    assert "nightly" in labels["tags"]
    assert train["metadata"]["gangline-run-id"] == run["id"]
    assert train["metadata"]["gangline-phase"] == "succeeded"
    assert flows.client.run(run["id"])["spec"]["stop"]["time_limit_s"] == 300.0  # of @timeout


def test_any_flow_becomes_gangs_by_an_option(flows: Flows) -> None:
    code, output = flows.run("plain", "run", "--with", f"gang:nodes=2,label=test.folder={flows.folder}")
    assert code == 0, output
    assert [run["nodes"] for run in flows.runs()] == [2, 2]
    assert "[rank 1] at the end" in output


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("nodez=2", "has no option `nodez`. Did you mean `nodes`?"),
        ("nodes=0", "It takes a whole number above 0"),
        ("strategy=dpp", "Did you mean `ddp`?"),
        ("lease_s=0", "Give it a number of seconds from 1 up"),
    ],
)
def test_a_wrong_option_is_said_before_anything_starts(flows: Flows, options: str, says: str) -> None:
    code, output = flows.run("plain", "run", "--with", f"gang:{options}")
    assert code == 1
    assert says in " ".join(output.split())
    assert "Workflow starting" not in output


def test_a_gang_that_fails_after_rank_0_was_done_is_run_again_by_resume(flows: Flows) -> None:
    code, output = flows.run("steps", "run", ASKED="fail=1")
    assert code == 1
    (first,) = flows.runs()
    assert re.search(r"Rank 1 on node 0 .*ValueError: rank 1 had trouble in attempt 0", output)
    assert f"gangline logs {first['id']} --rank 1" in output
    task = flows.task("StepsFlow", "train")
    assert not task["ok"]
    code, output = flows.run("steps", "resume", ASKED="fail=1")
    assert code == 0, output
    assert len(flows.runs()) == 2
    task = flows.task("StepsFlow", "train")
    assert (task["data"]["begin"], task["data"]["attempt"]) == ("3", "1")  # from the checkpoint of the first


def test_a_finished_gang_is_never_run_again(flows: Flows) -> None:  # P1
    (flows.folder / "check-fails").touch()
    code, output = flows.run("steps", "run")
    assert code == 1, output
    (flows.folder / "check-fails").unlink()
    code, output = flows.run("steps", "resume")
    assert code == 0, output
    assert len(flows.runs()) == 1


def test_restarts_inside_the_run_use_up_no_attempts(flows: Flows) -> None:
    code, output = flows.run("steps", "run", ASKED="fail=1,restarts=1")
    assert code == 0, output
    (run,) = flows.runs()  # T4: one run for all attempts
    assert [one["outcome"] for one in flows.client.run(run["id"])["attempts"]] == ["failed", "succeeded"]
    task = flows.task("StepsFlow", "train")
    assert (task["data"]["begin"], task["data"]["attempt"]) == ("3", "1")
    assert "begins at 3, attempt 1, retry 0" in task["stdout"]


def test_a_retry_goes_on_from_the_checkpoint(flows: Flows) -> None:  # P2
    code, output = flows.run("steps", "run", "--with", "retry:times=1,minutes_between_retries=0", ASKED="fail=1")
    assert code == 0, output
    task = flows.task("StepsFlow", "train")
    assert (task["data"]["begin"], task["data"]["attempt"]) == ("3", "1")
    assert "begins at 3, attempt 1, retry 1" in task["stdout"]


def test_catch_gets_the_rank_that_failed(flows: Flows) -> None:
    code, output = flows.run("steps", "run", "--with", "catch:var=trouble", ASKED="fail=always")
    assert code == 0, output
    assert "rank 1 had trouble" in flows.task("StepsFlow", "train")["data"]["trouble"]


@pytest.mark.torch
def test_the_example_works(flows: Flows) -> None:
    shutil.copy(EXAMPLES / "halves.py", flows.project)
    code, output = flows.run("halves", "run", "--steps", "50")
    assert code == 0, output
    assert "left 100%" in output
