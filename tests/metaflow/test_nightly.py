"""The whole pipeline of the examples: data, a gang, a frozen model, evaluations, promotion, and what this starts."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.metaflow.flowruns import kill, said

if TYPE_CHECKING:
    from tests.metaflow.flowruns import Flows

pytestmark = [pytest.mark.integration, pytest.mark.metaflow, pytest.mark.torch, pytest.mark.timeout(400)]
NIGHTLY = Path(__file__).parents[2] / "examples/pipelines/nightly"


@pytest.fixture
def nightly(flows: Flows) -> Flows:
    for script in NIGHTLY.glob("*.py"):
        shutil.copy(script, flows.project)
    return flows


def gang_of(flows: Flows) -> dict[str, Any]:
    """The newest gang run of the flow of this test."""
    (run,) = flows.client.list_runs(labels=[f"metaflow.run={flows.newest('FineTuneFlow')}", "metaflow.step=train"])
    return flows.client.run(run["id"])


def test_a_model_is_trained_through_the_loss_of_a_rank_evaluated_promoted_and_released(nightly: Flows) -> None:
    process = nightly.start("finetune", "run", "--steps", "400")
    nightly.until(lambda: "[rank 3] rank 3 of 4 begins at step 0" in said(process), process)
    run = gang_of(nightly)
    nightly.until(lambda: nightly.client.checkpoints(run["id"]), process)
    kill(run["attempts"][0]["ranks"][2]["pid"])
    nightly.until(lambda: process.poll() is not None, process)
    assert process.returncode == 0, said(process)
    assert [one["outcome"] for one in gang_of(nightly)["attempts"]] == ["failed", "succeeded"]
    assert "[rank 3] rank 3 of 4 begins at step 50" in said(process) or "begins at step 100" in said(process)

    promoted = nightly.task("FineTuneFlow", "promote")["data"]["promoted"]
    assert run["id"] in promoted
    tags = tags_of(nightly)
    assert "prod-ready" in tags
    assert any(tag.startswith("data:english@") for tag in tags)

    code, output = nightly.run("release", "--trigger", f"FineTuneFlow/{nightly.newest('FineTuneFlow')}", "run")
    assert code == 0, output
    assert "It writes:" in output


def test_an_evaluation_that_crashes_loses_no_other_and_blocks_promotion(nightly: Flows) -> None:
    code, output = nightly.run("finetune", "run", "--steps", "20", "--most-bits", "8", "--crash", "types")
    assert code == 1
    assert "stays what it is: types crashed (the evaluation of types was asked to crash)." in output
    judged = nightly.task("FineTuneFlow", "judge")["data"]["scores"]
    assert "keywords" in judged
    assert "language" in judged
    assert "types" not in judged
    assert "prod-ready" not in tags_of(nightly)
    code, output = nightly.run("release", "run")
    assert code == 1
    assert "No run of FineTuneFlow was promoted yet" in output


def tags_of(flows: Flows) -> list[str]:
    """The tags of the newest run, as Metaflow's client reads them."""
    code = (
        "import json, sys; from metaflow import Run, namespace; namespace(None);"
        "print(json.dumps(sorted(Run(sys.argv[1]).tags)))"
    )
    pathspec = f"FineTuneFlow/{flows.newest('FineTuneFlow')}"
    done = subprocess.run(
        [sys.executable, "-c", code, pathspec],
        cwd=flows.project,
        env=flows.env,
        capture_output=True,
        text=True,
        check=True,
    )
    return list(json.loads(done.stdout))
