from __future__ import annotations

from signal import SIGKILL, SIGTERM

from gangline.agent.processes import Process, decide_descendants
from gangline.agent.teardown import Teardown, TreeView, notice_targets


def process(pid: int, parent: int) -> Process:
    return Process(pid, parent, dead=False)


# An agent (1) with a Python rank (10) that has a worker (11), and a shell rank (20) with Python (21) and a worker (22).
TREE = [process(10, 1), process(11, 10), process(20, 1), process(21, 20), process(22, 21)]
PYTHON = {10, 11, 21, 22}


def teardown(cause: str, *, deadline: float = 100.0) -> Teardown:
    return Teardown(cause=cause, deadline=deadline, leftover_grace_s=5.0)


def view(*pids: int, ranks: tuple[int, ...] = (10, 20), cooperative: tuple[int, ...] = ()) -> TreeView:
    alive = [one for one in TREE if one.pid in pids]
    return TreeView(alive=alive, ranks=set(ranks), cooperative=set(cooperative), python=PYTHON)


def test_a_failure_tells_everybody_once() -> None:
    end = teardown("failure")
    assert end.decide(view(10, 11, 20), 0.0) == dict.fromkeys([10, 11, 20], SIGTERM)
    assert end.decide(view(10, 11, 20), 1.0) == {}
    assert end.decide(view(10, 11, 20, 21), 2.0) == {21: SIGTERM}


def test_a_failure_kills_cooperative_ranks_with_their_workers() -> None:
    orders = teardown("failure").decide(view(10, 11, 20, cooperative=(10,)), 0.0)
    assert orders == {10: SIGKILL, 11: SIGKILL, 20: SIGTERM}


def test_a_notice_tells_ranks_and_the_topmost_python_below_wrappers() -> None:
    assert set(teardown("stop").decide(view(10, 11, 20, 21, 22), 0.0)) == {10, 20, 21}


def test_a_signal_before_the_time_limit_is_for_python_alone() -> None:
    assert sorted(notice_targets(view(10, 11, 20, 21, 22))) == [10, 21]


def test_a_wrapper_that_is_gone_does_not_cost_its_python_the_grace() -> None:
    end = teardown("stop")
    end.decide(view(20, 21, 22, ranks=(20,)), 0.0)
    assert end.decide(view(21, 22, ranks=()), 50.0) == {}
    assert end.deadline == 100.0


def test_what_outlives_the_ranks_is_asked_to_go_and_not_for_long() -> None:
    end = teardown("stop")
    end.decide(view(10, 20, ranks=(10,)), 0.0)
    assert end.decide(view(20, ranks=()), 10.0) == {20: SIGTERM}
    assert end.deadline == 15.0
    assert end.decide(view(20, ranks=()), 12.0) == {}
    assert end.decide(view(20, ranks=()), 15.0) == {20: SIGKILL}


def test_a_python_program_that_outlives_its_rank_keeps_the_grace() -> None:
    end = teardown("stop")
    end.decide(view(10, 11, ranks=(10,)), 0.0)
    assert end.decide(view(11, ranks=()), 1.0) == {11: SIGTERM}
    assert end.deadline == 100.0


def test_after_a_success_leftovers_are_ended() -> None:
    end = teardown("success")
    assert end.decide(view(11, ranks=()), 0.0) == {11: SIGTERM}
    assert end.deadline == 5.0


def test_when_patience_is_over_everybody_is_killed_again_and_again() -> None:
    end = teardown("stop", deadline=10.0)
    for now in (10.0, 10.1):
        assert end.decide(view(10, 11, 20, 21, 22), now) == dict.fromkeys([10, 11, 20, 21, 22], SIGKILL)


def test_a_second_request_can_only_hasten() -> None:
    end = teardown("stop", deadline=10.0)
    end.escalate("preemption", 50.0)
    assert (end.cause, end.deadline) == ("stop", 10.0)
    end.escalate("stop", 5.0)
    assert end.deadline == 5.0


def test_a_failure_during_a_notice_tells_everybody() -> None:
    end = teardown("stop")
    end.decide(view(10, 11), 0.0)
    end.escalate("failure", 50.0)
    assert set(end.decide(view(10, 11), 1.0)) == {10, 11}


def test_descendants_are_found_in_a_table_in_any_order() -> None:
    table = [process(22, 21), process(21, 20), process(20, 1), process(10, 1), process(99, 98), process(98, 98)]
    assert [one.pid for one in decide_descendants(table, 1, spared=frozenset({20}))] == [10, 21, 22]


# Company (30) and what it has started (31), which ranks may need to the last.
SUPPORTED = [process(10, 1), process(30, 1), process(31, 30)]


def supported(*pids: int, ranks: tuple[int, ...] = (10,)) -> TreeView:
    alive = [one for one in SUPPORTED if one.pid in pids]
    return TreeView(alive=alive, ranks=set(ranks), python={10, 30, 31}, kept={30, 31})


def test_a_notice_leaves_company_alone_until_all_is_over() -> None:
    end = teardown("stop")
    assert end.decide(supported(10, 30, 31), 0.0) == {10: SIGTERM}
    assert end.decide(supported(30, 31, ranks=()), 20.0) == {}  # ranks of other nodes may still save
    assert end.deadline == 100.0
    end.escalate("success", 25.0)
    assert end.decide(supported(30, 31, ranks=()), 21.0) == {30: SIGKILL, 31: SIGKILL}


def test_company_ends_when_no_rank_here_needs_it() -> None:
    end = teardown("failure")
    assert end.decide(supported(10, 30, 31), 0.0) == {10: SIGTERM}
    assert end.decide(supported(30, 31, ranks=()), 1.0) == {30: SIGKILL, 31: SIGKILL}
    assert teardown("success").decide(supported(30, 31, ranks=(30,)), 0.0) == {30: SIGKILL, 31: SIGKILL}


def test_company_does_not_outlive_the_deadline() -> None:
    assert set(teardown("stop", deadline=5.0).decide(supported(30, 31, ranks=()), 5.0)) == {30, 31}


def test_a_signal_before_the_time_limit_is_not_for_company() -> None:
    assert notice_targets(supported(10, 30, 31)) == [10]
