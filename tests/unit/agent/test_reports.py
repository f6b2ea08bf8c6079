"""What nodes report, by the leader's clock: whose rank was first must not be a matter of whose clock is ahead."""

from __future__ import annotations

from typing import Any

import pytest

from gangline.agent.attempt import Attempt, Ending, RankRecord
from gangline.agent.launchspec import Shape
from gangline.agent.reports import note_exited, note_started

NOW = 1_000_000.0


def exited(rank: int, time: float, **keys: Any) -> dict[str, Any]:
    known = dict.fromkeys(("signal", "peak_rss_bytes", "error", "printed", "step", "total", "phase", "place", "left"))
    told = {"rank": rank, "pid": 1, "exit_code": 1, "ended_by": "self", "log_tail": "", "started": time - 5.0}
    return {**known, **told, "oom_kills": 0, "memory": None, "time": time, **keys}


@pytest.fixture
def attempt() -> Attempt:
    made = Attempt(number=0, launch=0, started=NOW, shape=Shape((0, 1), 1))
    made.ending = Ending(cause="failure", time=NOW + 3.0)
    return made


def hear(attempt: Attempt, node: int, ahead_s: float, told: dict[str, Any], *, heard: float) -> RankRecord:
    return note_exited(attempt, node, told, host=f"n{node}", ahead_s=ahead_s, heard=heard)


@pytest.mark.parametrize("ahead_s", [0.0, 2.5, -2.5, 7200.0, -7200.0])
def test_the_first_is_the_first_whatever_the_clock_of_its_node_says(attempt: Attempt, ahead_s: float) -> None:
    hear(attempt, 0, 0.0, exited(0, NOW + 1.0), heard=NOW + 1.0)
    error = {"type": "ValueError", "message": "", "traceback": "", "causes": [], "time": NOW + 0.5 + ahead_s}
    record = hear(attempt, 1, ahead_s, exited(1, NOW + 1.5 + ahead_s, error=error), heard=NOW + 1.6)
    first = attempt.first_failure()
    assert first is not None
    assert (first.rank, first.failed_at, first.ended) == (1, NOW + 0.5, NOW + 1.5)
    assert record.started == NOW - 3.5


def test_a_rank_that_left_before_is_known_by_the_leaders_clock_too(attempt: Attempt) -> None:
    hear(attempt, 0, 0.0, exited(0, NOW + 2.0), heard=NOW + 2.0)
    left = {"time": NOW + 1.0 + 30.0, "code": 0, "error": None}
    hear(attempt, 1, 30.0, exited(1, NOW + 1.1 + 30.0, exit_code=0, left=left), heard=NOW + 1.2)
    early = attempt.left_early()
    assert early is not None
    assert (early.rank, early.gone_at) == (1, NOW + 1.0)


@pytest.mark.parametrize("set_s", [3600.0, -3600.0])
def test_a_clock_that_was_set_since_its_node_joined_is_not_believed(attempt: Attempt, set_s: float) -> None:
    hear(attempt, 0, 0.0, exited(0, NOW + 1.0), heard=NOW + 1.0)
    error = {"type": "ValueError", "message": "", "traceback": "", "causes": [], "time": NOW + set_s + 1.4}
    hear(attempt, 1, 0.2, exited(1, NOW + 1.5 + set_s, error=error), heard=NOW + 1.6)
    first = attempt.first_failure()
    assert first is not None
    assert first.rank == 0
    assert attempt.ranks[1].failed_at == pytest.approx(NOW + 1.5)


def test_a_leader_that_stood_still_for_a_while_still_knows_who_was_first(attempt: Attempt) -> None:
    hear(attempt, 0, 0.0, exited(0, NOW + 1.0), heard=NOW + 20.0)
    hear(attempt, 1, 0.0, exited(1, NOW + 0.5), heard=NOW + 20.1)
    first = attempt.first_failure()
    assert first is not None
    assert first.rank == 1


def test_ranks_are_said_to_have_started_by_the_leaders_clock(attempt: Attempt) -> None:
    told = {"mode": "warm", "ranks": [{"rank": 1, "pid": 7, "time": NOW + 30.0}]}
    note_started(attempt, 1, told, host="n1", ahead_s=29.0)
    assert attempt.ranks[1].started == NOW + 1.0
