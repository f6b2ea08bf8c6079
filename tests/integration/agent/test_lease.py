"""A gang that nobody wants any more ends by itself, as a stopped one does: at a step, with a checkpoint."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Gang

pytestmark = pytest.mark.integration

STEPS = """
    import time, gangline
    step = 0
    while not gangline.should_stop():
        step += 1
        print("step", step, flush=True)
        time.sleep(0.02)
    with gangline.checkpoint(step=step) as folder:
        (folder / f"rank-{gangline.current().rank}").write_text(str(step))
    print("saved", step, flush=True)
"""


def test_it_ends_with_a_checkpoint_once_nobody_renews(gang: Gang) -> None:
    gang.script(STEPS)
    gang.start(procs_per_node=2, lease_s=2.0)
    gang.until_said("step 3")
    for _ in range(4):
        with gang.run.control.open("a") as file:
            file.write(json.dumps({"seq": 0, "t": 0.0, "kind": "renew"}) + "\n")
        steps = gang.log().count("step ")
        gang.until(lambda before=steps: gang.log().count("step ") > before + 20)
    assert gang.events("stopping") == []
    gang.wait()
    result = gang.result()
    assert (result["outcome"], result["reason"], result["exit_code"]) == ("stopped", "lease_ended", 129)
    assert result["next"] == "end"
    assert "nobody renewed" in result["message"]
    saved = gang.log().rpartition("saved ")[2]
    assert gang.log(1).rpartition("saved ")[2] == saved
    assert len(list(gang.run.checkpoints.glob("step-*/manifest.json"))) == 1
