"""Two runs do the same when nothing but the names of their tasks differs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gangline.client import Environment, RunSpec
from gangline.domain.spec import EntryKind, SnapshotRef
from metaflow_extensions.gangline.plugins.task import BEGAN, VARIABLE
from metaflow_extensions.gangline.plugins.work import name_work

ARGS = ("--quiet", "step", "train", "--run-id", "1", "--task-id=7", "--input-paths", "1/start/2", "--split-index", "0")
SPEC = RunSpec(
    name="f-train",
    entry_kind=EntryKind.SCRIPT,
    entry="flow.py",
    args=ARGS,
    environment=Environment(env={VARIABLE: "{}", BEGAN: "1.0", "COLOUR": "blue"}),
    inherited_env={"OMP_NUM_THREADS": "2", "XDG_SESSION_ID": "4"},
    labels={"metaflow.run": "1"},
    snapshot=SnapshotRef(digest="ab", workdir="."),
)


def test_another_task_of_another_run_may_do_the_same() -> None:
    other = replace(
        SPEC,
        args=("--quiet", "step", "train", "--run-id=2", "--task-id", "9", "--input-paths=2/start/4", *ARGS[-2:]),
        environment=Environment(env={VARIABLE: "{1}", BEGAN: "2.0", "COLOUR": "blue"}),
        inherited_env={"OMP_NUM_THREADS": "2", "XDG_SESSION_ID": "5"},
        labels={"metaflow.run": "2"},
    )
    assert name_work(other, "inputs") == name_work(SPEC, "inputs") != ""


@pytest.mark.parametrize(
    "change",
    [
        {"args": (*ARGS[:-1], "1")},
        {"environment": Environment(env={"COLOUR": "red"})},
        {"inherited_env": {"OMP_NUM_THREADS": "3"}},
        {"snapshot": SnapshotRef(digest="cd", workdir=".")},
        {"strategy": "fsdp"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_whatever_decides_what_is_done_tells_them_apart(change: dict[str, object]) -> None:
    assert name_work(replace(SPEC, **change), "inputs") != name_work(SPEC, "inputs")  # type: ignore[arg-type]


def test_other_inputs_are_other_work_and_unknown_ones_none() -> None:
    assert name_work(SPEC, "inputs") != name_work(SPEC, "others")
    assert name_work(SPEC, None) == name_work(replace(SPEC, snapshot=None), "inputs") == ""
