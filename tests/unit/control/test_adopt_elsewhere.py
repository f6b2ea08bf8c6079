"""Runs on a cluster elsewhere come back after the database was lost, with the job that they have."""

import pytest

from gangline.control.adopt import adopt_runs
from gangline.control.records import RunRecords
from gangline.store.store import Store


@pytest.fixture
def lose(site):
    """Begin again with an empty database, as a new server does; returns what was adopted."""
    site.store.on_changed = RunRecords(site.store, site.home).write

    def act():
        site.store.close()
        for path in site.home.path.glob("gangline.db*"):
            path.unlink()
        site.store = Store.open(site.home.database)
        adopted = adopt_runs(site.store, site.home, site.clock)
        site.store.on_changed = RunRecords(site.store, site.home).write
        site.start_server()
        return adopted.runs

    return act


def finish(site, run):
    site.leader(run).end()
    site.cluster.kill(run)
    site.see(3)
    assert (site.phase(run), site.row(run).handle) == ("succeeded", None)
    assert site.keys() == [f"{run}/0"]


def test_a_run_that_waits_there(site, lose):
    run = site.queued(nodes=2)
    handle = site.row(run).handle
    assert lose() == (run,)
    site.tick(2)
    assert (site.phase(run), site.row(run).handle, site.row(run).placement) == ("queued", handle, [[], []])
    site.cluster.begin(run)
    site.leader(run).begin()
    site.see()
    finish(site, run)


@pytest.mark.parametrize("damage", ["record", "old record", "record and handle"])
def test_a_run_whose_record_is_lost_or_old(site, lose, damage):
    run = site.submit(nodes=2)
    old = site.home.run(run).record.read_text()
    site.tick()
    site.deliver()
    site.cluster.begin(run)
    site.leader(run).begin()
    site.see()
    site.home.run(run).record.write_text(old if damage == "old record" else "{")
    if damage == "record and handle":
        site.home.run(run).launch(0).handle.write_text("{")
    assert lose() == (run,)
    site.tick(2)
    site.deliver()
    site.see(2)
    assert (site.phase(run), len(site.row(run).placement)) == ("running", 2)
    finish(site, run)


def test_a_run_that_was_killed_before_its_handle_was_noted(site, lose):
    run = site.submit()
    site.tick()
    site.works.pop()()
    assert lose() == (run,)
    site.tick()
    site.deliver()
    assert site.row(run).handle is not None
    assert site.keys() == [f"{run}/0"]
