from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

import gangline
from gangline.rundir.files import read_json, write_json
from gangline.rundir.layout import RunDir
from gangline.training import session
from gangline.training.context import parse_context
from gangline.training.stopping import StopWatch

AsRank = Callable[..., Path]


class Time:
    """Passes when a rank pauses, and when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def pass_(self, delay_s: float) -> None:
        self.now += delay_s


def watch_of(run_dir: Path, rank: int, world_size: int, time: Time | None = None) -> StopWatch:
    time = time or Time()
    env = {
        "RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "GANGLINE_RUN_ID": "r",
        "GANGLINE_ATTEMPT": "2",
        "GANGLINE_RUN_DIR": str(run_dir),
    }
    return StopWatch(parse_context(env), clock=lambda: time.now, pause=time.pass_)


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
    assert [ranks[1].ask() for _ in range(4)] == [False] * 4  # rank 1 has run ahead: nothing makes it wait for others
    notify(tmp_path)
    assert not ranks[0].ask()  # its second call; nobody else has noted theirs
    assert not ranks[2].ask()
    assert not ranks[1].ask()  # its sixth
    assert not ranks[0].ask()  # all have, and rank 0 decides: the seventh
    assert ranks[1].ask()
    for rank in (ranks[0], ranks[2]):
        answers = [rank.ask() for _ in range(8)]
        assert rank._calls - answers.count(True) + 1 == 7


def test_a_signal_at_one_rank_stops_all_at_the_same_call(tmp_path: Path) -> None:
    ranks = [watch_of(tmp_path, rank, 3) for rank in range(3)]
    assert [rank.ask() for rank in ranks] == [False] * 3
    ranks[1]._signalled = True
    assert [ranks[number].ask() for number in (1, 2, 0)] == [False] * 3  # the others hear of it in their next call
    assert [rank.ask() for rank in ranks] == [True] * 3
    notice = read_json(tmp_path / "attempts" / "2" / "notice.json")
    assert notice is not None
    assert (notice["kind"], notice["rank"]) == ("signal", 1)


def test_a_signal_beside_a_notice_of_the_platform_leaves_it(tmp_path: Path) -> None:
    watch = watch_of(tmp_path, 0, 1)
    assert not watch.ask()
    notify(tmp_path)
    watch._signalled = True
    assert watch.ask()
    assert (read_json(tmp_path / "attempts" / "2" / "notice.json") or {})["kind"] == "stop"


def test_a_rank_whose_peers_never_ask_stops_alone(tmp_path: Path) -> None:
    time = Time()
    rank = watch_of(tmp_path, 1, 2, time)
    rank._signalled = True
    assert not rank.ask()
    time.now = 60.0  # a long step
    assert [rank.ask(), rank.ask()] == [False, False]
    assert rank.ask()  # rank 0 never decided: better alone than killed


def test_a_rank_that_never_asks_holds_the_others_up_for_seconds_only(tmp_path: Path) -> None:
    time = Time()
    ranks = [watch_of(tmp_path, rank, 3, time) for rank in range(2)]
    notify(tmp_path)
    answers = [(ranks[0].ask(), ranks[1].ask()) for _ in range(10)]
    first = answers.index((True, True))
    assert answers[:first] == [(False, False)] * first
    assert time.now < 12.0


def test_quick_calls_without_a_decision_are_not_enough(tmp_path: Path) -> None:
    time = Time()
    rank = watch_of(tmp_path, 1, 2, time)
    notify(tmp_path)
    assert [rank.ask() for _ in range(4)] == [False] * 4  # each pauses a second
    assert time.now == pytest.approx(4.0, abs=0.1)
    assert rank.ask()


def test_a_rank_that_sees_the_notice_a_long_step_before_rank_0_waits_for_its_decision(tmp_path: Path) -> None:
    time = Time()
    ranks = [watch_of(tmp_path, rank, 2, time) for rank in range(2)]
    assert not ranks[0].ask()
    notify(tmp_path)
    assert not ranks[1].ask()
    time.now = 60.0
    assert not ranks[1].ask()  # asks before rank 0 does, and has been told for a minute
    assert not ranks[0].ask()  # its second call, and rank 1's: both leave at the third
    assert [ranks[1].ask(), ranks[0].ask()] == [True, True]


def test_a_decision_that_cannot_be_written_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ranks = [watch_of(tmp_path, rank, 2) for rank in range(2)]
    notify(tmp_path)
    (tmp_path / "attempts" / "2" / "stop_at.json").mkdir()
    assert not ranks[1].ask()
    assert not ranks[0].ask()
    assert ranks[0].ask()
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


def test_a_note_that_names_no_call_decides_nothing(tmp_path: Path) -> None:
    notify(tmp_path)
    attempt = RunDir(tmp_path).attempt(2)
    write_json(attempt.stop_call(1), {})
    assert not watch_of(tmp_path, 0, 2).ask()
    assert not attempt.stop_at.exists()
