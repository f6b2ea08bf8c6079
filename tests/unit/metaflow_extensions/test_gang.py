"""The parts of the extension that need no flow."""

import importlib.metadata
import sys

import pytest

pytestmark = pytest.mark.metaflow

from gangline.testing.commands import make_detail, make_summary  # noqa: E402
from metaflow_extensions.gangline.plugins.outcome import describe_end  # noqa: E402
from metaflow_extensions.gangline.plugins.request import rank_arguments  # noqa: E402
from metaflow_extensions.gangline.plugins.task import VARIABLE, GangTask, task_of_rank  # noqa: E402

TASK = GangTask(flow="F", run="17", step="train", task="3", retry=1, tags=("a", "b"), split=2)


def test_a_rank_runs_what_the_trampoline_was_asked_for():
    argv = ["flow.py", "--quiet", "--tag", "gang", "gang", "step", "train", "--run-id", "17"]
    assert rank_arguments(argv, "train") == ["--quiet", "--tag", "gang", "step", "train", "--run-id", "17"]
    with pytest.raises(ValueError, match="no `gang step eval`"):
        rank_arguments(argv, "eval")


def test_the_task_travels_in_a_variable():
    assert task_of_rank({VARIABLE: TASK.to_text(), "GANGLINE_RUN_ID": "f-train-2abc"}) == TASK
    assert task_of_rank({VARIABLE: TASK.to_text()}) is None
    assert task_of_rank({"GANGLINE_RUN_ID": "f-train-2abc"}) is None


def test_the_key_tells_attempts_and_stores_apart_and_is_never_too_long():
    keys = {TASK.key("/a"), TASK.key("/b"), GangTask(flow="F", run="17", step="train", task="3", retry=0).key("/a")}
    assert len(keys) == 3
    assert TASK.key("/a") == TASK.key("/a")
    long = GangTask(flow="F" * 300, run="17", step="s" * 300, task="3", retry=0)  # K2
    assert len(long.key("/a")) <= 200


def test_the_error_names_rank_reason_and_log():
    failure = {"rank": 3, "node": 1, "host": "h", "error_type": "ValueError", "error_message": "boom"}
    attempt = {"number": 2, "first_failure": failure, "hint": "Mend it."}
    run = make_detail(make_summary(phase="failed", reason="user_error", message="It broke."), spec={}, client={})
    text = describe_end({**run, "attempts": [attempt]}, "train")
    assert "has failed (user_error)" in text
    assert "Rank 3 on node 1 (h), attempt 2: ValueError: boom" in text
    assert "gangline logs train-2abc --rank 3 --attempt 2" in text
    assert "Mend it." in text


def test_importing_metaflow_loads_no_client():
    import subprocess  # noqa: PLC0415

    code = (
        "import metaflow, sys; from metaflow import gang; print([m for m in sys.modules if m.startswith('gangline')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[]", done.stderr


def test_the_distribution_does_not_name_itself():
    """Metaflow would take that for an extension that needs itself, and could not be imported at all."""
    needed = importlib.metadata.requires("gangline") or []
    assert [line for line in needed if line.startswith("gangline")] == []
