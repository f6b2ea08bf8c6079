"""Steps in containers: what the process becomes, and where things lie."""

from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.metaflow

from pathlib import Path  # noqa: E402

from metaflow_extensions.gangline.plugins.elsewhere import (  # noqa: E402
    in_container,
    is_there,
    mounts_of,
    run_folder,
    trampoline_arguments,
)
from metaflow_extensions.gangline.plugins.task import GangTask  # noqa: E402

STEP = ["f.py", "--quiet", "--with=argo_workflows_internal:x=1", "step", "train", "--run-id", "argo-x"]


def test_a_step_that_an_orchestrator_has_started_becomes_what_starts_the_gang():
    assert trampoline_arguments(STEP, "train") == [*STEP[:3], "gang", *STEP[3:]]
    for other in (["f.py", "run"], ["f.py", "gang", "step", "train"], ["f.py", "kubernetes", "step", "train"]):
        assert trampoline_arguments(other, "train") is None
    assert trampoline_arguments(STEP, "evaluate") is None


@pytest.mark.parametrize("spelled", [["--retry-count", "2", "--max-user-code-retries", "1"], ["--retry-count=2"]])
def test_the_fallback_of_catch_is_no_gang(spelled):
    assert trampoline_arguments([*STEP, *spelled], "train") is None
    last = ["--retry-count", "1", "--max-user-code-retries", "1"]
    assert trampoline_arguments([*STEP, *last], "train") is not None


def test_a_container_is_known_by_what_orchestrators_set():
    assert in_container({"METAFLOW_KUBERNETES_WORKLOAD": "1"})
    assert in_container({"AWS_BATCH_JOB_ID": "a-b"})
    assert not in_container({"HOME": "/root"})


def test_mounts_are_those_of_the_host_and_memory_is_none():
    kubernetes = SimpleNamespace(
        name="kubernetes", attributes={"persistent_volume_claims": {"claim": "/data"}, "tmpfs_path": "/fast"}
    )
    batch = SimpleNamespace(name="batch", attributes={"host_volumes": ["/a:/b", "/c"], "efs_volumes": "fs-1"})
    assert mounts_of([kubernetes]) == ["/data"]
    assert mounts_of([batch]) == ["/b", "/c", "/mnt/fs-1"]
    assert is_there("/data/kept/", ["/data"])
    assert not is_there("/data/../kept", ["/data"])
    assert not is_there("/database", ["/data"])


def test_no_name_leads_out_of_the_volume():
    task = GangTask(flow="F", run="argo-x", step="train", task="../../etc", retry=0)
    assert run_folder(Path("/data"), task) == Path("/data/gangline/F/argo-x/train/--..-etc")
