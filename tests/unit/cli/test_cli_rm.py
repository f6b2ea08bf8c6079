"""`gangline rm`: what would go is said and asked; what lives stays."""

from __future__ import annotations

import io
import json
import sys
from typing import Any

import pytest

DAY_S = 86_400.0


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A person at the terminal who types this."""

    def give(text: str) -> None:
        monkeypatch.setattr(sys, "stdin", Terminal(text))

    return give


@pytest.fixture
def ended(client: Any, make: Any) -> None:
    client.runs["a-1"] = make.run(id="a-1", phase="failed", ended=make.now - 40 * DAY_S)
    client.runs["b-2"] = make.run(id="b-2", phase="succeeded", ended=make.now - DAY_S)
    client.runs["c-3"] = make.run(id="c-3", phase="running")


def removed(client: Any) -> list[Any]:
    return [what for name, what in client.calls if name == "remove"]


@pytest.mark.usefixtures("ended")
def test_it_says_how_much_would_go_and_asks(gangline: Any, client: Any, answer: Any) -> None:
    answer("y\n")
    result = gangline("rm", "a-1", "b-2", "a-1")
    assert result.code == 0
    assert "a-1: 3.0 GB, 1.0 GB of it 2 checkpoints, which go too" in result.err
    assert "Remove 2 runs, 6.0 GB in all?" in result.err
    assert removed(client) == [("a-1", False), ("b-2", False)]
    assert "a-1 is removed: 3.0 GB." in result.out
    assert "5.0 MB of stored code that no run uses are freed." in result.out


@pytest.mark.usefixtures("ended")
@pytest.mark.parametrize("said", ["n\n", "\n", ""])
def test_without_a_yes_nothing_is_removed(gangline: Any, client: Any, answer: Any, said: str) -> None:
    answer(said)
    assert gangline("rm", "a-1").code == 130
    assert removed(client) == []


@pytest.mark.usefixtures("ended")
def test_where_nobody_can_be_asked_it_says_what_to_add(gangline: Any, client: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    result = gangline("rm", "a-1")
    assert result.code != 0
    assert "Nothing was removed: 1 run (3.0 GB) would be" in result.err
    assert "--yes" in result.err
    assert removed(client) == []


@pytest.mark.usefixtures("ended")
def test_kept_checkpoints_are_not_counted(gangline: Any, client: Any, answer: Any) -> None:
    answer("y\n")
    result = gangline("rm", "a-1", "--keep-checkpoints")
    assert "which are kept" in result.err
    assert "Remove 1 run, 2.0 GB in all?" in result.err
    assert removed(client) == [("a-1", True)]
    assert "Its checkpoints are in /home/ada/.gangline/kept/a-1." in result.out


@pytest.mark.usefixtures("ended")
def test_a_live_run_among_them_stops_all_and_says_what_to_do(gangline: Any, client: Any) -> None:
    result = gangline("rm", "--yes", "a-1", "c-3")
    assert result.code != 0
    assert "`c-3` is running" in result.err
    assert "gangline stop c-3 --wait" in result.err
    assert removed(client) == []


@pytest.mark.usefixtures("ended")
def test_one_that_is_gone_already_stops_none_of_the_others(gangline: Any, client: Any) -> None:
    result = gangline("rm", "--yes", "gone-0", "a-1")
    assert removed(client) == [("a-1", False)]
    assert result.code != 0
    assert "There is no run `gone-0`" in result.err


@pytest.mark.usefixtures("ended")
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--older-than", "30d"], ["a-1"]),
        (["--phase", "succeeded"], ["b-2"]),
        (["--phase", "failed", "--phase", "succeeded"], ["a-1", "b-2"]),
        (["--phase", "succeeded", "--older-than", "30d"], []),
    ],
)
def test_runs_are_chosen_by_age_and_phase(
    gangline: Any, client: Any, make: Any, monkeypatch: Any, options: list[str], expected: list[str]
) -> None:
    monkeypatch.setattr("gangline.cli.rm.time.time", lambda: make.now)
    result = gangline("rm", "--yes", *options)
    assert result.code == 0
    assert [run for run, _ in removed(client)] == expected
    assert ("No run was removed." in result.out) == (not expected)


@pytest.mark.usefixtures("ended")
@pytest.mark.parametrize("words", [[], ["a-1", "--older-than", "30d"], ["--phase", "running"], ["--older-than", "old"]])
def test_what_cannot_be_meant_removes_nothing(gangline: Any, client: Any, words: list[str]) -> None:
    assert gangline("rm", "--yes", *words).code != 0
    assert removed(client) == []


@pytest.mark.usefixtures("ended")
def test_json_has_what_was_removed(gangline: Any) -> None:
    said = json.loads(gangline("rm", "--yes", "--json", "a-1").out)
    assert [run["id"] for run in said["removed"]] == ["a-1"]
    assert said["freed"]["freed_bytes"] == 5_000_000
