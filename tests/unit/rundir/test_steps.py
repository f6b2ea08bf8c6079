from __future__ import annotations

import json
from pathlib import Path

from gangline.rundir.steps import read_last_step


def test_the_last_step_of_an_attempt(tmp_path: Path) -> None:
    path = tmp_path / "rank-00000.jsonl"
    lines = [{"k": "p", "a": 0, "s": 90}, {"k": "m", "a": 1, "s": 4}, {"k": "p", "a": 1, "s": 5}, {"k": "h", "a": 1}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"k":"p","a":1,"s":6')
    assert read_last_step(path, 1) == 5
    assert read_last_step(path, 0) == 90
    assert read_last_step(path, 2) is None


def test_only_the_end_of_a_large_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "rank-00000.jsonl"
    path.write_text("".join(json.dumps({"k": "p", "a": 0, "s": step}) + "\n" for step in range(20_000)))
    assert read_last_step(path, 0) == 19_999


def test_no_file_no_step(tmp_path: Path) -> None:
    assert read_last_step(tmp_path / "none", 0) is None
