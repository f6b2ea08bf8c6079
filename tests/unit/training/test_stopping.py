from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

import gangline
from gangline.rundir.files import read_json, write_json
from gangline.training import session
from gangline.training.context import parse_context
from gangline.training.stopping import StopWatch

AsRank = Callable[..., Path]


def watch_of(run_dir: Path, rank: int, world_size: int, clock: Callable[[], float] = lambda: 0.0) -> StopWatch:
    env = {
        "RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "GANGLINE_RUN_ID": "r",
        "GANGLINE_ATTEMPT": "2",
        "GANGLINE_RUN_DIR": str(run_dir),
    }
    return StopWatch(parse_context(env), clock=clock)


def notify(run_dir: Path) -> None:
    write_json(run_dir / "attempts" / "2" / "notice.json", {"kind": "stop", "time": 0.0, "deadline": 30.0})


def test_a_signal_is_a_flag_and_the_agent_is_told_that_it_will_be(as_rank: AsRank) -> None:
    run_dir = as_rank()
    assert not gangline.should_stop()
    marker = read_json(run_dir / "attempts" / "2" / "rank-00000.cooperative")
    assert marker is not None
    assert marker["pid"] == os.getpid()
    os.kill(os.getpid(), signal.SIGTERM)
    assert gangline.should_stop()
    assert gangline.should_stop()


def test_alone_a_signal_is_all_there_is(tmp_path: Path) -> None:
    assert not gangline.should_stop()
    assert [path.name for path in tmp_path.iterdir()] == []
    os.kill(os.getpid(), signal.SIGTERM)
    assert gangline.should_stop()


def test_a_handler_that_was_there_is_still_called() -> None:
    heard: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    gangline.should_stop()
    os.kill(os.getpid(), signal.SIGTERM)
    assert heard == [signal.SIGTERM]
    assert gangline.should_stop()


def test_one_rank_alone_obeys_a_notice_at_once(tmp_path: Path) -> None:
    watch = watch_of(tmp_path, 0, 1)
    assert not watch.ask()
    notify(tmp_path)
    assert watch.ask()


def test_all_ranks_stop_at_the_same_call_whenever_each_sees_the_notice(tmp_path: Path) -> None:
    ranks = [watch_of(tmp_path, rank, 3) for rank in range(3)]
    assert [rank.ask() for rank in ranks] == [False] * 3
    assert not ranks[1].ask()  # rank 1 asks for the second time before the notice comes
    notify(tmp_path)
    assert not ranks[0].ask()  # rank 0 sees it in its second call, and decides for the third
    assert not ranks[2].ask()
    assert [rank.ask() for rank in ranks] == [True] * 3


def test_a_signal_at_one_rank_does_not_stop_it_before_the_others(tmp_path: Path) -> None:
    now = [0.0]
    ranks = [watch_of(tmp_path, rank, 2, clock=lambda: now[0]) for rank in range(2)]
    assert [rank.ask() for rank in ranks] == [False, False]
    ranks[1]._signalled = True
    assert [rank.ask() for rank in ranks] == [False, False]
    now[0] = 60.0  # a long step
    assert [ranks[1].ask(), ranks[1].ask()] == [False, False]
    assert ranks[1].ask()  # rank 0 never decided: better alone than killed


def test_three_quick_calls_without_a_decision_are_not_enough(tmp_path: Path) -> None:
    now = [0.0]
    rank = watch_of(tmp_path, 1, 2, clock=lambda: now[0])
    notify(tmp_path)
    assert [rank.ask() for _ in range(10)] == [False] * 10
    now[0] = 5.1
    assert rank.ask()


def test_a_rank_that_sees_the_notice_a_long_step_before_rank_0_waits_for_its_decision(tmp_path: Path) -> None:
    now = [0.0]
    ranks = [watch_of(tmp_path, rank, 2, clock=lambda: now[0]) for rank in range(2)]
    assert not ranks[0].ask()
    notify(tmp_path)
    assert not ranks[1].ask()
    now[0] = 60.0
    assert not ranks[1].ask()  # asks before rank 0 does, and has been told for a minute
    assert not ranks[0].ask()
    assert [ranks[1].ask(), ranks[0].ask()] == [True, True]


def test_a_decision_that_cannot_be_written_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    watch = watch_of(tmp_path, 0, 2)
    watch.ask()
    notify(tmp_path)
    (tmp_path / "attempts" / "2" / "stop_at.json").mkdir()
    assert not watch.ask()
    assert watch.ask()
    assert "each stops by itself" in capsys.readouterr().err


def test_garbage_in_the_decision_is_no_decision(tmp_path: Path) -> None:
    watch = watch_of(tmp_path, 1, 2)
    (tmp_path / "attempts" / "2").mkdir(parents=True, exist_ok=True)
    (tmp_path / "attempts" / "2" / "stop_at.json").write_text("{")
    assert not watch.ask()


def test_a_forked_child_dies_of_the_signal(as_rank: AsRank) -> None:
    as_rank()
    gangline.should_stop()
    pid = os.fork()
    if pid == 0:
        os.kill(os.getpid(), signal.SIGTERM)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGTERM


def test_another_handler_that_came_later_is_left_alone() -> None:
    gangline.should_stop()
    later = lambda *_: None  # noqa: E731
    signal.signal(signal.SIGTERM, later)
    session.forget()
    assert signal.getsignal(signal.SIGTERM) is later
