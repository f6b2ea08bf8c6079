"""A leader that is frozen, not dead: its process is there, and it does nothing."""

import os

import pytest

from gangline.control.facts import ALONE_PATIENCE_S, LEADER_PATIENCE_S


@pytest.fixture
def frozen(plant):
    run = plant.submit(procs_per_node=2)
    plant.tick()
    plant.leader(run).begin()
    plant.home.run(run).launch(0).alive.write_bytes(b"")
    plant.tick()
    assert plant.phase(run) == "running"
    return run


def let_pass(plant, seconds: float) -> None:
    for _ in range(int(seconds)):
        plant.clock.advance(1)
        plant.tick()


def test_a_launch_whose_leader_shows_no_life_is_ended_and_starts_anew(plant, frozen):
    let_pass(plant, LEADER_PATIENCE_S - 1)
    assert plant.backend.cancels == []
    let_pass(plant, 2)
    assert len(plant.backend.cancels) == 1
    told = [event.message for event in plant.store.events(frozen) if event.kind == "cancelled"]
    assert len(told) == 1
    assert "no sign of life" in told[0]
    let_pass(plant, 3)
    attempt = plant.store.attempts(frozen)[0]
    assert (attempt.outcome, attempt.reason) == ("failed", "node_lost")
    assert "no sign of life" in attempt.message
    assert plant.store.run(frozen).launch == 1
    assert plant.store.run(frozen).launch_restarts == {"infrastructure": 1}


def test_a_leader_that_shows_life_is_left_alone(plant, frozen):
    alive = plant.home.run(frozen).launch(0).alive
    for beat in range(int(LEADER_PATIENCE_S)):
        os.utime(alive, ns=(beat, beat))
        let_pass(plant, 5)
    assert plant.backend.cancels == []


@pytest.mark.usefixtures("frozen")
def test_time_in_which_the_server_did_not_look_is_no_silence(plant):
    for _ in range(12):
        plant.clock.advance(1000)
        plant.tick()
    assert plant.backend.cancels == []


def test_of_a_launch_without_the_sign_none_is_expected(plant, frozen):
    plant.home.run(frozen).launch(0).alive.unlink()
    let_pass(plant, 3 * LEADER_PATIENCE_S)
    assert plant.backend.cancels == []
    assert plant.phase(frozen) == "running"


@pytest.fixture
def two_nodes(plant):
    run = plant.submit(nodes=2, procs_per_node=1)
    plant.tick()
    plant.leader(run).begin()
    plant.home.run(run).launch(0).alive.write_bytes(b"")
    plant.tick()
    assert plant.phase(run) == "running"
    return run


def test_a_leader_that_its_peers_have_missed_too_is_waited_for_no_longer_than_they_did(plant, two_nodes):
    let_pass(plant, ALONE_PATIENCE_S + 2)
    assert plant.backend.cancels == []  # one file that stands still
    plant.backend.lose_node(two_nodes, 1)
    let_pass(plant, 1)
    assert len(plant.backend.cancels) == 1
    let_pass(plant, 3)
    assert "no sign of life" in plant.store.attempts(two_nodes)[0].message
    assert plant.store.run(two_nodes).launch == 1


def test_a_leader_that_lives_is_left_alone_when_its_peers_are_gone(plant, two_nodes):
    plant.backend.lose_node(two_nodes, 1)
    alive = plant.home.run(two_nodes).launch(0).alive
    for beat in range(10):
        os.utime(alive, ns=(beat, beat))
        let_pass(plant, 5)
    assert plant.backend.cancels == []
