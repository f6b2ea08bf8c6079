"""Whatever waits and runs: never more than there is, never a part of a gang, never out of order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gangline.domain.errors import GangTooLarge
from gangline.domain.gang import PoolCapacity
from gangline.queue.fit import Decision, Demand, LiveGang, WaitingRun, check_feasible, decide_starts
from gangline.testing import make_capacity

POOLS = st.builds(
    lambda cpus, ranks, gpus: make_capacity(cpus=cpus, ranks=ranks, nodes=8, devices=tuple(map(str, range(gpus)))),
    st.integers(1, 16),
    st.integers(1, 32),
    st.integers(0, 8),
)
DEMANDS = st.builds(
    Demand,
    nodes=st.integers(1, 4),
    procs_per_node=st.integers(1, 4),
    gpus_per_node=st.integers(0, 3),
    cpus_per_rank=st.none() | st.integers(1, 3),
    memory_bytes=st.none() | st.integers(1, 20 * 10**9),
)
QUEUES = st.lists(st.tuples(DEMANDS, st.integers(-1, 1), st.integers(0, 3)), max_size=8)


def to_runs(queue) -> list[WaitingRun]:
    return [
        WaitingRun(run_id=f"r{index}", demand=demand, priority=priority, submitted=float(submitted))
        for index, (demand, priority, submitted) in enumerate(queue)
    ]


def started_gangs(decision: Decision, runs: list[WaitingRun]) -> list[LiveGang]:
    demands = {run.run_id: run.demand for run in runs}
    return [
        LiveGang(run_id=start.run_id, demand=demands[start.run_id], placements=start.placements)
        for start in decision.starts
    ]


def assert_within(pool: PoolCapacity, gangs: list[LiveGang]) -> None:
    used = [device for gang in gangs for placement in gang.placements for device in placement.devices]
    assert len(used) == len(set(used))
    assert set(used) <= set(pool.devices)
    assert sum(gang.demand.ranks for gang in gangs) <= pool.ranks
    assert sum(gang.demand.cpus for gang in gangs) <= pool.cpus
    assert sum(gang.demand.memory for gang in gangs) <= pool.memory_bytes


@given(POOLS, QUEUES, QUEUES)
def test_two_rounds(pool: PoolCapacity, first, second) -> None:
    runs = to_runs(first)
    decision = decide_starts(pool, [], runs)
    live = started_gangs(decision, runs)
    assert_within(pool, live)
    for gang in live:
        assert [placement.node for placement in gang.placements] == list(range(gang.demand.nodes))
        assert all(len(placement.devices) == gang.demand.gpus_per_node for placement in gang.placements)
    more = to_runs([*first, *second])[len(first) :]
    again = decide_starts(pool, live, more)
    assert_within(pool, [*live, *started_gangs(again, more)])


@given(POOLS, QUEUES)
def test_every_run_is_in_one_list_in_queue_order(pool: PoolCapacity, queue) -> None:
    runs = to_runs(queue)
    decision = decide_starts(pool, [], runs)
    expected = [run.run_id for run in sorted(runs, key=lambda run: (-run.priority, run.submitted, run.run_id))]
    assert [start.run_id for start in decision.starts] + [wait.run_id for wait in decision.waits] == expected
    assert [wait.position for wait in decision.waits] == list(range(1, len(decision.waits) + 1))
    assert all(wait.message.endswith(".") for wait in decision.waits)


@given(POOLS, DEMANDS)
def test_feasible_means_that_it_starts_in_an_empty_pool(pool: PoolCapacity, demand: Demand) -> None:
    try:
        check_feasible(pool, demand, pool="p")
        feasible = True
    except GangTooLarge:
        feasible = False
    decision = decide_starts(pool, [], [WaitingRun(run_id="r", demand=demand)])
    assert bool(decision.starts) == feasible
