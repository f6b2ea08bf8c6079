"""Which rank is told to be slow, and why."""

from __future__ import annotations

from typing import Any

import pytest

from gangline.agent import pacing
from gangline.agent.members import Member
from gangline.agent.pacing import StragglerWatch, decide_period_s, parse_steps
from gangline.agent.stragglers import Finding, Pace, describe_cause
from gangline.domain.spec import WatchPolicy

WINDOW_S = 10.0


def run(
    step_s: dict[int, float],
    *,
    lag_s: dict[int, float] | None = None,
    load: dict[int, dict[str, Any]] | None = None,
    seconds: float = 12.0,
    report: bool = True,
) -> list[Finding]:
    """Ranks that need `step_s` for each step and report it `lag_s` after that; looked at in the end."""
    pace = Pace(factor=1.5, window_s=WINDOW_S)
    for second in range(int(seconds) + 1):
        for rank, each_s in step_s.items():
            first, last = int((second - 1) / each_s) + 1, int(second / each_s)
            lag = (lag_s or {}).get(rank, 0.0)
            steps = [(step, step * each_s + lag) for step in range(max(first, 0), last + 1)] if report else []
            pace.note(rank, steps, (load or {}).get(rank, {}), {}, float(second))
    return pace.find()


def test_ranks_that_keep_up_are_not_told_of():
    assert run(dict.fromkeys(range(4), 0.5)) == []
    assert run({0: 0.5, 1: 0.52, 2: 0.6, 3: 0.5}) == []


def test_a_rank_whose_steps_take_longer_is_told_of():
    (found,) = run({0: 0.25, 1: 0.25, 2: 0.75, 3: 0.25})
    assert found.rank == 2
    assert found.text == "takes 0.75 s for a step, the median of the others 0.25 s"
    assert found.ratio == 3.0


def test_the_rank_for_which_the_others_wait_is_told_of():
    (found,) = run(dict.fromkeys(range(4), 0.5), lag_s={2: 0.3})
    assert found.rank == 2
    assert found.text.startswith("is the last in ")
    assert "it needs 0.5 s, the median of the others 0.2 s, and they wait for it" in found.text


def test_a_small_lag_is_noise():
    assert run(dict.fromkeys(range(4), 0.5), lag_s={2: 0.05}) == []


def test_nothing_is_said_before_the_window_is_covered():
    assert run({0: 0.25, 1: 0.25, 2: 0.75}, seconds=4.0) == []


def test_steps_of_one_rank_alone_say_nothing():
    assert run({0: 0.25}) == []
    pace = Pace(factor=1.5, window_s=WINDOW_S)
    for second in range(12):
        pace.note(0, [(second, float(second))], {}, {}, float(second))
        pace.note(1, [], {}, {}, float(second))
    assert pace.find() == []


def test_a_rank_that_cannot_run_while_its_peers_can_is_probable():
    loads = {0: {"delay": 0.02}, 1: {"delay": 0.45}, 2: {"delay": 0.01}}
    (found,) = run(dict.fromkeys(loads, 0.5), load=loads, report=False)
    assert found == Finding(rank=1, text="probably holds the others up: it cannot run 45% of the time, they 2%")
    crowded = {rank: {"delay": 0.45} for rank in range(3)}
    assert run(dict.fromkeys(crowded, 0.5), load=crowded, report=False) == []


def test_a_stopped_rank_cannot_run():
    loads = {0: {"delay": 0.0, "state": "S"}, 1: {"delay": 0.0, "state": "T"}}
    (found,) = run(dict.fromkeys(loads, 0.5), load=loads)
    assert found.rank == 1


def test_a_rank_that_ended_is_forgotten():
    pace = Pace(factor=1.5, window_s=WINDOW_S)
    for second in range(12):
        for rank, each_s in {0: 0.25, 1: 0.25, 2: 1.0}.items():
            pace.note(rank, [(second, second * each_s * 4)], {}, {}, float(second))
    pace.drop(2)
    assert [finding.rank for finding in pace.find()] == []


@pytest.mark.parametrize(
    ("load", "machine", "said"),
    [
        ({"state": "T"}, {}, "stopped"),
        ({}, {"throttled_s_per_s": 0.5}, "holds it back 50% of the time"),
        ({}, {"cpu": {"steal": 0.3}}, "takes 30% of the processors away"),
        ({"delay": 0.4}, {}, "waits for a free processor 40% of the time"),
        ({}, {"swap_in_bytes_s": 1e8}, "memory is short"),
        ({}, {"pressure": {"memory": 40.0}}, "memory is short"),
        ({"major_faults_s": 300.0}, {}, "300 pages a second"),
        ({"state": "D"}, {}, "waits for a disk"),
        ({}, {"devices": [{"id": "3", "throttled": ["power cap"]}]}, "device 3 (power cap)"),
        ({}, {"thermal_throttles_s": 1.0}, "because of heat"),
        ({"cpu": 0.01}, {}, "waits for something else"),
        ({"cpu": 1.0}, {}, "shows no cause"),
        ({}, {}, "shows no cause"),
    ],
)
def test_causes(load: dict[str, Any], machine: dict[str, Any], said: str):
    assert said in describe_cause(load, machine)


