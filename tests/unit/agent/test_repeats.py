from __future__ import annotations

from typing import Any

from gangline.agent.attempt import RankRecord
from gangline.agent.repeats import Repeats


def failure(**changes: Any) -> RankRecord:
    return RankRecord(rank=changes.pop("rank", 1), node=0, host="h", **{"exit_code": 1, "ended": 5.0, **changes})


def raised(message: str, kind: str = "ValueError") -> dict[str, str]:
    return {"type": kind, "message": message}


def test_equal_failures_at_one_step_are_counted() -> None:
    repeats = Repeats()
    assert [repeats.note(failure(error=raised("bad")), step=7).count for _ in range(3)] == [1, 2, 3]


def test_numbers_in_messages_and_the_rank_make_no_difference() -> None:
    repeats = Repeats()
    repeats.note(failure(rank=0, error=raised("at 0x7f3a in process 812\nmore")), step=7)
    found = repeats.note(failure(rank=3, error=raised("at 0x11 in process 9\nother")), step=7)
    assert (found.count, found.what, found.step) == (2, "ValueError: at 0x11 in process 9", 7)


def test_another_step_type_or_signal_begins_anew() -> None:
    ends = [
        (failure(error=raised("bad")), 7),
        (failure(error=raised("bad")), 8),
        (failure(error=raised("bad", "KeyError")), 8),
        (failure(exit_code=None, signal=11), 8),
        (failure(exit_code=3), None),
    ]
    repeats = Repeats()
    assert [repeats.note(end, step=step).count for end, step in ends] == [1] * 5


def test_ends_that_no_rank_is_to_blame_for_are_told_by_their_words() -> None:
    repeats = Repeats()
    counts = [repeats.note(None, step=None, said=f"{size} MiB are left.").count for size in (4, 5)]
    assert counts == [1, 2]


def test_an_end_without_a_failed_rank_lies_between() -> None:
    repeats = Repeats()
    repeats.note(failure(), step=None)
    assert repeats.note(None, step=None).count == 0
    assert repeats.note(failure(), step=None).count == 1
