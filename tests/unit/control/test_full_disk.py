"""Launches that are lost because their disk is full are not restarted for ever, and stops work without a database."""

from gangline.rundir.space import STORAGE_WORDS


def lose(plant, words: str = "") -> str:
    run = plant.submit(max_restarts=0)
    plant.tick()
    plant.leader(run).begin()
    plant.home.run(run).launch(0).log(0).write_text(words)
    plant.tick()
    plant.backend.kill(run)
    plant.tick(3)
    return run


def test_agents_that_gave_up_for_want_of_room_failed_by_storage(plant):
    run = lose(plant, f"gangline agent: {STORAGE_WORDS}: /runs/a cannot be written: No space left on device\n")
    row = plant.store.run(run)
    assert (row.phase.value, row.reason.value, row.exit_code) == ("failed", "storage", 74)
    assert "/runs/a cannot be written: No space left on device." in row.message


def test_a_launch_that_is_lost_on_a_full_disk_failed_by_storage(plant, monkeypatch):
    monkeypatch.setattr("gangline.control.reconcile.probe_folder", lambda folder: f"{folder} cannot be written")
    row = plant.store.run(lose(plant))
    assert (row.phase.value, row.reason.value) == ("failed", "storage")
    assert str(plant.home.run(row.id).path) in row.message


def test_a_launch_that_is_lost_beside_a_disk_with_room_is_started_anew(plant):
    row = plant.store.run(lose(plant))
    assert row.launch_restarts == {"infrastructure": 1}
