from __future__ import annotations

from pathlib import Path

import pytest

from gangline.control.stacks import newest_answer
from gangline.domain.errors import NotFound
from gangline.rundir.files import write_json
from gangline.rundir.layout import RunDir


def save(run: RunDir, name: str, **keys: object) -> None:
    path = run.attempt(0).gang_stacks(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {"version": 1, "id": name, "attempt": 0, **keys})


def test_of_two_dumps_of_one_second_the_later_one_is_the_newest(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    save(run, "20261130T100000-asked-ffffff", time=10.1)
    save(run, "20261130T100000-asked-000000", time=10.7)
    save(run, "20261130T100001-asked-aaaaaa", time=11.0, refused="no attempt runs")
    assert newest_answer(run, attempt=None)["id"] == "20261130T100000-asked-000000"


def test_answers_that_say_nothing_are_none(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    save(run, "a", time=1.0, refused="no attempt runs")
    run.attempt(0).gang_stacks("b").write_text("torn {")
    with pytest.raises(NotFound, match="No stacks were taken"):
        newest_answer(run, attempt=None)
