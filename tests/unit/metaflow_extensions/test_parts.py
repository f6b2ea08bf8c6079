"""What a task is known by among the tasks of its step: its items, wherever they stand."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import PurePosixPath
from typing import Any

import pytest

from metaflow_extensions.gangline.plugins.parts import UNKNOWN, Frame, is_certain, name_part


class Colour(Enum):
    RED = 1


@dataclass
class Split:
    name: str
    seeds: set[int]


class Odd:
    """Known by its place in memory."""


def part(items: Any, index: int, *, stored: str | None = "abc", shown: str | None = None) -> str:
    return name_part([Frame(index=index, items=items, stored=stored, shown=shown, show=str)], [])


def test_an_item_keeps_its_name_in_another_order():
    assert part(["cats", "dogs"], 0) == part(["birds", "dogs", "cats"], 2)
    assert part(["cats", "dogs"], 0) != part(["cats", "dogs"], 1)


def test_equal_items_are_told_apart_by_their_turn():
    assert part([7, 8, 7], 2) == part([7, 7, 8], 1) != part([7, 7, 8], 0)


@pytest.mark.parametrize(
    "item",
    [
        {"b": [1, 2.5, None], "a": (b"x", True)},
        {"x", "y", "z"},
        Split(name="left", seeds={3, 1}),
        Colour.RED,
        PurePosixPath("/data/cats"),
        "x" * 100_000,
        "\udcff",
    ],
    ids=lambda item: type(item).__name__,
)
def test_what_is_told_by_its_parts_is_certain(item: object) -> None:
    assert is_certain(part([item], 0))


@pytest.mark.parametrize(
    ("one", "other"),
    [(1, True), (1, 1.0), ("1", 1), (["a,b"], ["a", "b"]), ({"a": 1}, [("a", 1)]), ("x" * 40 + "a", "x" * 40 + "b")],
)
def test_what_differs_has_another_name(one: object, other: object) -> None:
    assert part([one], 0) != part([other], 0)


def test_what_no_text_tells_is_known_by_its_artifact_and_no_longer_than_that():
    items = [Odd(), Odd()]
    assert part(items, 0) == part(items, 0) != part(items, 1)
    assert part(items, 0) != part(items, 0, stored="other")
    assert not is_certain(part(items, 0))
    assert part(items, 0, stored=None) == UNKNOWN


def test_nobody_knows_what_is_gone_or_was_replaced():
    assert part(None, 0) == UNKNOWN
    assert part(["cats"], 0, shown="dogs") == UNKNOWN
    assert part(["cats"], 1) == UNKNOWN
    assert not is_certain(UNKNOWN)


def test_all_levels_and_the_round_count():
    outer = [Frame(index=at, items=["cats", "dogs"], stored=None, shown=None, show=str) for at in (0, 1)]
    inner = Frame(index=0, items=[1], stored=None, shown=None, show=str)
    names = {name_part([one, inner], rounds) for one in outer for rounds in ([], [0], [1])}
    assert len(names) == 6
    assert name_part([], []) == ""
    assert name_part([], [2]) == "round-2"


def test_an_iterator_is_read_as_metaflow_reads_it():
    assert part({"cats"}, 0) == part(["cats"], 0)
