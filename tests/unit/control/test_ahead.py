"""Launches that wait for the end of those before them: which runs have one, and when it is taken back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gangline.control.ahead import decide_ahead
from gangline.control.commands import Commands
from gangline.control.facts import Facts
from gangline.control.reconcile import Reconciler
from gangline.domain.errors import NoCapacity, Transient
from gangline.domain.gang import Liveness, Observation
from gangline.domain.phase import Budget, Phase
from gangline.domain.spec import EntryKind, OnTimeLimit, StopPolicy
from gangline.ports import Queued
from gangline.rundir.home import Home
from gangline.store.store import Store
from gangline.testing import FakeClock, FakeCluster, make_spec
from gangline.testing.leader import FakeLeader

HOUR_S = 3600.0


class Plant:
    """A server, and a cluster elsewhere."""

    def __init__(self, folder):
        self.home = Home(folder / "home").create()
        self.store, self.clock = Store.open(self.home.database), FakeClock()
        self.cluster = FakeCluster(folder / "far", self.home.path, clock=self.clock)
        self.restart()

    def restart(self):
        parts = {"store": self.store, "backends": {"far": self.cluster}, "home": self.home, "clock": self.clock}
        self.reconciler = Reconciler(**parts, beside=lambda work: work())
        self.commands = Commands(**parts, poke=lambda: None)

    def tick(self, times=4):
        for _ in range(times):
            self.clock.advance(1.0)
            self.cluster.ferry()
            self.reconciler.tick()

    def running(self, **fields):
        given = {"time_limit_s": HOUR_S, "on_time_limit": "continue", **fields}
        spec = make_spec(entry="sleep", entry_kind=EntryKind.COMMAND, pool="far", **given)
        run = self.commands.submit(spec, client={}, key="key")["id"]
        self.tick()
        self.go_on(run)
        return run

    def go_on(self, run):
        """Its newest launch gets its machines, and runs."""
        self.cluster.begin(run)
        leader = self.leader(run)
        leader.begin(running=True)
        leader.checkpoint(leader.attempt * 10 + 10)
        self.tick()
        return leader

    def leader(self, run):
        gang = self.cluster.find(run).launch.gang
        return FakeLeader(self.cluster.far(run), gang.launch, clock=self.clock)

    def time_is_over(self, run, leader):
        leader.end("stopped", next_step="relaunch", budget="continuation", reason="time_limit")
        self.cluster.kill(run)
        self.tick()

    def words(self, run):
        return [event.message for event in self.store.events(run) if event.kind == "ahead"]


@pytest.fixture
def plant(tmp_path):
    made = Plant(tmp_path)
    yield made
    made.store.close()


def test_the_next_launch_waits_and_is_the_one_that_the_run_goes_on_with(plant):
    run = plant.running()
    assert plant.cluster.ahead.made == [(run, 1)]
    plant.tick(50)
    assert plant.cluster.ahead.made == [(run, 1)], "once is enough"
    assert plant.words(run) == [f"Job {run}.1 waits for the end of this one: with it the run goes on after its time."]
    leader = plant.leader(run)
    leader.attempt = 0
    plant.time_is_over(run, leader)
    assert plant.cluster.ahead.waiting == {}
    assert plant.store.run(run).launch == 1
    plant.go_on(run)
    assert plant.cluster.ahead.made == [(run, 1), (run, 2)]


@pytest.mark.parametrize("fields", [{"on_time_limit": "fail"}, {"time_limit_s": None}, {"max_continuations": 0}])
def test_a_run_that_does_not_go_on_needs_none(plant, fields):
    plant.running(**fields)
    assert plant.cluster.ahead.made == []


def test_it_is_handed_over_so_long_before_the_end_as_the_pool_says(plant):
    plant.cluster.ahead.lead_s = 600.0
    run = plant.running()
    assert plant.cluster.ahead.made == []
    plant.clock.advance(HOUR_S - 650)
    plant.tick(1)
    assert plant.cluster.ahead.made == []
    plant.clock.advance(100)
    plant.tick()
    assert plant.cluster.ahead.made == [(run, 1)]


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("end", ["succeeded", "stopped", "cancelled"])
def test_what_a_run_that_is_over_had_waiting_is_taken_back(plant, end, is_killed):
    run = plant.running()
    if end == "stopped":
        plant.commands.stop(run, grace_s=0.0, by="somebody")
    elif end == "cancelled":
        plant.cluster.kill(run, from_outside=True)
    else:
        leader = plant.leader(run)
        leader.attempt = 0
        leader.end("succeeded", next_step="end")
        plant.cluster.kill(run)
    if is_killed:
        plant.restart()
    plant.tick()
    assert plant.cluster.ahead.waiting == {}
    assert (
        plant.words(run)[-1] == f"Job {run}.1, which waited for the end of this run's last one, is not needed any more."
    )
    assert len(plant.words(run)) == 2


def test_what_cannot_be_taken_back_now_is_tried_again_by_any_server(plant):
    run = plant.running()
    plant.cluster.ahead.refusal = Transient("The pool does not answer")
    plant.commands.stop(run, grace_s=0.0, by="somebody")
    plant.cluster.kill(run, from_outside=True)
    plant.tick()
    assert run in plant.cluster.ahead.waiting
    assert plant.store.run(run).phase is Phase.STOPPED
    plant.restart()
    plant.tick()
    assert plant.cluster.ahead.waiting == {}


def test_a_run_goes_on_where_no_job_could_wait_for_it(plant):
    plant.cluster.ahead.refusal = NoCapacity("Slurm takes no more jobs of yours now")
    run = plant.running()
    assert plant.cluster.ahead.made == []
    plant.clock.advance(20)
    plant.tick()
    assert plant.cluster.ahead.made == [(run, 1)], "it is tried again after a while"


def test_a_request_whose_answer_was_lost_is_repeated(plant):
    plant.cluster.ahead.lost_answers = 1
    run = plant.running()
    assert plant.cluster.ahead.queued() == {run: Queued(launch=1, job="")}
    plant.clock.advance(20)
    plant.tick()
    assert plant.cluster.ahead.queued() == {run: Queued(launch=1, job=f"{run}.1")}
    assert plant.cluster.ahead.made == [(run, 1)]


def test_a_launch_that_is_lost_is_followed_by_the_one_that_waits(plant):
    run = plant.running(max_infrastructure_restarts=1)
    plant.cluster.kill(run)
    plant.tick()
    assert plant.store.run(run).launch == 1
    assert plant.cluster.ahead.waiting == {}
    assert plant.cluster.find(run).launch.gang.launch == 1


def test_only_a_launch_that_runs_and_whose_end_is_known_has_a_next_one(plant):
    run = plant.running()
    row, attempts = plant.store.run(run), plant.store.attempts(run)
    alive = Observation(liveness=Liveness.ALIVE, ends_at=1000.0)
    facts = Facts(run=row, attempts=attempts, observation=alive, stop=StopPolicy(on_time_limit=OnTimeLimit.CONTINUE))
    assert decide_ahead(facts, HOUR_S)
    assert not decide_ahead(facts, 999.0)
    assert not decide_ahead(replace(facts, attempts=[]), HOUR_S)
    assert not decide_ahead(replace(facts, observation=replace(alive, ends_at=float("inf"))), HOUR_S)
    assert not decide_ahead(replace(facts, observation=replace(alive, liveness=Liveness.UNKNOWN)), HOUR_S)
    assert not decide_ahead(replace(facts, run=replace(row, phase=Phase.STOPPING)), HOUR_S)
    most = StopPolicy(on_time_limit=OnTimeLimit.CONTINUE, max_continuations=2)
    assert decide_ahead(replace(facts, stop=most, used={Budget.CONTINUATION: 1}), HOUR_S)
    assert not decide_ahead(replace(facts, stop=most, used={Budget.CONTINUATION: 2}), HOUR_S)
