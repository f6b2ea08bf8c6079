from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gangline.agent.attempt import Attempt, Ending, Hang, RankRecord
from gangline.agent.launchspec import LaunchSpec, Shape
from gangline.agent.result import (
    MOST_FREE_RETRIES,
    Outcome,
    Standing,
    decide_outcome,
    explain_failure,
    render_first_failure,
    render_result,
)
from gangline.agent.storage import Resume
from gangline.domain.phase import Budget, Reason
from gangline.domain.spec import OnTimeLimit, RestartPolicy, StopPolicy


def record(rank: int, **changes: Any) -> RankRecord:
    fields: dict[str, Any] = {"exit_code": 0, "ended": 10.0, "ended_by": "self", "pid": 100 + rank, "started": 1.0}
    return RankRecord(rank=rank, node=rank // 2, host="h", **{**fields, **changes})


def attempt(*records: RankRecord, ending: Ending | None = None, **changes: Any) -> Attempt:
    made = Attempt(number=4, launch=1, started=0.5, shape=Shape((0, 1), 2), ending=ending, **changes)
    made.ranks = {one.rank: one for one in records}
    made.master_port = 20001
    made.ended = 11.0
    return made


FAILURE = Ending(cause="failure", time=9.0)
BUDGETS = RestartPolicy(max_restarts=1, max_infrastructure_restarts=1)


def outcome(launch: LaunchSpec, made: Attempt, **changes: Any) -> Outcome:
    missing = changes.pop("missing_outputs", ())
    newest = changes.pop("newest_step", None)
    return decide_outcome(launch, made, Standing(**changes), missing_outputs=missing, newest_step=newest)


def hang_of(rank: int | None, *, blocked: bool) -> Hang:
    texts = {"message": "The gang hangs.", "place": "", "stack": "", "hint": ""}
    return Hang(rank=rank, time=9.0, infrastructure=blocked, blocked=blocked, **texts)


def test_the_first_by_time_is_the_one_that_failed(make_launch: Callable[..., LaunchSpec]) -> None:
    made = attempt(
        record(0, exit_code=1, ended=8.5),
        record(1, exit_code=None, signal=9, ended=8.0),
        record(2, exit_code=None, signal=15, ended=7.0, ended_by="platform"),
        record(3),
        ending=FAILURE,
    )
    found = outcome(make_launch(restarts=BUDGETS), made)
    assert (found.outcome, found.reason, found.exit_code, found.next) == ("failed", Reason.KILLED, 137, "restart")
    assert found.budget is Budget.INFRASTRUCTURE
    assert render_result(made, found)["first_failure"]["rank"] == 1


def test_a_rank_that_lost_a_peer_is_not_blamed_for_one_that_was_killed() -> None:
    """The end of rank 3 was seen after rank 2 had raised for it."""
    lost = "[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:41512"
    made = attempt(
        record(2, exit_code=None, signal=9, ended=9.4, ended_by="platform", error={"message": lost, "time": 8.9}),
        record(3, exit_code=None, signal=9, ended=9.0),
        ending=Ending(cause="failure", time=9.1),
    )
    first = made.first_failure()
    assert first is not None
    assert first.rank == 3
    del made.ranks[3]
    assert made.first_failure() is made.ranks[2]  # a broken network is nobody else's fault


def test_an_exception_counts_from_when_it_was_raised(make_launch: Callable[..., LaunchSpec]) -> None:
    """Rank 0 raised first but needed longer to go; rank 1 failed for it; rank 2 was ended while it told of its own."""
    made = attempt(
        record(0, exit_code=1, ended=9.5, error={"type": "ValueError", "message": "x", "time": 7.0}),
        record(1, exit_code=1, ended=8.0, error={"type": "RuntimeError", "message": "peer gone", "time": 7.5}),
        record(2, exit_code=None, signal=15, ended=9.9, ended_by="platform", error={"type": "E", "time": 6.5}),
        ending=FAILURE,
    )
    first = made.first_failure()
    assert first is not None
    assert first.rank == 2
    del made.ranks[2]
    assert "ValueError" in outcome(make_launch(), made).message


def test_budgets_end_restarts(make_launch: Callable[..., LaunchSpec]) -> None:
    made = attempt(record(0, exit_code=3), ending=FAILURE)
    launch = make_launch(restarts=BUDGETS)
    first = outcome(launch, made)
    assert (first.next, first.exit_code, first.budget) == ("restart", 3, Budget.USER)
    spent = outcome(launch, made, used={Budget.USER: 1})
    assert (spent.next, spent.exit_code) == ("end", 3)
    assert "--max-restarts" in spent.restart_message


@pytest.mark.parametrize("reason", [Reason.NODE_LOST, Reason.START_TIMEOUT])
def test_a_node_that_is_lost_or_never_came_asks_for_other_agents(
    make_launch: Callable[..., LaunchSpec], reason: Reason
) -> None:
    lost = Ending(cause="failure", time=9.0, reason=reason, message="Node 1 (h) was lost.")
    found = outcome(make_launch(restarts=BUDGETS), attempt(record(0, exit_code=1), ending=lost))
    assert (found.reason, found.next, found.exit_code) == (reason, "relaunch", 71)
    assert found.hint


def test_processes_that_cannot_be_killed_ask_for_other_agents(make_launch: Callable[..., LaunchSpec]) -> None:
    made = attempt(record(0, exit_code=None, signal=9), ending=FAILURE, stuck={0: [7]})
    assert outcome(make_launch(restarts=BUDGETS), made).next == "relaunch"


def test_a_taken_port_costs_nothing_a_few_times(make_launch: Callable[..., LaunchSpec]) -> None:
    tail = "port: 20001, name: EADDRINUSE"
    made = attempt(record(0, exit_code=1, log_tail=tail), ending=FAILURE)
    found = outcome(make_launch(), made)
    assert (found.reason, found.next, found.budget, found.free_retry) == (
        Reason.RENDEZVOUS_FAILED,
        "restart",
        None,
        True,
    )
    assert outcome(make_launch(), made, free_retries=MOST_FREE_RETRIES).next == "end"


@pytest.mark.parametrize(
    ("cause", "expected"),
    [
        ("stop", ("stopped", Reason.STOPPED_BY_USER, 130, "end")),
        ("preemption", ("preempted", Reason.PREEMPTED, 143, "relaunch")),
        ("time_limit", ("failed", Reason.TIME_LIMIT, 124, "end")),
    ],
)
def test_notices(make_launch: Callable[..., LaunchSpec], cause: str, expected: tuple[Any, ...]) -> None:
    made = attempt(record(0, exit_code=1), ending=Ending(cause=cause, time=9.0, message="m"))
    found = outcome(make_launch(), made)
    assert (found.outcome, found.reason, found.exit_code, found.next) == expected
    assert found.message == "m"


def test_preemptions_that_follow_each_other_wait_longer_and_longer(make_launch: Callable[..., LaunchSpec]) -> None:
    launch = make_launch(restarts=RestartPolicy(backoff_s=1.0, max_backoff_s=60.0))
    ending = Ending(cause="preemption", time=1.0, reason=Reason.PREEMPTED, message="Preempted.")
    made = [outcome(launch, attempt(ending=ending), used={Budget.PREEMPTION: count}) for count in range(9)]
    assert [one.delay_s for one in made] == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    assert {(one.next, one.outcome) for one in made} == {("relaunch", "preempted")}


def test_a_time_limit_may_count_as_a_stop(make_launch: Callable[..., LaunchSpec]) -> None:
    launch = make_launch(stop=StopPolicy(time_limit_s=1.0, on_time_limit=OnTimeLimit.STOP))
    made = attempt(record(0), ending=Ending(cause="time_limit", time=9.0))
    assert outcome(launch, made).outcome == "stopped"


CONTINUE = StopPolicy(time_limit_s=60.0, on_time_limit=OnTimeLimit.CONTINUE, max_continuations=2)


def after_time_limit(
    launch: LaunchSpec, *, begun: int | None, newest: int | None, used: int = 0, outside: bool = False
) -> Outcome:
    ending = Ending(cause="time_limit", time=9.0, message="The time limit was reached.", from_outside=outside)
    made = attempt(record(0), ending=ending, resume=Resume(path="x", step=begun) if begun is not None else Resume())
    return outcome(launch, made, used={Budget.CONTINUATION: used, Budget.USER: 9}, newest_step=newest)


def test_a_run_goes_on_after_its_time_limit_as_long_as_it_makes_progress(
    make_launch: Callable[..., LaunchSpec],
) -> None:
    launch = make_launch(stop=CONTINUE)
    found = after_time_limit(launch, begun=100, newest=140, used=1)
    assert (found.outcome, found.reason, found.next) == ("stopped", Reason.TIME_LIMIT, "restart")
    assert (found.budget, found.delay_s) == (Budget.CONTINUATION, 0.0)
    assert found.restart_message == "goes on from step 140 (continuation 2 of 2)"
    assert after_time_limit(launch, begun=None, newest=1).next == "restart"
    assert after_time_limit(launch, begun=100, newest=140, outside=True).next == "relaunch"


@pytest.mark.parametrize(
    ("begun", "newest", "used", "words"),
    [
        (None, None, 0, "No checkpoint was saved in this attempt"),
        (100, 100, 0, "No checkpoint was saved since step 100"),
        (100, 140, 2, "--max-continuations 2"),
    ],
)
def test_a_run_that_cannot_go_on_says_why(
    make_launch: Callable[..., LaunchSpec], begun: int | None, newest: int | None, used: int, words: str
) -> None:
    found = after_time_limit(make_launch(stop=CONTINUE), begun=begun, newest=newest, used=used)
    assert (found.outcome, found.reason, found.exit_code, found.next) == ("failed", Reason.TIME_LIMIT, 124, "end")
    assert words in found.message
    assert found.hint


def test_a_rank_that_left_the_others_early_is_the_one_to_look_at(make_launch: Callable[..., LaunchSpec]) -> None:
    lost = {"type": "RuntimeError", "message": "[a/pair.cc:5] Connection closed by peer [::1]:4", "time": 8.0}
    made = attempt(record(3, ended=7.0), record(0, exit_code=1, ended=8.5, error=lost), ending=FAILURE)
    found = outcome(make_launch(restarts=BUDGETS), made)
    assert found.reason is Reason.USER_ERROR
    assert found.message.startswith(
        "Rank 3 on node 1 (h) ended with exit code 0 while rank 0 still communicated with it. Rank 0"
    )
    assert "Rank 0 on node 0 (h) lost the connection" in found.message
    assert "pair.cc" not in found.message
    assert found.signature == "left_early"
    made.ranks[3].ended = 8.9  # sockets close before the end of a process is seen
    assert outcome(make_launch(restarts=BUDGETS), made).signature == "left_early"
    made.ranks[3].ended_by = "platform"
    assert outcome(make_launch(restarts=BUDGETS), made).reason is Reason.COMMUNICATION
    made.ranks[3].ended_by = "self"
    made.ranks[3].ended = 11.2  # it ended well after the connection broke: nobody's early end
    assert outcome(make_launch(restarts=BUDGETS), made).reason is Reason.COMMUNICATION


def test_a_rank_that_left_is_to_blame_however_slowly_it_went(make_launch: Callable[..., LaunchSpec]) -> None:
    lost = {"type": "RuntimeError", "message": "[a/pair.cc:5] Connection closed by peer [::1]:4", "time": 2.0}
    killed = {"exit_code": None, "signal": 15, "ended": 9.5, "ended_by": "platform"}
    slow = record(3, left=1.9, log_tail="step 1\nno such split\n", **killed)
    made = attempt(slow, record(0, exit_code=1, ended=8.5, error=lost), ending=FAILURE)
    found = outcome(make_launch(restarts=BUDGETS), made)
    assert (found.signature, found.reason, found.exit_code) == ("left_early", Reason.USER_ERROR, 1)
    assert 'left its script while rank 0 still communicated with it; its last line is "no such split".' in found.message
    shown = render_result(made, found)["first_failure"]
    assert (shown["rank"], shown["signal"], shown["error_type"], shown["time"]) == (3, None, "LeftEarly", 1.9)
    slow.left = 9.2  # it heard that it was to end
    assert outcome(make_launch(restarts=BUDGETS), made).reason is Reason.COMMUNICATION
    assert made.culprit() is made.ranks[0]
    made.ranks[3] = record(3, ended=8.9, left=2.5)  # its end was seen late, but it began in time
    assert outcome(make_launch(restarts=BUDGETS), made).signature == "left_early"
    assert made.culprit() == replace(made.ranks[3], error=made.culprit().error)  # type: ignore[union-attr]


def test_a_rank_that_was_about_to_exit_with_a_code_failed_by_it(make_launch: Callable[..., LaunchSpec]) -> None:
    lost = {"type": "RuntimeError", "message": "[a/pair.cc:5] Connection closed by peer [::1]:4", "time": 2.0}
    trace = 'Traceback (most recent call last):\n  File "/code/train.py", line 7, in <module>\n    sys.exit(7)\n'
    error = {"type": "", "message": "", "traceback": trace, "causes": [], "time": 1.9}
    killed = {"exit_code": None, "signal": 9, "ended": 9.5, "ended_by": "platform"}
    slow = record(3, left=1.9, left_code=7, error=error, **killed)
    made = attempt(slow, record(0, exit_code=1, ended=8.5, error=lost), ending=FAILURE)
    found = outcome(make_launch(restarts=BUDGETS), made)
    assert found.message == "Rank 3 on node 1 (h) failed with exit code 7, by sys.exit (train.py:7)."
    assert found.exit_code == 7
    shown = render_result(made, found)["first_failure"]
    assert (shown["exit_code"], shown["signal"], shown["error_type"], shown["traceback"]) == (7, None, None, trace)


def test_of_a_collective_that_timed_out_the_rank_that_did_not_come_is_named(
    make_launch: Callable[..., LaunchSpec],
) -> None:
    vain = {"type": "RuntimeError", "message": "Timed out waiting 8000ms for recv operation to complete", "time": 8.0}
    timed = {"exit_code": 1, "ended": 8.5, "error": vain}
    killed = {"exit_code": None, "signal": 9, "ended": 9.5, "ended_by": "platform"}
    ranks = [record(0, place="waiting in backward (t.py:5)", **timed), record(2, place="waiting in x", **killed)]
    made = attempt(record(1, place="in time.sleep (data.py:17)", **killed), *ranks, ending=FAILURE)
    found = outcome(make_launch(restarts=BUDGETS), made)
    assert found.reason is Reason.HANG
    assert found.message.startswith(
        "Missing was rank 1 on node 0 (h): in time.sleep (data.py:17). Rank 0 on node 0 (h)"
    )
    shown = render_result(made, found)["first_failure"]
    assert (shown["rank"], shown["error_type"], shown["error_message"]) == (1, "Hang", "in time.sleep (data.py:17)")
    made.ranks[1].place = "stopped (SIGSTOP)"
    found = outcome(make_launch(restarts=BUDGETS), made)
    assert (found.reason, found.budget, found.exit_code) == (Reason.HANG, Budget.INFRASTRUCTURE, 71)
    assert found.message.startswith("Missing was rank 1 on node 0 (h): stopped (SIGSTOP). Rank 0 on node 0 (h)")
    assert "who stopped it" in found.hint
    made.ranks[1] = record(1, place="waiting in barrier (t.py:3)", **timed)
    made.ranks[2].place = "waiting in backward (t.py:5)"
    found = outcome(make_launch(restarts=BUDGETS), made)
    calls = "rank 1 waiting in barrier (t.py:3), ranks 0, 2 waiting in backward (t.py:5)"
    assert found.message.startswith(f"The ranks were in different calls: {calls}. Rank 0")
    made.ranks[1].place = made.ranks[0].place
    assert outcome(make_launch(restarts=BUDGETS), made).message.startswith("Rank 0 on node 0 (h) waited in vain")


def test_who_did_not_come_to_meet_the_others_is_named(make_launch: Callable[..., LaunchSpec]) -> None:
    vain = {"type": "torch.distributed.DistStoreError", "message": "wait timeout after 8000ms, keys: /x", "time": 8.0}
    absent = {"exit_code": None, "signal": 15, "ended": 9.5, "ended_by": "platform", "place": "in time.sleep (t.py:2)"}
    made = attempt(record(2, exit_code=1, ended=8.5, error=vain), record(1, **absent), ending=FAILURE)
    found = outcome(make_launch(restarts=BUDGETS), made)
    assert found.reason is Reason.RENDEZVOUS_FAILED
    assert found.message.startswith("Missing was rank 1 on node 0 (h): in time.sleep (t.py:2). Rank 2 on node")
    assert render_result(made, found)["first_failure"]["rank"] == 1


def test_the_own_error_of_a_rank_counts_more_than_the_signal_that_ended_it(
    make_launch: Callable[..., LaunchSpec],
) -> None:
    error = {"type": "ValueError", "message": "bad data", "time": 8.0}
    made = attempt(record(1, exit_code=None, signal=15, ended_by="platform", error=error), ending=FAILURE)
    found = outcome(make_launch(), made)
    assert (found.reason, found.signature, found.exit_code) == (Reason.USER_ERROR, None, 1)
    assert "ValueError: bad data" in found.message


def test_a_printed_exception_counts_where_all_others_only_lost_a_peer() -> None:
    lost = {"type": "RuntimeError", "message": "[a/pair.cc:5] Connection closed by peer [::1]:4", "time": 8.0}
    printed = {"type": "ValueError", "message": "bad data", "traceback": "", "causes": [], "time": 2.0}
    ended = {"exit_code": None, "signal": 15, "ended": 9.9, "ended_by": "platform"}
    made = attempt(record(0, exit_code=1, ended=8.5, error=lost), record(1, printed=printed, **ended), ending=FAILURE)
    first = made.first_failure()
    assert first is not None
    assert (first.rank, first.failed_at, first.error) == (1, 2.0, printed)
    made.ranks[1].printed = lost  # it, too, only lost a peer
    assert made.first_failure() is made.ranks[0]
    made.ranks[1].printed = printed
    made.ranks[3] = record(3, ended=7.9)  # somebody left with 0: that is known, the other is a guess
    assert made.first_failure() is made.ranks[0]
    del made.ranks[3]
    made.ranks[0].error = {**lost, "message": "size mismatch"}  # a failure of its own
    assert made.first_failure() is made.ranks[0]


def test_ranks_that_only_lost_the_runtime_of_their_strategy_are_not_to_blame(
    make_launch: Callable[..., LaunchSpec],
) -> None:
    lost = attempt(*(record(rank, exit_code=195, lost_runtime=True) for rank in (0, 1)), ending=FAILURE)
    found = outcome(make_launch(), lost)
    assert (found.reason, found.budget) == (Reason.COMMUNICATION, Budget.INFRASTRUCTURE)
    lost.ranks[1] = record(1, exit_code=3, ended=10.1)
    assert outcome(make_launch(), lost).exit_code == 3


def test_what_is_told_before_the_end_is_what_the_result_will_say(make_launch: Callable[..., LaunchSpec]) -> None:
    made = attempt(record(1, exit_code=None, signal=9, step=7), ending=FAILURE)
    verdict = explain_failure(make_launch(), made, made.ranks[1])
    told = render_first_failure(made.ranks[1], verdict)
    result = render_result(made, outcome(make_launch(), made))
    assert told["failure"] == result["first_failure"]
    assert all(told[key] == result[key] for key in ("reason", "message", "hint", "signature"))


def test_success_needs_the_declared_outputs(make_launch: Callable[..., LaunchSpec]) -> None:
    made = attempt(*map(record, range(4)), ending=Ending(cause="success", time=9.0))
    assert outcome(make_launch(), made).outcome == "succeeded"
    failed = outcome(make_launch(), made, missing_outputs=["model is missing"])
    assert "writing them failed" in failed.hint
    assert (failed.outcome, failed.reason, failed.exit_code) == ("failed", Reason.STORAGE, 74)
    assert "model is missing" in failed.message


def test_progress_of_an_attempt() -> None:
    made = attempt(*map(record, range(3)))
    assert not made.all_succeeded()
    made.ranks[3] = record(3, ended=None)
    assert not made.all_succeeded()
    made.ranks[3] = record(3)
    assert made.all_succeeded()
    made.cleared = {0}
    assert not made.all_cleared()
    assert made.all_cleared(frozenset({1}))


def test_the_result_has_every_documented_key(make_launch: Callable[..., LaunchSpec]) -> None:
    made = attempt(record(0, exit_code=1), ending=FAILURE)
    result = render_result(made, outcome(make_launch(), made))
    assert result.keys() == {
        *("version", "attempt", "launch", "outcome", "reason", "message", "exit_code", "started", "running", "ended"),
        *("resume", "resume_step", "start_mode", "first_failure", "ranks", "next", "next_delay_s", "budget"),
        *("restart_message", "signature", "hint", "nodes_at_fault"),
    }
    assert result["first_failure"].keys() == {
        *("rank", "node", "host", "pid", "exit_code", "signal", "signal_name", "time", "error_type", "error_message"),
        *("traceback", "causes", "log_tail", "step", "total_steps", "phase", "error_in_log"),
    }
    assert result["ranks"][0].keys() == {
        *("rank", "node", "pid", "exit_code", "signal", "ended_by", "started", "ended", "peak_rss_bytes"),
        *("step", "phase", "place", "error"),
    }


@pytest.mark.parametrize(
    ("ending", "expected"),
    [
        (FAILURE, []),
        (Ending(cause="failure", time=9.0, nodes={1: "lost"}), [{"node": 1, "host": "h1", "why": "lost"}]),
        (
            Ending(cause="failure", time=9.0, hang=hang_of(3, blocked=True)),
            [{"node": 1, "host": "h1", "why": "blocked"}],
        ),
        (Ending(cause="failure", time=9.0, hang=hang_of(3, blocked=False)), []),
        (Ending(cause="failure", time=9.0, hang=hang_of(None, blocked=True)), []),
    ],
)
def test_the_result_names_nodes_at_fault_and_why(
    make_launch: Callable[..., LaunchSpec], ending: Ending, expected: list[dict[str, Any]]
) -> None:
    made = attempt(record(0), record(3), ending=ending, hosts={0: "h0", 1: "h1"})
    assert render_result(made, outcome(make_launch(), made))["nodes_at_fault"] == expected
