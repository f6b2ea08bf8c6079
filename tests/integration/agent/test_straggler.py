"""A real gang with one slow rank."""

from __future__ import annotations

from .conftest import Gang

SCRIPT = """
import os, time
from pathlib import Path
import gangline

rank, here = int(os.environ["RANK"]), Path(os.environ["GANGLINE_RUN_DIR"])
step = 0
while not (here / "end").exists():
    step += 1
    slow = rank == 1 and not (here / "fast").exists()
    time.sleep(0.3 if slow else 0.1)
    gangline.progress(step)
"""


def test_a_slow_rank_is_told_of_until_it_keeps_up(gang: Gang) -> None:
    gang.script(SCRIPT)
    gang.start(nodes=2, procs_per_node=1, watch={"straggler_factor": 1.5, "straggler_window_s": 4.0})
    gang.until(lambda: gang.events("straggler"))
    told = gang.events("straggler")[0]
    assert (told["rank"], told["on"]) == (1, True)
    assert told["text"].startswith("Rank 1 on node 1 (")
    assert "takes 0." in told["text"]
    assert "Likely cause: " in told["text"]
    assert told["ratio"] >= 1.5
    (gang.run.path / "fast").touch()
    gang.until(lambda: not gang.events("straggler")[-1]["on"])
    (gang.run.path / "end").touch()
    gang.wait()
    assert gang.result()["outcome"] == "succeeded"
