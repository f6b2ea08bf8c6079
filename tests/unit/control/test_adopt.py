"""Runs come back from their folders after the database was lost."""

import json
import shutil

import pytest

from gangline.control.adopt import adopt_runs
from gangline.control.reconcile import Reconciler
from gangline.control.records import RunRecords
from gangline.store.store import Store


@pytest.fixture
def lose(plant):
    """Begin again with an empty database, as a new server does; returns what was adopted."""
    plant.store.on_changed = RunRecords(plant.store, plant.home).write

    def act():
        plant.store.close()
        for path in plant.home.path.glob("gangline.db*"):
            path.unlink()
        plant.store = Store.open(plant.home.database)
        adopted = adopt_runs(plant.store, plant.home, plant.clock)
        plant.store.on_changed = RunRecords(plant.store, plant.home).write
        plant.commands.__init__(
            store=plant.store,
            backends={"local": plant.backend},
            home=plant.home,
            clock=plant.clock,
            poke=lambda: plant.pokes.append("poke"),
        )
        plant.reconciler = Reconciler(
            store=plant.store, backends={"local": plant.backend}, home=plant.home, clock=plant.clock
        )
        return adopted

    return act


def told(plant, run):
    """What `gangline show` tells of a run, without its history."""
    detail = plant.commands.detail(run)
    return {key: value for key, value in detail.items() if key not in {"events", "version"}}


def test_a_run_that_is_over_is_shown_with_all_that_it_was(plant, lose):
    run = plant.submit(name="llama", labels={"team": "nlp"}, procs_per_node=2)
    plant.tick()
    leader = plant.leader(run)
    leader.begin()
    leader.progress(5, 10)
    leader.log({"loss": 2.5}, step=5)
    leader.end()
    plant.tick()
    plant.backend.kill(run)
    plant.tick(3)
    before = told(plant, run)
    assert lose().runs == (run,)
    plant.tick()
    assert told(plant, run) == before
    assert plant.phase(run) == "succeeded"
    assert plant.store.events(run)[1].kind == "adopted"
    assert not plant.store.held_runs()
    assert lose().refused == ()


def test_a_gang_that_lives_is_watched_again_and_not_started_twice(plant, lose):
    run = plant.submit()
    plant.tick()
    leader = plant.leader(run)
    leader.begin()
    plant.tick()
    lose()
    plant.tick(3)
    assert (plant.phase(run), plant.backend.submits) == ("running", [f"{run}/0"])
    leader.end()
    plant.tick()
    assert plant.phase(run) == "succeeded"


def test_queued_runs_wait_on_in_their_order_and_stopped_ones_stay_stopped(plant, lose):
    first = plant.submit(procs_per_node=8)
    plant.clock.advance(1)
    second = plant.submit(procs_per_node=8, key="second")
    plant.clock.advance(1)
    third = plant.submit(procs_per_node=8, key="third")
    plant.tick()
    plant.commands.stop(second, grace_s=None, by="alice")
    lose()
    plant.tick(2)
    assert [plant.phase(run) for run in (first, second, third)] == ["starting", "stopped", "queued"]
    assert plant.commands.summary(second)["message"] == "Stopped by alice while it held no machines."


def test_restarts_that_the_server_decided_stay_counted(plant, lose):
    run = plant.submit(max_infrastructure_restarts=1)
    plant.tick()
    plant.leader(run).begin()
    plant.tick()
    plant.backend.kill(run)
    plant.tick(4)
    assert plant.store.run(run).launch_restarts == {"infrastructure": 1}
    closed = plant.store.attempts(run)[0]
    lose()
    plant.tick()
    assert plant.store.attempts(run)[0] == closed
    plant.leader(run, 1).begin()
    plant.tick()
    plant.backend.kill(run)
    plant.tick(4)
    assert (plant.phase(run), plant.commands.summary(run)["reason"]) == ("failed", "node_lost")


