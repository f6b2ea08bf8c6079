"""What ends an attempt first: its own limit, or the time of the machines; and what a scheduler's signals mean."""

from __future__ import annotations

import signal
import time

import pytest

from gangline.agent.allocation import Allocation
from gangline.agent.attempt import Attempt, Ending, RankRecord
from gangline.agent.attemptclock import AttemptClock, decide_completion, decide_limit, read_told
from gangline.agent.launchspec import Shape
from gangline.domain.phase import Reason
from gangline.domain.spec import NoticeSignal, StopPolicy
from gangline.rundir.files import write_json
from gangline.rundir.layout import AttemptDir

NOW = 1_000_000.0


def attempt(**fields):
    return Attempt(number=0, launch=0, started=NOW, shape=Shape((0,), 2), **fields)


def test_nothing_known_is_no_limit():
    assert decide_limit(StopPolicy(), Allocation(), NOW) is None


def test_the_shorter_of_the_two_counts():
    policy = StopPolicy(time_limit_s=600)
    own = decide_limit(policy, Allocation(end=NOW + 7200), NOW)
    assert (own.after_s, own.notice_s, own.from_outside) == (600, 60, False)
    machines = decide_limit(policy, Allocation(end=NOW + 600), NOW)
    assert machines.from_outside
    assert machines.after_s == 600 - 35


def test_a_short_time_is_shared_out():
    limit = decide_limit(StopPolicy(), Allocation(end=NOW + 20), NOW)
    assert (limit.after_s, limit.notice_s) == (18, 9)
    assert decide_limit(StopPolicy(), Allocation(end=NOW - 5), NOW).after_s == 0


def test_the_notice_that_was_asked_for_is_given():
    policy = StopPolicy(time_limit_notice_s=300)
    assert decide_limit(policy, Allocation(end=NOW + 7200), NOW).notice_s == 300


class FakeLoop:
    def __init__(self):
        self.timers = []

    def after(self, delay_s, call):
        timer = FakeTimer(delay_s, call)
        self.timers.append(timer)
        return timer

    def live(self):
        return sorted(timer.delay_s for timer in self.timers if not timer.cancelled)


class FakeTimer:
    def __init__(self, delay_s, call):
        self.delay_s, self.call, self.cancelled = delay_s, call, False

    def cancel(self):
        self.cancelled = True


@pytest.fixture
def loop():
    return FakeLoop()


def clock(loop, lease, policy=None, told=None, ended=None):
    return AttemptClock(
        policy or StopPolicy(),
        lease,
        loop,
        send=(told if told is not None else []).append,
        warn=lambda _: None,
        on_limit=(ended if ended is not None else []).append,
    )


def test_the_end_of_the_job_is_told_and_ends_the_attempt(loop):
    told, ended = [], []
    ticking = clock(loop, Allocation(end=time.time() + 7200), told=told, ended=ended)
    running = attempt()
    ticking.begin(running)
    limit, notice = (timer.call for timer in loop.timers)
    notice()
    assert told[0]["cause"] == "time_limit"
    limit()
    assert ended[0].from_outside
    assert "end of the job's time" in ended[0].message
    ticking.end()
    assert loop.live() == []


def test_time_that_was_cut_is_learnt_from_the_scheduler(loop):
    ticking = clock(loop, Allocation(end=time.time() + 7200, notice_s=90))
    ticking.begin(attempt())
    ticking.warned()
    assert loop.live() == pytest.approx([26, 81], abs=30)


def test_a_word_of_what_is_known_changes_nothing(loop):
    ticking = clock(loop, Allocation(end=time.time() + 120, notice_s=90))
    ticking.begin(attempt())
    before = loop.live()
    ticking.warned()
    assert loop.live() == before


def test_a_job_without_a_known_end_hears_of_it(loop):
    ticking = clock(loop, Allocation(notice_s=90))
    ticking.warned()
    ticking.begin(attempt())
    assert loop.live() == []
    ticking.warned()
    assert len(loop.live()) == 2


