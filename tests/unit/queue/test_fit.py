from __future__ import annotations

import pytest

from gangline.domain.errors import GangTooLarge, error_from_code
from gangline.domain.gang import NodePlacement
from gangline.queue.fit import Demand, LiveGang, WaitingRun, check_feasible, decide_starts, free_devices
from gangline.testing import make_capacity

POOL = make_capacity(devices=("0", "1", "2", "3"), device_kind="nvidia")


def waiting(run_id: str, *, priority: int = 0, submitted: float = 0.0, **demand: int) -> WaitingRun:
    return WaitingRun(run_id=run_id, demand=Demand(**demand), priority=priority, submitted=submitted)


def live(run_id: str, *devices: str, **demand: int) -> LiveGang:
    placements = (NodePlacement(node=0, devices=devices),)
    return LiveGang(run_id=run_id, demand=Demand(gpus_per_node=len(devices), **demand), placements=placements)


def started(decision) -> dict[str, list[tuple[str, ...]]]:
    return {start.run_id: [placement.devices for placement in start.placements] for start in decision.starts}


def test_gangs_get_disjoint_devices_node_by_node() -> None:
    queue = [waiting("a", nodes=2, gpus_per_node=1), waiting("b", gpus_per_node=2, submitted=1.0)]
    assert started(decide_starts(POOL, [], queue)) == {"a": [("0",), ("1",)], "b": [("2", "3")]}


def test_devices_in_use_are_left_alone() -> None:
    decision = decide_starts(POOL, [live("x", "0", "2")], [waiting("a", gpus_per_node=2)])
    assert started(decision) == {"a": [("1", "3")]}
    assert free_devices(POOL, [live("x", "0", "2")]) == ("1", "3")


def test_order_is_priority_then_time_then_id() -> None:
    queue = [
        waiting("late", submitted=2.0, gpus_per_node=2),
        waiting("urgent", priority=1, submitted=9.0, gpus_per_node=2),
        waiting("early", submitted=1.0, gpus_per_node=2),
    ]
    decision = decide_starts(POOL, [], queue)
    assert list(started(decision)) == ["urgent", "early"]
    assert [wait.run_id for wait in decision.waits] == ["late"]


def test_nobody_overtakes_the_first_that_does_not_fit() -> None:
    queue = [waiting("large", gpus_per_node=4), waiting("small", gpus_per_node=1, submitted=1.0)]
    decision = decide_starts(POOL, [live("x", "0")], queue)
    assert decision.starts == ()
    first, second = decision.waits
    assert (first.position, second.position) == (1, 2)
    assert first.message == "First in the queue: needs 4 nvidia GPUs, 3 free while x runs."
    assert second.message == "Position 2 in the queue, behind large, which waits for its turn."


def test_explanations_name_what_is_short_and_who_holds_it() -> None:
    holders = [LiveGang(run_id=f"r{number}", demand=Demand(cpus_per_rank=2)) for number in range(4)]
    (wait,) = decide_starts(POOL, holders, [waiting("a", cpus_per_rank=1)]).waits
    assert wait.message == "First in the queue: needs 1 reserved CPU cores, 0 free while r0, r1, r2 and 1 more run."
    (wait,) = decide_starts(POOL, [live("m", memory_bytes=30 * 10**9)], [waiting("a", memory_bytes=10**10)]).waits
    assert "needs 10.0 GB of reserved memory, 2.0 GB free while m runs" in wait.message


def test_ranks_without_reserved_cores_share_them_and_count_as_ranks() -> None:
    pool = make_capacity(cpus=2, ranks=10)
    queue = [
        waiting("a", procs_per_node=4),
        waiting("b", procs_per_node=4, submitted=1.0),
        waiting("c", procs_per_node=4, submitted=2.0),
    ]
    decision = decide_starts(pool, [], queue)
    assert list(started(decision)) == ["a", "b"]
    assert "needs 4 ranks, 2 free while a, b run" in decision.waits[0].message


def test_a_pool_that_shrank_hands_out_nothing_that_is_gone() -> None:
    decision = decide_starts(POOL, [live("x", "0", "7")], [waiting("a", gpus_per_node=3)])
    assert started(decision) == {"a": [("1", "2", "3")]}
    (wait,) = decide_starts(make_capacity(ranks=1), [live("x", nodes=4)], [waiting("a")]).waits
    assert "0 free" in wait.message


@pytest.mark.parametrize(
    ("demand", "said"),
    [
        ({"nodes": 65}, "65 nodes in one gang asked, pool `big` has 64. Lower --nodes"),
        ({"nodes": 5, "gpus_per_node": 1}, "5 nvidia GPUs asked, pool `big` has 4. Lower --gpus-per-node"),
        ({"procs_per_node": 65}, "65 ranks asked, pool `big` has 64. Lower --procs-per-node"),
        (
            {"procs_per_node": 3, "cpus_per_rank": 3},
            "9 reserved CPU cores asked, pool `big` has 8. Lower --cpus-per-rank",
        ),
        (
            {"nodes": 2, "memory_bytes": 20 * 10**9},
            "40.0 GB of reserved memory asked, pool `big` has 32.0 GB. Lower --memory",
        ),
    ],
)
def test_what_could_never_fit_is_refused(demand, said) -> None:
    with pytest.raises(GangTooLarge) as caught:
        check_feasible(POOL, Demand(**demand), pool="big")
    assert said in str(caught.value)
    assert isinstance(error_from_code(caught.value.code, what="x"), GangTooLarge)


def test_what_fits_an_empty_pool_is_taken() -> None:
    check_feasible(POOL, Demand(nodes=4, gpus_per_node=1, procs_per_node=2, cpus_per_rank=1), pool="big")


def test_an_elastic_gang_starts_at_the_largest_size_that_fits() -> None:
    queue = [waiting("a", nodes=4, min_nodes=2, gpus_per_node=1)]
    assert len(started(decide_starts(POOL, [live("x", "0")], queue))["a"]) == 3
    assert len(started(decide_starts(POOL, [], queue))["a"]) == 4


def test_an_elastic_gang_waits_below_its_smallest_size() -> None:
    queue = [waiting("a", nodes=4, min_nodes=2, gpus_per_node=1)]
    decision = decide_starts(POOL, [live("x", "0", "1", "2")], queue)
    assert decision.starts == ()
    assert decision.waits[0].message == "First in the queue: needs 2 nvidia GPUs, 1 free while x runs."


def test_an_elastic_gang_is_feasible_if_its_smallest_size_is() -> None:
    check_feasible(POOL, Demand(nodes=9, min_nodes=4, gpus_per_node=1), pool="p")
    with pytest.raises(GangTooLarge):
        check_feasible(POOL, Demand(nodes=9, min_nodes=5, gpus_per_node=1), pool="p")
