"""As `test_control.py`, on a cluster elsewhere with a queue of its own: slow submits, late mirrors, jobs put back."""

import json
import tempfile
from pathlib import Path

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.property.lawful import Lawful

from gangline.control.commands import Commands
from gangline.control.reconcile import Reconciler
from gangline.domain.errors import AuthFailed, Conflict, NoCapacity, Rejected, Transient
from gangline.domain.gang import Liveness
from gangline.domain.phase import TERMINAL, Reason
from gangline.domain.spec import EntryKind
from gangline.rundir.home import Home
from gangline.store.store import Store
from gangline.testing import FakeClock, FakeCluster, make_spec
from gangline.testing.leader import FakeLeader

LONG_S = 3_000.0
PICK = st.integers(0, 1000)


class Elsewhere(Lawful, RuleBasedStateMachine):
    """Jobs, leaders and mirrors move on by themselves; the server may be killed at any moment."""

    runs = Bundle("runs")

    def __init__(self):
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        root = Path(self.folder.name)
        self.home = Home(root / "home").create()
        self.store, self.clock = Store.open(self.home.database), FakeClock()
        self.cluster = FakeCluster(root / "far", self.home.path, clock=self.clock)
        self.ids, self.stopped, self.works, self.renewed = [], {}, [], set()
        self.num_stops = 0
        self.kill_server(arrives=False)

    @rule(arrives=st.booleans())
    def kill_server(self, arrives):
        """What was on its way to the cluster may have reached it; nobody hears the answer."""
        while arrives and self.works:
            self.works.pop(0)()
        self.works.clear()
        parts = {"store": self.store, "backends": {"far": self.cluster}, "home": self.home, "clock": self.clock}
        self.reconciler = Reconciler(**parts, beside=self.works.append)
        self.commands = Commands(**parts, poke=lambda: None)

    @initialize(target=runs, budget=st.integers(0, 2), policy=st.sampled_from(["fail", "stop", "continue"]))
    def begin(self, budget, policy):
        run = self.submit(budget, policy)
        self.all_goes_well()
        return run

    @rule()
    def all_goes_well(self):
        """Jobs are made and begin, and so do attempts; the mirror has it, and the server sees it."""
        self.tick(1)
        self.deliver()
        self.tick(1)
        for held in self.jobs(Liveness.PENDING):
            self.cluster.begin(held.launch.gang.run_id)
        for held in self.jobs(Liveness.ALIVE):
            self.go_on(held, running=True, saves=True)
        self.ferry()

    @rule(target=runs, budget=st.integers(0, 2), policy=st.sampled_from(["fail", "stop", "continue"]))
    def submit(self, budget, policy):
        self.clock.advance(0.001)
        spec = make_spec(
            entry="sleep",
            entry_kind=EntryKind.COMMAND,
            pool="far",
            time_limit_s=600.0,
            on_time_limit=policy,
            max_infrastructure_restarts=budget,
            max_preemptions=budget,
        )
        run = self.commands.submit(spec, client={}, key=str(len(self.ids)))["id"]
        self.ids.append(run)
        self.reconciler.tick()
        return run

    @rule(times=st.integers(1, 3))
    def tick(self, times):
        for _ in range(times):
            self.clock.advance(0.1)
            self.reconciler.tick()

    @rule(delay_s=st.sampled_from([0.5, 5.0, 40.0]))
    def wait(self, delay_s):
        self.clock.advance(delay_s)

    @rule()
    def deliver(self):
        while self.works:
            self.works.pop(0)()

    @rule()
    def ferry(self):
        self.clock.advance(0.5)
        self.cluster.ferry()
        self.reconciler.tick()

    @precondition(lambda self: self.num_stops < 2)
    @rule(run=runs, grace_s=st.sampled_from([None, 0.0, 5.0]))
    def stop(self, run, grace_s):
        was = self.store.run(run).phase
        self.num_stops += 1
        self.commands.stop(run, grace_s=grace_s, by="somebody")
        if was not in TERMINAL:
            self.stopped.setdefault(run, self.store.run(run).launch)

    @rule(run=runs)
    def resume(self, run):
        try:
            self.commands.resume(run, by="somebody")
        except Conflict:
            return
        self.stopped.pop(run, None)

    # The cluster

    @precondition(lambda self: self.jobs(Liveness.PENDING))
    @rule(pick=PICK)
    def begin_job(self, pick):
        self.cluster.begin(self.pick(pick, Liveness.PENDING).launch.gang.run_id)

    @precondition(lambda self: self.jobs(Liveness.ALIVE))
    @rule(pick=PICK, preempted=st.booleans())
    def put_back(self, pick, preempted):
        held = self.pick(pick, Liveness.ALIVE)
        self.cluster.pend(held.launch.gang.run_id, "Resources", preempted=preempted)
        self.renewed.add(held.key)

    @precondition(lambda self: self.cluster.live())
    @rule(
        pick=PICK,
        how=st.sampled_from(["kill", "outside", "preempt"]),
        reason=st.none() | st.sampled_from([Reason.TIME_LIMIT, Reason.OUT_OF_MEMORY, Reason.NODE_LOST]),
    )
    def lose(self, pick, how, reason):
        live = self.cluster.live()
        run = live[pick % len(live)].launch.gang.run_id
        if how == "preempt":
            self.cluster.preempt(run)
        else:
            self.cluster.kill(run, from_outside=how == "outside", reason=reason)

    @precondition(lambda self: self.jobs(Liveness.ALIVE))
    @rule(pick=PICK, running=st.booleans(), saves=st.booleans())
    def begin_attempt(self, pick, running, saves):
        self.go_on(self.pick(pick, Liveness.ALIVE), running=running, saves=saves)

    def go_on(self, held, *, running, saves):
        leader = self.leader(held)
        if held.key in self.renewed:
            self.renewed.remove(held.key)
            if self.result(leader).get("next") in {"end", "relaunch"}:
                return  # the agents see that their launch is over
            leader.begin_anew()
        elif self.may_begin(leader):
            leader.begin(running=running)
        if saves and leader.attempt >= leader.told["first_attempt"]:
            leader.checkpoint(leader.attempt * 10 + 10)
        leader.beat()

    @precondition(lambda self: self.jobs(Liveness.ALIVE))
    @rule(
        pick=PICK,
        outcome=st.sampled_from(["succeeded", "failed", "failed", "failed", "stopped", "preempted"]),
        following=st.sampled_from(["end", "restart", "relaunch"]),
        budget=st.sampled_from(["user", "infrastructure", "preemption"]),
    )
    def end_attempt(self, pick, outcome, following, budget):
        held = self.pick(pick, Liveness.ALIVE)
        leader = self.leader(held)
        if held.key in self.renewed or self.may_begin(leader):
            return
        following = "end" if outcome in {"succeeded", "stopped"} else following
        reason = {"failed": "user_error", "stopped": "stopped_by_user", "preempted": "preempted"}.get(outcome)
        leader.end(outcome, next_step=following, budget=budget if following != "end" else None, reason=reason)

    @rule(silent=st.booleans())
    def silence(self, silent):
        self.cluster.silence(on=silent)

    @rule(error=st.sampled_from([Transient, NoCapacity, Rejected, AuthFailed]))
    def refuse(self, error):
        self.cluster.refuse(error("The fake says no"))

    @rule()
    def lose_answer(self):
        self.cluster.lose_answers()

    @rule(error=st.sampled_from([Transient, NoCapacity, Rejected, AuthFailed]))
    def refuse_ahead(self, error):
        self.cluster.ahead.refusal = error("The fake says no")

    @rule()
    def lose_answer_ahead(self):
        self.cluster.ahead.lost_answers += 1

    @invariant()
    def nothing_waits_that_has_begun(self):
        for run, gang in self.cluster.ahead.waiting.items():
            assert not self.cluster.may_have_started(run, gang.launch)
            assert gang.launch > 0

    @invariant()
    def one_job_of_a_run_at_a_time(self):
        live = [launch.launch.gang.run_id for launch in self.cluster.live()]
        assert len(live) == len(set(live))

    @invariant()
    def attempts_begin_after_those_before(self):
        for run in self.ids:
            held = [one for one in self.cluster.launches.values() if one.launch.gang.run_id == run]
            firsts = [one.launch.gang.first_attempt for one in held]
            assert firsts == sorted(firsts)

    @invariant()
    def nothing_went_wrong(self):
        for run in self.ids:
            assert not [event for event in self.store.events(run) if event.kind == "error"]

    def teardown(self):
        """However it went: once everybody answers and people stop what is left, all is let go."""
        self.cluster.silence(on=False)
        self.cluster._refusals.clear()
        self.cluster._lost_answers = 0
        self.cluster.ahead.refusal, self.cluster.ahead.lost_answers = None, 0
        for run in self.ids:
            self.commands.stop(run, grace_s=0.0, by="teardown")
        for _ in range(12):
            self.tick(2)
            self.deliver()
            self.clock.advance(LONG_S)
            self.cluster.ferry()
        for run in map(self.store.run, self.ids):
            assert run.phase in TERMINAL
            assert run.handle is None
            assert run.placement is None
        assert self.cluster.live() == []
        assert self.cluster.ahead.waiting == {}
        self.store.close()
        self.folder.cleanup()

    def jobs(self, liveness):
        return [held for held in self.cluster.launches.values() if held.liveness is liveness]

    def pick(self, pick, liveness):
        found = self.jobs(liveness)
        return found[pick % len(found)]

    def leader(self, held):
        gang = held.launch.gang
        leader = FakeLeader(self.cluster.far(gang.run_id), gang.launch, clock=self.clock)
        leader.attempt = max([leader.attempt, *(one.number for one in leader.run_dir.attempts())])
        return leader

    def result(self, leader):
        path = leader.run_dir.attempt(leader.attempt).result
        found = json.loads(path.read_text()) if path.exists() else {}
        return found if found.get("launch") == leader.launch else {}

    def may_begin(self, leader):
        if leader.attempt < leader.told["first_attempt"]:
            return True
        return self.result(leader).get("next") == "restart"


TestElsewhere = Elsewhere.TestCase
TestElsewhere.settings = settings(
    max_examples=15, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