def test_more_time_and_less_is_noticed(loop):
    start = time.time()
    ticking = clock(loop, Allocation(end=start + 3600), policy=StopPolicy(time_limit_s=3600))
    ticking.begin(attempt(running=start))
    ticking.moved(start + 3610)  # two clocks
    assert loop.live() == pytest.approx([3505, 3565], abs=5)
    ticking.moved(start + 7200)
    assert loop.live() == pytest.approx([7105, 7165], abs=5), "the run's own time is extended, too"
    ticking.moved(start + 100)
    assert loop.live() == pytest.approx([45, 90], abs=5)
    ticking.moved(None)
    assert loop.live() == [], "a person who takes the limit away means the run"
    ticking.moved(start + 7200)
    assert len(loop.live()) == 2
    ticking.end()
    ticking.begin(attempt(running=start))
    assert loop.live() == pytest.approx([7105, 7165], abs=5), "what was learnt holds for the next attempt"


@pytest.mark.parametrize("by_s", [3600.0, -3600.0])
def test_a_clock_that_is_set_takes_no_time_from_the_run(loop, monkeypatch, by_s):
    start, wall = time.time(), time.time
    ticking = clock(loop, Allocation(), policy=StopPolicy(time_limit_s=600))
    ticking.begin(attempt(running=start))
    monkeypatch.setattr("time.time", lambda: wall() + by_s)
    ticking.moved(start + by_s + 7200)
    assert loop.live() == pytest.approx([540, 600], abs=5)


def test_an_end_that_is_only_told_leaves_the_runs_own_time(loop):
    start = time.time()
    ticking = clock(loop, Allocation(), policy=StopPolicy(time_limit_s=600))
    ticking.begin(attempt(running=start))
    ticking.moved(start + 7200)
    assert loop.live() == pytest.approx([540, 600], abs=5)


def test_a_signal_at_the_end_is_about_the_end(loop):
    assert clock(loop, Allocation(end=time.time() + 1)).is_over()
    assert not clock(loop, Allocation(end=time.time() + 600)).is_over()
    assert not clock(loop, Allocation()).is_over()


def test_ranks_that_end_when_told_go_on_elsewhere():
    limit = decide_limit(StopPolicy(), Allocation(end=NOW + 600), NOW)
    policy = StopPolicy(notice_signal=NoticeSignal.USR1)
    ending = decide_completion(policy, limit, attempt(noticed=NOW), agreed=False, now=NOW + 1)
    assert (ending.cause, ending.from_outside) == ("time_limit", True)
    assert decide_completion(policy, limit, attempt(), agreed=False, now=NOW + 1).cause == "success"
    assert decide_completion(policy, None, attempt(noticed=NOW), agreed=True, now=NOW + 1).cause == "success"


def test_ranks_that_left_because_one_of_them_got_a_signal_have_not_succeeded(tmp_path):
    folder = AttemptDir(tmp_path)
    write_json(folder.notice, {"kind": "signal", "rank": 1, "time": NOW})
    assert read_told(folder) == {"agreed": False, "signalled": None}
    write_json(folder.stop_at, {"call": 7})
    told = read_told(folder)
    assert told == {"agreed": True, "signalled": 1}
    ending = decide_completion(StopPolicy(), None, attempt(), now=NOW, **told)
    assert (ending.cause, ending.reason) == ("preemption", Reason.PREEMPTED)
    assert ending.message.startswith("SIGTERM came to rank 1 from outside")
    done = RankRecord(rank=0, node=0, host="h", step=9, total=9)
    assert decide_completion(StopPolicy(), None, attempt(ranks={0: done}), now=NOW, **told).cause == "success"
    write_json(folder.notice, {"kind": "preemption", "time": NOW})
    assert decide_completion(StopPolicy(), None, attempt(), now=NOW, **read_told(folder)).cause == "success"


def failed(number):
    record = RankRecord(rank=0, node=0, host="h", pid=1, started=NOW)
    record.ended, record.signal, record.ended_by = NOW + 9, number, "self"
    return attempt(ranks={0: record}, ending=Ending(cause="failure", time=NOW + 9))


def test_ranks_that_a_scheduler_ended_beside_their_agent_have_not_failed():
    preempted = Ending(cause="preemption", time=NOW + 9.1)
    assert failed(signal.SIGTERM).is_ended_by(preempted)
    assert not failed(signal.SIGKILL).is_ended_by(preempted)
    assert not failed(signal.SIGTERM).is_ended_by(Ending(cause="preemption", time=NOW + 60))
    assert not failed(signal.SIGTERM).is_ended_by(Ending(cause="failure", time=NOW + 9.1))
    assert failed(signal.SIGSEGV).is_ended_by(Ending(cause="stop", time=NOW + 60))
