"""`@gang` in the containers that Argo Workflows and Step Functions start, by the very commands that they are given.

No cluster and no AWS is here: S3, states, Batch and the foreach table are moto's, containers are clean folders with an
interpreter that has neither Metaflow nor Gangline.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.metaflow.containers import Argo, Container, StepFunctions
from tests.metaflow.flowruns import children

from gangline.rundir.checkpoints import parse_folder_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.metaflow.containers import Machines

pytestmark = [pytest.mark.integration, pytest.mark.metaflow, pytest.mark.timeout(900)]
CREATE = ("argo-workflows", "create", "--only-json")


def test_argo_runs_a_gang_of_three_in_each_pod_and_artifacts_flow_to_the_join(
    deploy: Callable[..., str], machines: Machines
) -> None:
    argo = Argo(json.loads(deploy("three", *CREATE)), machines)
    start = argo.run("start")
    assert json.loads(start.out("splits")) == [0, 1]
    above = f"argo-three-x7k2p/start/{start.out('task_id')}"
    pods = [argo.start("train", input_paths=above, split_index=str(split)) for split in (0, 1)]
    for pod, what in zip(pods, ("cats", "dogs"), strict=True):
        assert pod.wait() == 0, pod.output
        check_three_ranks(pod, what)
    join = argo.run("join", input_paths=above, split_cardinality="2")
    assert "seen ['cats', 'dogs'] by ranks [0, 0]" in join.output


def test_step_functions_run_a_gang_of_three_in_each_job_and_artifacts_flow_to_the_join(
    deploy: Callable[..., str], machines: Machines
) -> None:
    flow = StepFunctions(json.loads(deploy("three", "step-functions", "create", "--only-json")), machines)
    flow.run("start", job="job-0", parameters='{"size": 7}')
    for index, what in enumerate(("cats", "dogs")):
        check_three_ranks(flow.run("train", job=f"job-1-{index}", parent="job-0", index=str(index)), what, size=7)
    join = flow.run("join", job="job-2", parent="job-0")
    assert "seen ['cats', 'dogs'] by ranks [0, 0]" in join.output


def check_three_ranks(container: Container, what: str, *, size: int = 2) -> None:
    for rank in range(3):
        assert f"[rank {rank}] rank {rank} of 3 on container with {what}, size {size}" in container.output


def test_a_rank_that_fails_fails_the_pod_and_a_retry_goes_on_from_the_volume(
    deploy: Callable[..., str], machines: Machines, tmp_path: Path
) -> None:
    argo = Argo(json.loads(deploy("kept", *CREATE, put=("VOLUME", str(tmp_path / "volume")))), machines)
    assert argo.template("start")["retryStrategy"]["limit"] == 1
    failed = argo.start("start", env={"FAILS": "1"})
    assert failed.wait() == 1, failed.output
    assert "Rank 1 on node 0" in failed.output
    assert "ValueError: rank 1 had trouble in attempt 0" in failed.output
    again = argo.start("start", retries=1, env={"FAILS": "1"})
    assert again.wait() == 0, again.output
    assert "rank 0 begins at 3, attempt 1, retry 1" in again.output
    end = argo.run("end", input_paths=f"argo-three-x7k2p/start/{again.out('task_id')}")
    assert "began at 3, trouble: None" in end.output
    check_labels(tmp_path / "volume", argo)


def check_labels(volume: Path, argo: Argo) -> None:
    (path,) = (volume / "gangline/KeptFlow/argo-three-x7k2p/start").iterdir()
    labels = json.loads((path / "spec.json").read_text())["labels"]
    told = {name.removeprefix("metaflow."): value for name, value in labels.items()}
    env = {one["name"]: one.get("value") for one in argo.template("start")["container"]["env"]}
    assert told == {
        "flow": "KeptFlow",
        "run": "argo-three-x7k2p",
        "step": "start",
        "task": f"KeptFlow/argo-three-x7k2p/start/{path.name}",
        "attempt": "1",
        "user": "argo-workflows",
        "project": "pets",
        "branch": "user.alice",
        "production_token": env["METAFLOW_PRODUCTION_TOKEN"],
        "workflow": "three-x7k2p",
    }


def test_a_pod_that_is_told_to_end_saves_and_the_next_one_goes_on_there(
    deploy: Callable[..., str], machines: Machines, tmp_path: Path
) -> None:
    argo = Argo(json.loads(deploy("kept", *CREATE, put=("VOLUME", str(tmp_path / "volume")))), machines)
    pod = argo.start("start", env={"STEPS": "1000000"})
    for rank in range(2):  # one that has not begun would have nothing to save
        pod.until(f"[rank {rank}] rank {rank} begins at 0")
    os.kill(trampoline_of(pod), signal.SIGTERM)
    assert pod.wait() == 1, pod.output
    assert "the gang saves, and ends" in pod.output
    (saved,) = (tmp_path / "volume").glob("gangline/KeptFlow/*/start/*/checkpoints/latest")
    step, *_ = parse_folder_name(saved.resolve().name) or (0,)
    assert step > 0
    again = argo.start("start", retries=1)
    assert again.wait() == 0, again.output
    assert f"rank 1 begins at {step}, attempt 1, retry 1" in again.output


def trampoline_of(pod: Container) -> int:
    """The process that runs the step, below the shells of the pod."""
    below = [pod.process.pid]
    while below:
        pid = below.pop()
        command = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        if "gang" in command and command[0].endswith("python"):
            return pid
        below += children(pid)
    raise AssertionError(pod.output)


def test_catch_gets_the_rank_that_failed_in_a_pod_of_before(
    deploy: Callable[..., str], machines: Machines, tmp_path: Path
) -> None:
    given = ("--with", "catch:var=trouble", *CREATE)
    argo = Argo(json.loads(deploy("kept", *given, put=("VOLUME", str(tmp_path / "volume")))), machines)
    failed = argo.start("start", retries=1, env={"FAILS": "9"})
    assert failed.wait() == 1, failed.output
    fallback = argo.start("start", retries=2, env={"FAILS": "9"})
    assert fallback.wait() == 0, fallback.output
    end = argo.run("end", input_paths=f"argo-three-x7k2p/start/{fallback.out('task_id')}")
    assert "rank 1 had trouble" in end.output, end.output


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("procs_per_node=2, nodes=2", "its container is one node"),
        ('checkpoint_path="/data/kept"', "on the disk of its container, and that is lost with it"),
    ],
)
def test_what_a_container_cannot_do_is_refused_when_it_is_deployed(
    deploy: Callable[..., str], text: str, says: str
) -> None:
    said = deploy("three", *CREATE, put=("procs_per_node=3", text), code=1)
    assert says in " ".join(said.split())


def test_a_pool_needs_gangline_in_the_image(deploy: Callable[..., str], machines: Machines) -> None:
    argo = Argo(json.loads(deploy("kept", *CREATE, put=('volume="VOLUME"', 'pool="lab"'))), machines)
    pod = argo.start("start")
    assert pod.wait() == 1, pod.output
    assert "Install Gangline into the image" in pod.output
