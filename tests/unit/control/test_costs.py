"""What the reconciler costs: nothing while nothing happens, and one transaction however many runs have news."""

import pytest

from gangline.control.ingest import Follower
from gangline.testing.leader import FakeLeader


@pytest.fixture
def gangs(plant) -> dict[str, FakeLeader]:
    """Eight runs of one rank each."""
    runs = [plant.submit(key=str(number)) for number in range(8)]
    plant.tick(2)
    leaders = {run: plant.leader(run) for run in runs}
    for leader in leaders.values():
        leader.begin()
    plant.clock.advance(5)
    plant.tick(2)
    assert {plant.phase(run) for run in runs} == {"running"}
    return leaders


@pytest.mark.usefixtures("gangs")
def test_gangs_that_say_nothing_cost_no_question(plant, statements):
    plant.tick(3)
    statements.clear()
    for _ in range(50):
        plant.clock.advance(0.1)
        plant.tick()
    assert not statements


def test_files_are_read_only_where_something_changed_or_a_second_has_passed(plant, gangs, monkeypatch):
    looks = []
    look = Follower.look
    monkeypatch.setattr(
        Follower, "look", lambda follower, *args, **keys: looks.append(follower) or look(follower, *args, **keys)
    )
    plant.clock.advance(5)
    plant.tick(2)
    looks.clear()
    for _ in range(9):
        plant.clock.advance(0.1)
        plant.tick()
    assert not looks
    leader = next(iter(gangs.values()))
    for change in (
        lambda: leader.journal("warning", text="It is late."),
        leader.begin,
        lambda: leader.journal("first_failure", reason="killed", message="Killed.", failure={"rank": 0}),
        lambda: leader.end("failed"),
    ):
        looks.clear()
        change()
        plant.tick()
        assert len(looks) == 1, change


def test_news_of_many_runs_are_one_transaction(plant, gangs, statements):
    for leader in gangs.values():
        leader.log({"loss": 0.5}, step=7)
    plant.clock.advance(1)
    statements.clear()
    plant.tick()
    assert statements.writes() == 1
    assert {plant.store.run(run).step for run in gangs} == {7}


def test_metrics_are_read_once_a_second_and_what_ends_an_attempt_at_once(plant, gangs, statements):
    run, leader = next(iter(gangs.items()))
    statements.clear()
    for step in range(30):  # three seconds
        leader.log({"loss": 0.5}, step=step)
        plant.clock.advance(0.1)
        plant.tick()
    assert 2 <= statements.writes() <= 4
    leader.log({"loss": 0.25}, step=30)
    leader.journal("first_failure", reason="killed", message="Rank 0 was killed.", failure={"rank": 0})
    plant.tick()
    assert plant.commands.detail(run)["attempts"][0]["message"] == "Rank 0 was killed."
    leader.end("failed")
    plant.tick()
    assert (plant.phase(run), plant.store.run(run).step) == ("failed", 30)


def test_a_run_of_which_nothing_can_be_stored_holds_up_no_other(plant, gangs, monkeypatch):
    bad, *others = gangs
    store_batches = plant.store.ingest_all

    def ingest_all(batches):
        if bad in batches:
            raise ValueError("this cannot be stored")
        return store_batches(batches)

    monkeypatch.setattr(plant.store, "ingest_all", ingest_all)
    for leader in gangs.values():
        leader.log({"loss": 0.5}, step=7)
    plant.clock.advance(1)
    plant.tick()
    assert [plant.store.run(run).step for run in gangs] == [None, *[7] * len(others)]
    assert "this cannot be stored" in plant.store.events(bad)[-1].message
    monkeypatch.undo()
    plant.clock.advance(1)
    plant.tick()
    assert plant.store.run(bad).step == 7