def test_steps_are_read_from_metric_lines():
    data = b"""{"k":"m","a":1,"t":10.5,"s":3,"v":{"loss":1}}
{"k":"p","a":1,"t":10.6,"s":3,"n":9}
{"k":"p","a":0,"t":9.0,"s":4,"n":9}
{"k":"m","a":1,"t":10.7,"s":null,"v":{}}
{"k":"h","a":1,"t":10.8,"name":"save","on":true}
{"k":"p","a":1,"t":11.0,"s":4,"n":9}
torn {"k":
"""
    assert parse_steps(data, 1, None) == [(3, 10.5), (4, 11.0)]
    assert parse_steps(data, 1, 3) == [(4, 11.0)]


def test_reports_are_rare_enough():
    assert decide_period_s(60.0) == 5.0
    assert decide_period_s(6.0) == 1.0


@pytest.mark.parametrize(
    ("left", "said"), [([0, 1, 2], "keeps up again."), ([1], "has nobody left to hold up: the others have ended.")]
)
def test_what_is_told_of_a_slow_rank_in_the_end(monkeypatch: pytest.MonkeyPatch, left: list[int], said: str):
    now, told = [1000.0], list[dict[str, Any]]()
    monkeypatch.setattr(pacing.time, "time", lambda: now[0])
    monkeypatch.setattr(pacing.time, "monotonic", lambda: now[0])
    watch = StragglerWatch(WatchPolicy(straggler_window_s=6.0), lambda _kind, **keys: told.append(keys))
    member = Member(node=0, host="h", address="a", pid=1, machine="m", send=lambda _message: None)
    done = dict.fromkeys(range(3), 0)
    for second in range(40):
        now[0] += 1.0
        ranks = {}
        for rank in range(3) if second < 20 else left:
            pace = 4 if rank == 1 and second < 20 else 8
            steps = [(done[rank] + one, now[0] - 1 + one / pace) for one in range(pace)]
            done[rank] += pace
            ranks[str(rank)] = {"steps": steps, "load": {}}
        watch.take({"attempt": 0, "ranks": ranks, "machine": {}}, member)
    assert [(one["rank"], one["on"]) for one in told] == [(1, True), (1, False)]
    assert told[-1]["text"] == f"Rank 1 on node 0 (h) {said}"


@pytest.mark.parametrize("goes_on", [True, False])
def test_nothing_is_told_of_a_slow_rank_once_the_others_make_no_steps(
    monkeypatch: pytest.MonkeyPatch, *, goes_on: bool
):
    now, told = [1000.0], list[dict[str, Any]]()
    monkeypatch.setattr(pacing.time, "time", lambda: now[0])
    monkeypatch.setattr(pacing.time, "monotonic", lambda: now[0])
    watch = StragglerWatch(WatchPolicy(straggler_window_s=6.0), lambda _kind, **keys: told.append(keys))
    member = Member(node=0, host="h", address="a", pid=1, machine="m", send=lambda _message: None)
    done = dict.fromkeys(range(3), 0)
    for second in range(40):
        now[0] += 1.0
        paces = {0: 8, 1: 4, 2: 8} if second < 20 else {0: 0, 1: 4 * goes_on, 2: 0}
        ranks = {}
        for rank, pace in paces.items():
            steps = [(done[rank] + one, now[0] - 1 + one / pace) for one in range(pace)]
            done[rank] += pace
            ranks[str(rank)] = {"steps": steps, "load": {"delay": 0.0, "state": "S"}}
        watch.take({"attempt": 0, "ranks": ranks, "machine": {}}, member)
    assert [(one["rank"], one["on"]) for one in told] == [(1, True)]


@pytest.mark.parametrize("by_s", [3600.0, -3600.0])
@pytest.mark.parametrize("slow", [True, False])
def test_a_clock_that_is_set_makes_no_rank_slow_and_hides_none(
    monkeypatch: pytest.MonkeyPatch, *, by_s: float, slow: bool
):
    now, shift, told = [1000.0], [0.0], list[dict[str, Any]]()
    monkeypatch.setattr(pacing.time, "time", lambda: now[0] + shift[0])
    monkeypatch.setattr(pacing.time, "monotonic", lambda: now[0])
    watch = StragglerWatch(WatchPolicy(straggler_window_s=6.0), lambda _kind, **keys: told.append(keys))
    member = Member(node=0, host="h", address="a", pid=1, machine="m", send=lambda _message: None)
    done = dict.fromkeys(range(3), 0)
    for second in range(40):
        now[0] += 1.0
        shift[0] = by_s if second >= 10 else 0.0
        ranks = {}
        for rank in range(3):
            pace = 4 if rank == 1 and slow and second >= 10 else 8
            steps = [(done[rank] + one, pacing.time.time() - 1 + one / pace) for one in range(pace)]
            done[rank] += pace
            ranks[str(rank)] = {"steps": steps, "load": {}}
        watch.take({"attempt": 0, "ranks": ranks, "machine": {}}, member)
    assert [(one["rank"], one["on"]) for one in told] == [(1, True)] * slow


def test_a_rank_whose_own_clock_was_set_is_not_told_of():
    pace = Pace(factor=1.5, window_s=WINDOW_S)
    for second in range(24):
        for rank in range(3):
            ahead_s = 3600.0 if rank == 1 and second >= 12 else 0.0
            pace.note(rank, [(2 * second + one, second + one / 2 + ahead_s) for one in (0, 1)], {}, {}, float(second))
        assert pace.find() == []
