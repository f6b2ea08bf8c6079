"""Any order of what people, backends, leaders and crashes may do leaves every run legal, final and explained."""

import json
import tempfile
from pathlib import Path

import hypothesis.strategies as st
from hypothesis import HealthCheck, given, settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, precondition, rule
from tests.property.lawful import Lawful

from gangline.control.commands import Commands
from gangline.control.fold import MetricsFold, apply_result, fold_journal, fold_metrics, journal_events, result_event
from gangline.control.reconcile import Reconciler
from gangline.domain.errors import Conflict, NoCapacity, Rejected, Transient
from gangline.domain.phase import TERMINAL
from gangline.domain.spec import EntryKind
from gangline.rundir.home import Home
from gangline.rundir.journal import read_journal
from gangline.store.rows import AttemptRow, IngestBatch, NewRun
from gangline.store.store import Store
from gangline.testing import FakeBackend, FakeClock, make_capacity, make_spec
from gangline.testing.leader import FakeLeader

LONG_S = 3_000.0
PICK = st.integers(0, 1000)
RANKS = 8


class Control(Lawful, RuleBasedStateMachine):
    """Runs against a real store, real files, a fake backend and leaders that only write."""

    runs = Bundle("runs")

    def __init__(self):
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.home = Home(Path(self.folder.name)).create()
        self.store = Store.open(self.home.database)
        self.backend, self.clock = FakeBackend(make_capacity(ranks=RANKS)), FakeClock()
        self.count = 0
        self.ids, self.stopped = [], {}
        self.restart_server()

    @rule()
    def restart_server(self):
        self.reconciler = Reconciler(
            store=self.store, backends={"local": self.backend}, home=self.home, clock=self.clock
        )
        self.commands = Commands(
            store=self.store, backends={"local": self.backend}, home=self.home, clock=self.clock, poke=lambda: None
        )

    @rule(target=runs, ranks=st.sampled_from([1, 2, 3, 5, 8]), budget=st.integers(0, 2))
    def submit(self, ranks, budget):
        self.count += 1
        self.clock.advance(0.001)
        spec = make_spec(
            entry="sleep",
            entry_kind=EntryKind.COMMAND,
            procs_per_node=ranks,
            max_infrastructure_restarts=budget,
            max_preemptions=budget,
        )
        run = self.commands.submit(spec, client={}, key=str(self.count))["id"]
        self.ids.append(run)
        self.reconciler.tick()
        return run

    @rule(times=st.integers(1, 3))
    def tick(self, times):
        for _ in range(times):
            self.reconciler.tick()

    @rule(delay_s=st.sampled_from([0.5, 5.0, 40.0]))
    def wait(self, delay_s):
        self.clock.advance(delay_s)

    @rule(run=runs, grace_s=st.sampled_from([None, 0.0, 5.0]))
    def stop(self, run, grace_s):
        was = self.store.run(run).phase
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

    @precondition(lambda self: self.backend.live())
    @rule(pick=PICK, how=st.sampled_from(["kill", "outside", "preempt"]))
    def lose(self, pick, how):
        run = self.live_run(pick)
        if how == "preempt":
            self.backend.preempt(run)
        else:
            self.backend.kill(run, from_outside=how == "outside")

    @precondition(lambda self: self.backend.live())
    @rule(pick=PICK, running=st.booleans())
    def begin_attempt(self, pick, running):
        leader = self.leader(self.live_run(pick))
        if self.may_begin(leader):
            leader.begin(running=running)
        elif not self.is_running(leader):
            leader.run()
        self.reconciler.tick()

    @precondition(lambda self: self.backend.live())
    @rule(
        pick=PICK,
        outcome=st.sampled_from(["succeeded", "failed", "failed", "failed", "stopped", "preempted"]),
        following=st.sampled_from(["end", "restart", "relaunch"]),
        budget=st.sampled_from(["user", "infrastructure", "preemption"]),
    )
    def end_attempt(self, pick, outcome, following, budget):
        leader = self.leader(self.live_run(pick))
        if self.may_begin(leader):
            return
        following = "end" if outcome in {"succeeded", "stopped"} else following
        reason = {"failed": "user_error", "stopped": "stopped_by_user", "preempted": "preempted"}.get(outcome)
        leader.end(outcome, next_step=following, budget=budget if following != "end" else None, reason=reason)

    @rule(silent=st.booleans())
    def silence(self, silent):
        self.backend.silence(on=silent)

    @rule(error=st.sampled_from([Transient, NoCapacity, Rejected]))
    def refuse(self, error):
        self.backend.refuse(error("The fake says no"))

    @rule()
    def lose_answer(self):
        self.backend.lose_answers()

    @invariant()
    def no_more_ranks_than_there_are(self):
        assert sum(launch.launch.gang.procs_per_node for launch in self.backend.live()) <= RANKS

    @invariant()
    def one_launch_of_a_run_at_a_time(self):
        live = [launch.launch.gang.run_id for launch in self.backend.live()]
        assert len(live) == len(set(live))

    @invariant()
    def attempts_never_start_twice(self):
        firsts = {}
        for launch in self.backend.launches.values():
            gang = launch.launch.gang
            assert firsts.setdefault((gang.run_id, gang.launch), gang.first_attempt) == gang.first_attempt
        for run in self.ids:
            numbers = [first for (name, _), first in sorted(firsts.items()) if name == run]
            assert numbers == sorted(numbers)

    @invariant()
    def nothing_went_wrong(self):
        for run in self.ids:
            assert not [event for event in self.store.events(run) if event.kind == "error"]

    def teardown(self):
        """However it went, once everybody answers and people stop what is left, all is let go."""
        self.backend.silence(on=False)
        self.backend._refusals.clear()
        self.backend._lost_answers = 0
        for run in self.ids:
            self.commands.stop(run, grace_s=0.0, by="teardown")
        for _ in range(12):
            self.tick(2)
            self.clock.advance(LONG_S)
        for run in map(self.store.run, self.ids):
            assert run.phase in TERMINAL
            assert run.handle is None
            assert run.placement is None
        assert self.backend.live() == []
        self.store.close()
        self.folder.cleanup()

    def live_run(self, pick):
        live = self.backend.live()
        return live[pick % len(live)].launch.gang.run_id

    def leader(self, run):
        """The leader of the run's live launch, as far as its files go."""
        leader = FakeLeader(self.home.run(run), self.backend.find(run).launch.gang.launch, clock=self.clock)
        begun = self.home.run(run).attempts()
        leader.attempt = max(leader.attempt, begun[-1].number if begun else -1)
        return leader

    def may_begin(self, leader):
        """There is no attempt of this launch yet, or the last one is to be followed by another."""
        if leader.attempt < leader.told["first_attempt"]:
            return True
        path = self.home.run(leader.told["run_id"]).attempt(leader.attempt).result
        return path.exists() and json.loads(path.read_text())["next"] == "restart"

    def is_running(self, leader):
        folder = self.home.run(leader.told["run_id"]).attempt(leader.attempt)
        return any(record["kind"] == "attempt_running" for record in read_journal(folder.events(0)))


