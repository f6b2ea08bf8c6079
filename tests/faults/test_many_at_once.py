"""B2: a thousand queued runs are cancelled while hundreds report; nothing is lost, and no database is locked."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from gangline.control.commands import Commands
from gangline.domain.phase import Phase, Reason
from gangline.domain.spec import EntryKind
from gangline.rundir.home import Home
from gangline.store.rows import IngestBatch, Move, NewEvent, NewRun, Points
from gangline.store.store import Store
from gangline.testing import FakeBackend, FakeClock, make_capacity, make_spec

pytestmark = pytest.mark.faults

QUEUED = 1_000
REPORTING = 200
ROUNDS = 5


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path / "home").create()


def test_a_thousand_cancels_while_two_hundred_report(home):
    store, other = (
        Store.open(home.database),
        Store.open(home.database),
    )  # two servers would be as two pools of connections
    backends = {"local": FakeBackend(make_capacity(ranks=8))}
    commands = Commands(store=store, backends=backends, home=home, clock=FakeClock(), poke=lambda: None)
    queued = [store.add_run(new_run(f"q-{number}")).id for number in range(QUEUED)]
    live = [store.add_run(new_run(f"l-{number}")).id for number in range(REPORTING)]
    with ThreadPoolExecutor(16) as pool:
        reports = [pool.submit(report, other, run) for run in live]
        stops = list(pool.map(lambda run: commands.stop(run, grace_s=None, by="b2"), queued))
        for future in reports:
            future.result()
    assert {summary["phase"] for summary in stops} == {"stopped"}
    assert store.counts() == (0, REPORTING)
    for run in queued:
        assert [event.kind for event in store.events(run)] == ["submitted", "phase"]
    for run in live:
        assert store.run(run).step == ROUNDS - 1
        assert [event.message for event in store.events(run)[1:]] == [str(number) for number in range(ROUNDS)]
        assert sum(cell[2] for cell in store.chart(run, "loss", rank=0, buckets=10)) == ROUNDS
    store.close()
    other.close()


def test_of_many_who_move_one_run_exactly_one_succeeds(home):
    store = Store.open(home.database)
    start = threading.Barrier(16)
    for number in range(20):
        run = store.add_run(new_run(f"r-{number}"))

        def race(index, run=run):
            start.wait()
            if index % 2:
                return store.move(run, Move(phase=Phase.STARTING), at=1.0)
            return store.move(run, Move(phase=Phase.STOPPED, reason=Reason.STOPPED_BY_USER), at=1.0)

        with ThreadPoolExecutor(16) as pool:
            moved = [result for result in pool.map(race, range(16)) if result is not None]
        assert len(moved) == 1
        assert store.run(run.id) == moved[0]
        assert len(store.events(run.id)) == 2
    store.close()


def test_the_same_submit_sent_many_times_at_once_is_one_run(home):
    store = Store.open(home.database)
    backends = {"local": FakeBackend(make_capacity(ranks=8))}
    commands = Commands(store=store, backends=backends, home=home, clock=FakeClock(), poke=lambda: None)
    spec = make_spec(entry="sleep", entry_kind=EntryKind.COMMAND)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: commands.submit(spec, client={}, key="k")["id"], range(8)))
    assert len(set(found)) == 1
    assert [path.name for path in home.runs.iterdir()] == found[:1]
    store.close()


def new_run(run_id):
    texts = {"key": run_id, "name": "n", "project": "p", "user": "u", "pool": "local"}
    sizes = {"priority": 0, "nodes": 1, "procs_per_node": 1, "gpus_per_node": 0}
    return NewRun(id=run_id, **texts, **sizes, labels={}, spec={}, client={}, snapshot=None, created=1.0)


def report(store, run):
    for number in range(ROUNDS):
        points = Points(rank=0, name="loss", attempt=0, steps=[number], times=[1.0], values=[1.0])
        event = NewEvent(time=1.0, kind="note", message=str(number))
        cursor = {"metrics": (number, number + 1)}
        assert store.ingest(run, IngestBatch(cursors=cursor, events=[event], points=[points], step=number))
