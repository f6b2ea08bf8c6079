from __future__ import annotations

import os
import pickle
from pathlib import Path

from gangline.agent import lastlook
from gangline.agent.lastlook import LastLook
from gangline.agent.watch import taking
from gangline.rundir.layout import AttemptDir

DUMP = """Current thread 0x00007f00 (most recent call first):
  File "/opt/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 2906 in all_reduce
  File "/home/ada/train.py", line 41 in <module>
"""


def test_a_rank_that_answers_is_where_its_dump_says(tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    folder = AttemptDir(tmp_path)
    sent: list[int] = []
    monkeypatch.setattr(lastlook, "_PATIENCE_S", 600.0)
    monkeypatch.setattr(taking, "handles_signal", lambda pid: pid != 7)
    monkeypatch.setattr(os, "kill", lambda pid, _number: sent.append(pid))
    folder.stacks(0).write_text("an older dump\n")
    look = LastLook(folder, {0: 5, 1: 6, 2: 7})
    assert sent == [5, 6]
    assert not look.is_over()
    for rank in (0, 1):
        with folder.stacks(rank).open("a") as file:
            file.write(DUMP)
    assert not look.is_over()  # it may still grow
    assert look.is_over()
    assert (look.place(0), look.place(2)) == ("waiting in all_reduce (train.py:41)", None)
    entry = {
        "process_group": ("0", "dp"),
        "collective_seq_id": 9,
        "profiling_name": "nccl:all_gather",
        "state": "started",
    }
    folder.nccl_record(1).write_bytes(pickle.dumps({"entries": [entry]}, protocol=2))
    assert look.place(1) == "waiting in all_reduce (train.py:41), all_gather number 9 of group dp"
    folder.stacks(0).write_text(
        "an older dump\nCurrent thread 0x00007f00 (most recent call first):\n  <no Python frame>\n"
    )
    assert look.place(0) is None  # its interpreter was ending


def test_a_rank_that_is_stopped_is_not_asked(tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(lastlook, "read_state", lambda pid: "stopped" if pid == 5 else "runs")
    monkeypatch.setattr(taking, "handles_signal", lambda _pid: True)
    sent: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, _number: sent.append(pid))
    look = LastLook(AttemptDir(tmp_path), {0: 5, 1: 6})
    assert sent == [6]
    assert look.place(0) == "stopped (SIGSTOP)"


def test_nobody_waits_long_for_a_rank_that_says_nothing(tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(taking, "handles_signal", lambda _pid: True)
    monkeypatch.setattr(os, "kill", lambda _pid, _number: None)
    monkeypatch.setattr(lastlook, "_PATIENCE_S", 600.0)
    assert not LastLook(AttemptDir(tmp_path), {0: 5}).is_over()
    monkeypatch.setattr(lastlook, "_PATIENCE_S", 0.0)
    look = LastLook(AttemptDir(tmp_path), {0: 5})
    assert look.is_over()
    assert look.place(0) is None
