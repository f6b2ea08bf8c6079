"""A resumed gang that is one of many goes on from the checkpoint of its own task, in whatever order they come."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.metaflow.flowruns import Flows

pytestmark = [pytest.mark.integration, pytest.mark.metaflow]
OWN = {"cats1": 101, "cats2": 102, "dogs1": 201}


def begins(output: str) -> dict[str, int]:
    return {what: int(step) for what, step in re.findall(r"(\w+) begins at (\d+)", output)}


def test_each_takes_its_own(flows: Flows) -> None:
    for name in ("train-fails", "tune-fails"):
        (flows.folder / name).touch()
    code, output = flows.run("parts", "run", OUTER="cats dogs", INNER="1 2")
    assert code == 1
    assert begins(output) == dict.fromkeys(OWN, 0), output
    (flows.folder / "train-fails").unlink()

    code, output = flows.run("parts", "resume", "start", OUTER="dogs cats", INNER="2 1")
    assert code == 1
    assert begins(output) == {**OWN, "round0": 0, "round1": 0}, output
    (flows.folder / "tune-fails").unlink()

    code, output = flows.run("parts", "resume", "--origin-run-id", flows.newest("PartsFlow"), OUTER="", INNER="")
    assert code == 0, output
    assert begins(output) == {"round1": 1001}
