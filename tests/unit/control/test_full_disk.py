"""Launches that are lost because their disk is full are not restarted for ever, and stops work without a database."""

import contextlib
import errno
import sqlite3

import pytest
from sqlalchemy.exc import OperationalError

from gangline.domain.errors import StorageFull
from gangline.rundir.journal import read_journal
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


def full_database(*_args, **_options):
    raise OperationalError("UPDATE runs", {}, sqlite3.OperationalError("database or disk is full"))


def full_folder(*_args, **_options):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_stop_reaches_the_leader_although_the_database_takes_nothing(plant, monkeypatch):
    run = plant.submit()
    plant.tick()
    monkeypatch.setattr(plant.store, "move", full_database)
    with pytest.raises(StorageFull, match="could not be stored") as caught:
        plant.commands.stop(run, grace_s=3.0, by="alice")
    assert "leader was asked" in caught.value.why
    asked = read_journal(plant.home.run(run).control)
    assert [(line["kind"], line["grace_s"]) for line in asked] == [("stop", 3.0)]


def test_a_stop_goes_by_the_backend_where_no_file_takes_anything(plant, monkeypatch):
    run = plant.submit()
    plant.tick()
    monkeypatch.setattr(plant.store, "move", full_database)
    monkeypatch.setattr("gangline.control.commands.ask_stop", full_folder)
    with pytest.raises(StorageFull):
        plant.commands.stop(run, grace_s=None, by="alice")
    assert len(plant.backend.cancels) == 1


def test_other_trouble_of_the_database_is_no_full_disk(plant, monkeypatch):
    def broken(*_args, **_options):
        raise OperationalError("UPDATE runs", {}, sqlite3.OperationalError("no such table: runs"))

    run = plant.submit()
    plant.tick()
    monkeypatch.setattr(plant.store, "move", broken)
    with pytest.raises(OperationalError):
        plant.commands.stop(run, grace_s=None, by="alice")


def test_what_the_disk_did_not_take_is_told_until_it_has_room(plant, monkeypatch):
    run = plant.submit()
    with monkeypatch.context() as patched:
        patched.setattr(plant.store, "move", full_database)
        patched.setattr(plant.store, "change", full_database)
        patched.setattr(plant.store, "add_events", full_database)
        with contextlib.suppress(OperationalError):
            plant.tick()
            assert "disk is full" in str(plant.reconciler.unstored())
    plant.clock.advance(60)
    plant.tick()
    assert plant.reconciler.unstored() is None
    assert plant.phase(run) == "starting"
