"""When a gang counts as hung: the table of decisions, with a clock that the tests turn."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gangline.agent.watch.vigil import Activity, Level, Vigil, decide_period_s

LIMIT_S = 100.0
PERIOD_S = 1.0


class Scene:
    """Two ranks on two nodes, looked at once a second."""

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        self.now = 1000.0
        self.vigil = Vigil(limit_s=limit_s, nodes=[0, 1], period_s=PERIOD_S, now=self.now)
        self.ranks = [Activity(rank=0), Activity(rank=1)]
        self.seen: list[tuple[float, Level]] = []
        self.report()

    def report(self) -> None:
        for node, rank in enumerate(self.ranks):
            self.vigil.note(node, [rank], self.now)

    def change(self, rank: int, **keys: object) -> None:
        self.ranks[rank] = replace(self.ranks[rank], **keys)

    def run(self, seconds: float, *, cpu=0.0, io=0, written=0, log=0, nodes=(0, 1)) -> list[tuple[float, Level]]:
        """Let time pass; what rank 0 uses in each second. Returns the looks that asked for something, by second."""
        found = []
        for second in range(int(seconds)):
            self.now += PERIOD_S
            one = self.ranks[0]
            self.change(
                0,
                cpu_s=one.cpu_s + cpu,
                io_bytes=one.io_bytes + io,
                written_bytes=one.written_bytes + written,
                log_bytes=one.log_bytes + log,
            )
            for node in nodes:
                self.vigil.note(node, [self.ranks[node]], self.now)
            look = self.vigil.look(self.now)
            if look.level is not Level.FINE:
                found.append((second + 1, look.level))
        return found

    def step(self, rank: int = 0) -> None:
        self.change(rank, steps=self.ranks[rank].steps + 1)
        self.report()


def test_an_idle_gang_is_looked_at_closer_at_half_the_limit_and_hangs_at_the_limit():
    assert Scene().run(100) == [(50, Level.CLOSER), (100, Level.HANG)]


@pytest.mark.parametrize("work", [{"cpu": 0.5}, {"cpu": 0.05}, {"io": 1 << 20}, {"log": 10}])
def test_before_any_step_work_of_any_kind_counts_for_ten_times_the_limit(work):
    assert Scene().run(1000, **work) == []


@pytest.mark.parametrize("little", [{"cpu": 0.01}, {"io": 1000}])
def test_what_a_rank_uses_that_only_waits_does_not_count(little):
    assert Scene().run(100, **little)[-1] == (100, Level.HANG)


@pytest.mark.parametrize("noise", [{"cpu": 1.0}, {"log": 100}, {"io": 1 << 20}])
def test_once_steps_were_reported_nothing_else_counts(noise):
    scene = Scene()
    scene.step()
    assert scene.run(100, **noise) == [(50, Level.CLOSER), (100, Level.HANG)]


@pytest.mark.parametrize("work", [{"cpu": 0.5}, {"io": 1 << 20}])
def test_after_its_last_step_a_rank_may_work_for_ten_limits(work):
    scene = Scene()
    scene.change(0, finished=True)
    scene.step()
    assert scene.run(1000, **work) == [(500, Level.CLOSER), (1000, Level.HANG)]


def test_after_its_last_step_talk_is_no_work():
    scene = Scene()
    scene.change(0, finished=True)
    scene.step()
    assert scene.run(100, log=100) == [(50, Level.CLOSER), (100, Level.HANG)]  # while torch's end hangs


def test_a_busy_device_counts_before_steps_and_not_after():
    scene = Scene()
    scene.change(0, device_percent=100.0)
    assert scene.run(300) == []
    scene.step()
    assert scene.run(100)[-1] == (100, Level.HANG)


def test_every_step_of_any_rank_begins_the_count_again():
    scene = Scene()
    for rank in (0, 1, 0, 1):
        scene.step(rank)
        assert scene.run(49) == []


def test_a_phase_holds_for_ten_limits_and_its_end_is_progress():
    scene = Scene()
    scene.step()
    scene.change(1, phase="evaluating", marks=1)
    scene.report()
    assert scene.run(999) == [(500, Level.CLOSER)]
    scene.change(1, phase=None, marks=2)
    scene.report()
    assert scene.run(100) == [(50, Level.CLOSER), (100, Level.HANG)]


def test_a_phase_has_the_limit_that_it_names():
    scene = Scene()
    scene.change(0, phase="exporting", phase_limit_s=300.0, marks=1)
    scene.report()
    assert scene.run(300)[-1] == (300, Level.HANG)


def test_a_save_that_took_long_before_may_take_long_again():
    scene = Scene()
    scene.change(0, phase="saving", longest_s=900.0, marks=3)
    scene.report()
    assert scene.run(2699) == [(1350, Level.CLOSER)]


def test_much_that_is_written_holds_like_a_phase_even_with_steps():
    scene = Scene()
    scene.step()
    assert scene.run(600, written=4 << 20) == [(500, Level.CLOSER)]
    assert Level.HANG in [level for _, level in scene.run(60)]


def test_stacks_that_move_give_another_limit_up_to_ten():
    scene = Scene()
    scene.run(100)
    assert scene.vigil.extend(scene.now)
    assert scene.run(100) == [(100, Level.HANG)]
    for _ in range(8):
        assert scene.vigil.extend(scene.now)
        scene.run(100)
    assert not scene.vigil.extend(scene.now)


def test_a_hang_that_is_only_told_is_told_again_after_another_limit():
    scene = Scene()
    scene.run(100)
    scene.vigil.told(scene.now)
    assert scene.run(100) == [(100, Level.HANG)]


def test_a_rank_that_has_left_is_reason_to_look_soon_then_less_often_and_when_it_counts_as_a_hang():
    scene = Scene()
    scene.vigil.ended(1, scene.now)
    assert scene.run(49) == [(second, Level.CLOSER) for second in (5, 10, 20, 25)]


def test_after_progress_the_looks_for_a_rank_that_has_left_begin_again():
    scene = Scene()
    scene.step()
    scene.vigil.ended(1, scene.now)
    assert scene.run(8) == [(5, Level.CLOSER)]
    scene.step()
    assert scene.run(8) == [(5, Level.CLOSER)]


def test_silence_before_a_rank_has_left_says_nothing_of_those_it_left():
    scene = Scene()
    scene.run(40)
    scene.vigil.ended(1, scene.now)
    scene.run(5)
    look = scene.vigil.look(scene.now)
    assert (look.quiet_s, look.left_s) == (45.0, 5.0)


def test_a_short_limit_is_looked_at_no_sooner_than_it_is_over():
    scene = Scene(limit_s=3.0)
    scene.vigil.ended(1, scene.now)
    assert scene.run(3) == [(2, Level.CLOSER), (3, Level.HANG)]


def test_a_node_that_does_not_report_stays_undecided():
    scene = Scene()
    assert scene.run(300, nodes=(0,)) == []
    scene.report()
    assert scene.run(1)[-1][1] is Level.HANG


def test_a_leader_that_slept_begins_again():
    scene = Scene()
    scene.now += 1000
    assert scene.run(99) == [(51, Level.CLOSER)]


def test_a_stopped_rank_is_told_once_for_each_time():
    scene = Scene()
    scene.change(1, state="stopped", pid=42)
    scene.run(3)
    assert [held.pid for held in scene.vigil.held(scene.now)] == [42]
    assert scene.vigil.held(scene.now + 10) == []
    scene.change(1, state="runs")
    scene.run(1)
    scene.change(1, state="stopped")
    scene.run(3)
    assert len(scene.vigil.held(scene.now)) == 1
    assert scene.run(100)[-1][1] is Level.HANG


def test_a_debugger_holds_the_watchdog_off():
    scene = Scene()
    scene.change(1, state="traced")
    assert scene.run(500) == []


def test_a_rank_that_our_own_look_traced_is_held_by_nobody():
    scene = Scene()
    scene.change(1, state="traced", pid=42)
    scene.run(3)
    scene.vigil.traced_by_us()
    assert (scene.vigil.held(scene.now), scene.vigil.is_traced()) == ([], False)
    scene.run(3)
    assert [held.pid for held in scene.vigil.held(scene.now)] == [42]  # somebody else has it


def test_cpu_time_that_a_dead_child_takes_along_is_no_work():
    scene = Scene()
    scene.change(0, cpu_s=500.0)
    scene.run(30)
    scene.change(0, cpu_s=1.0)
    assert scene.run(100)[-1][1] is Level.HANG


@pytest.mark.parametrize(("limit_s", "period_s"), [(1.0, 0.1), (20.0, 1.0), (600.0, 5.0)])
def test_nodes_look_often_enough_for_the_limit(limit_s, period_s):
    assert decide_period_s(limit_s) == period_s


def test_a_rank_that_raised_and_goes_on_is_looked_at_early_as_one_that_has_ended():
    scene = Scene()
    scene.step()
    scene.change(1, raised=True)
    seen = [second for second, _ in scene.run(60)]
    assert seen[:4] == [6, 11, 21, 26]  # the last 25 after it was seen, when it counts
    assert scene.vigil.raised() == [1]
    scene.vigil.ended(1, scene.now)
    assert scene.vigil.raised() == []