TestControl = Control.TestCase
TestControl.settings = settings(
    max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
KEYS = st.sampled_from(
    [
        "k",
        "a",
        "t",
        "s",
        "v",
        "n",
        "path",
        "bytes",
        "files",
        "seconds",
        "text",
        "kind",
        "rank",
        "pid",
        "exit_code",
        "signal",
        "ended_by",
        "launch",
        "resume",
        "resume_step",
        "start_mode",
        "pids",
        "cause",
        "grace_s",
        "node",
        "outcome",
        "reason",
        "message",
        "ended",
        "next",
        "next_delay_s",
        "ranks",
        "first_failure",
        "budget",
        "detail",
        "restart_message",
        "host",
        "address",
    ]
)
KINDS = st.sampled_from(
    [
        "agent_started",
        "attempt_started",
        "attempt_running",
        "rank_started",
        "rank_exited",
        "stopping",
        "killed",
        "warning",
    ]
)
RECORDS = st.builds(
    lambda record, k, kind, attempt, time: {**record, "k": k, "kind": kind, "a": attempt, "t": time},
    st.dictionaries(KEYS, JSON, max_size=8),
    st.sampled_from(["m", "p", "c", "r", "w", "h"]),
    KINDS,
    JSON | st.integers(0, 3),
    JSON | st.floats(0, 1e9),
)


@given(records=st.lists(RECORDS, max_size=5))
@settings(max_examples=300, deadline=None)
def test_no_record_of_any_shape_stalls_a_run(records):
    fold = MetricsFold()
    fold_metrics(fold, 0, records)
    attempt = fold_journal(AttemptRow(number=0, launch=0), 0, records)
    events = journal_events(0, 0, records)
    for record in records:
        attempt = apply_result(attempt, record)
        events.append(result_event(attempt))
    batch = IngestBatch(
        cursors={},
        attempts=[attempt],
        events=[*events, *fold.events],
        checkpoints=list(fold.checkpoints.values()),
        removed_checkpoints=fold.removed,
        points=list(fold.points.values()),
        step=fold.step,
        total_steps=fold.total_steps,
    )
    with tempfile.TemporaryDirectory() as folder:
        store = _store_with_a_run(Path(folder))
        assert store.ingest("r-1", batch)
        store.close()


def _store_with_a_run(folder):
    store = Store.open(folder / "gangline.db")
    values = dict.fromkeys(("key", "name", "project", "user", "pool"), "x")
    sizes = {"priority": 0, "nodes": 1, "procs_per_node": 1, "gpus_per_node": 0}
    store.add_run(
        NewRun(id="r-1", **values, **sizes, labels={}, spec={}, client={}, snapshot=None, created=1.0, message="")
    )
    return store