def test_a_stop_that_was_under_way_goes_on(plant, lose):
    run = plant.submit()
    plant.tick()
    leader = plant.leader(run)
    leader.begin()
    plant.tick()
    plant.commands.stop(run, grace_s=5.0, by="alice")
    lose()
    plant.tick(2)
    assert plant.phase(run) == "stopping"
    lines = plant.home.run(run).control.read_text().splitlines()
    assert len(lines) == 1, "asked once"
    plant.clock.advance(16)
    plant.tick()
    assert len(plant.backend.cancels) == 1


def test_the_idempotency_key_survives(plant, lose):
    run = plant.submit(key="the same")
    lose()
    assert plant.submit(key="the same") == run


@pytest.mark.parametrize(
    "damage", ["missing", "{", "[]", '{"version": 9, "run": {}}', '{"version": 1, "run": {"id": 1}}']
)
@pytest.mark.parametrize("end", [True, False])
def test_without_its_record_a_run_is_adopted_as_far_as_files_tell(plant, lose, damage, end):
    run = plant.submit()
    plant.tick()
    leader = plant.leader(run)
    leader.begin()
    if end:
        leader.end()
    plant.tick()
    record = plant.home.run(run).record
    record.unlink() if damage == "missing" else record.write_text(damage)
    lose()
    plant.tick(2)
    assert plant.phase(run) == ("succeeded" if end else "failed")
    if not end:
        assert "gangline resume" in plant.commands.summary(run)["message"]
        assert plant.commands.resume(run, by="alice")["phase"] == "queued"


def test_a_submit_that_was_cut_off_before_it_counted_leaves_nothing(plant, lose):
    run = plant.submit()
    folder = plant.home.run(run)
    folder.record.unlink()
    adopted = lose()
    assert (adopted.runs, adopted.refused) == ((), ())
    assert not folder.path.exists()


def test_a_submit_that_was_killed_before_its_row_counts_once(plant, lose, monkeypatch):
    def die(_self, _new):
        raise SystemExit

    monkeypatch.setattr(Store, "add_run", die)
    monkeypatch.setattr("gangline.control.admission.shutil.rmtree", lambda *_args, **_options: None)  # a kill
    with pytest.raises(SystemExit):
        plant.submit(key="k")
    monkeypatch.undo()
    adopted = lose()
    assert len(adopted.runs) == 1
    assert plant.submit(key="k") == adopted.runs[0]


def test_what_is_no_run_is_named_and_left_alone(plant, lose):
    run = plant.submit()
    runs = plant.home.runs
    (runs / "notes").mkdir()
    (runs / "notes" / "mine.txt").write_text("mine")
    (runs / "a-file").write_text("x")
    torn = plant.home.run(plant.submit(key="other"))
    torn.spec.write_text("{")
    renamed = runs / "renamed-1234"
    plant.home.run(plant.submit(key="third")).path.rename(renamed)
    adopted = lose()
    assert adopted.runs == (run,)
    said = "\n".join(adopted.refused)
    assert len(adopted.refused) == 3
    assert f"{runs}/notes is not shown: It has no spec.json" in said
    assert f"{torn.path} is not shown" in said
    assert "Its run.json is that of" in said
    assert (runs / "notes" / "mine.txt").read_text() == "mine"
    assert torn.spec.exists()
    assert renamed.exists()


def test_a_copy_of_a_run_folder_is_no_second_run(plant, lose):
    run = plant.submit()
    plant.tick()
    record = json.loads(plant.home.run(run).record.read_text())
    record["run"]["id"] = "zz-copy"
    folder = plant.home.run("zz-copy")
    folder.launch(0).path.mkdir(parents=True)
    folder.spec.write_bytes(plant.home.run(run).spec.read_bytes())
    folder.record.write_text(json.dumps(record))
    adopted = lose()
    assert adopted.runs == (run,)
    assert "Another run has its key" in adopted.refused[0]


def test_no_record_is_written_into_a_folder_that_only_ranks_made_anew(plant):
    plant.store.on_changed = RunRecords(plant.store, plant.home).write
    run = plant.submit()
    folder = plant.home.run(run)
    shutil.rmtree(folder.path)
    folder.metrics(0).parent.mkdir(parents=True)
    plant.commands.stop(run, by="me", grace_s=None)
    plant.tick()
    assert plant.phase(run) == "stopped"
    assert not folder.record.exists()
