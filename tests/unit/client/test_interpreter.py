"""What is to run the ranks is asked whether it is a Python, once."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from gangline.client.interpreter import check_python
from gangline.client.submission import prepare
from gangline.domain.errors import SpecInvalid
from gangline.domain.spec import EntryKind, Environment, RunSpec


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    return tmp_path / "state" / "interpreters.json"


def program(folder: Path, text: str) -> Path:
    path = folder / "python"
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("#!/bin/sh\nexit 0\n", "did not tell"),
        ("#!/bin/sh\necho hello\n", "did not tell"),
        ("#!/bin/sh\necho oops >&2\nexit 3\n", "ended with 3: oops"),
        ("#!/no/such/interpreter\n", "No such file"),
        ("\x7fELF garbage", "cannot be started"),
    ],
)
def test_what_is_no_python_is_refused_each_time(tmp_path: Path, memory: Path, text: str, why: str):
    python = program(tmp_path, text)
    for _ in range(2):
        with pytest.raises(SpecInvalid, match=r"is no Python that runs") as refused:
            check_python(python, memory=memory)
        assert why in str(refused.value)


def test_an_answer_is_remembered_until_the_file_changes(tmp_path: Path, memory: Path):
    asked = tmp_path / "asked"
    text = f'#!/bin/sh\necho x >> {asked}\nexec {sys.executable} "$@"\n'
    python = program(tmp_path, text)
    for _ in range(3):
        check_python(python, memory=memory)
    assert asked.read_text().split() == ["x"]
    os.utime(python, ns=(1, 1))
    check_python(python, memory=memory)
    assert asked.read_text().split() == ["x", "x"]


@pytest.mark.parametrize("damage", ["", "[]", "{", '{"a": 1}', "\x00"])
def test_a_damaged_memory_is_an_empty_one(tmp_path: Path, memory: Path, damage: str):
    memory.parent.mkdir()
    memory.write_text(damage)
    python = program(tmp_path, f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    check_python(python, memory=memory)
    assert str(python) in memory.read_text()


def test_a_memory_that_cannot_be_written_costs_nothing_but_time(tmp_path: Path):
    python = program(tmp_path, f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (tmp_path / "file").touch()
    check_python(python, memory=tmp_path / "file" / "memory.json")


def test_submit_asks_where_it_matters(tmp_path: Path):
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").touch()
    env = {"PATH": os.environ["PATH"], "HOME": "/nowhere", "GANGLINE_HOME": str(tmp_path / "state")}

    def ready(**spec: object) -> None:
        prepare(RunSpec(**spec), root=folder, cwd=folder, environ=env)

    no_python = Environment(python="/bin/true")
    for spec in ({"entry": "train.py"}, {"entry": "sh", "entry_kind": EntryKind.COMMAND}):
        with pytest.raises(SpecInvalid, match="/bin/true is no Python that runs"):
            ready(**spec, environment=no_python)
    ready(entry="train.py", environment=no_python, pool="elsewhere")
