"""Gangs that no server looks after."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from gangline.alone import Gang, Plan, read_end
from gangline.domain.spec import Environment, Resources, RunSpec
from gangline.rundir.checkpoints import list_checkpoint_folders
from gangline.rundir.layout import RunDir

pytestmark = pytest.mark.integration
TRAIN = """
import os, sys, time
import gangline
found = gangline.latest_checkpoint()
print("rank", os.environ["RANK"], "from", found and found.step, "secret", os.environ.get("TOKEN"))
with gangline.checkpoint(step=1 if found is None else found.step + 1) as folder:
    (folder / os.environ["RANK"]).write_text("x")
print("saved")
if "forever" in sys.argv:
    while not gangline.should_stop():
        time.sleep(0.05)
if "fail" in sys.argv and os.environ["RANK"] == "1":
    raise ValueError("no luck")
"""


def plan(tmp_path: Path, *args: str, ranks: int = 2) -> Plan:
    code = tmp_path / "code"
    code.mkdir(exist_ok=True)
    (code / "train.py").write_text(TRAIN)
    spec = RunSpec(
        entry="train.py",
        args=args,
        resources=Resources(procs_per_node=ranks),
        environment=Environment(python=sys.executable),
    )
    return Plan(run_id="train-2abc", spec=spec, folder=tmp_path / "run", code=code)


def test_a_later_launch_goes_on_from_what_an_earlier_one_has_saved(tmp_path: Path) -> None:
    first = Gang(plan(tmp_path, "fail"), environ={**os.environ, "TOKEN": "hush"})
    first.start()
    said = list(first.follow())
    assert any(rank == 1 and "rank 1 from None secret hush" in text for rank, text in said)
    ended = read_end(tmp_path / "run")
    assert (ended.phase, ended.reason) == ("failed", "user_error")
    assert ended.attempts[0]["first_failure"]["error_message"] == "no luck"
    run = RunDir(tmp_path / "run")
    assert all("hush" not in path.read_text() for path in (run.spec, run.launch(0).spec))

    second = Gang(plan(tmp_path))
    assert second.first_attempt == 1
    second.start()
    assert any("rank 0 from 1" in text for rank, text in list(second.follow()) if rank == 0)
    ended = read_end(tmp_path / "run", first_attempt=1)
    assert ended.phase == "succeeded"
    assert ended.checkpoint is not None
    assert len(list_checkpoint_folders(run.checkpoints)) == 2


def test_a_gang_that_is_told_to_end_saves_first(tmp_path: Path) -> None:
    gang = Gang(plan(tmp_path, "forever"))
    gang.start()
    saved: set[int | None] = set()
    for rank, text in gang.follow():
        if "saved" in text and rank not in saved:
            saved.add(rank)
            if saved == {0, 1}:
                gang.preempt()
    ended = read_end(tmp_path / "run")
    assert (ended.phase, ended.reason) == ("failed", "preempted")
    assert ended.checkpoint is not None
