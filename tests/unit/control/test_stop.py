"""Stops, at every place of a run's life."""

from gangline.domain.errors import AuthFailed, Transient
from gangline.rundir.journal import read_journal


def control_lines(plant, run):
    return [line for line in read_journal(plant.home.run(run).control) if line["kind"] == "stop"]


def test_a_queued_run_stops_at_once(plant):
    run = plant.submit()
    summary = plant.commands.stop(run, grace_s=None, by="bob")
    assert (summary["phase"], summary["reason"], summary["exit_code"]) == ("stopped", "stopped_by_user", 130)
    plant.tick(2)
    assert plant.backend.submits == []


def test_a_live_run_is_asked_and_ends_as_its_leader_says(plant):
    run = plant.submit()
    plant.tick()
    leader = plant.leader(run)
    leader.begin()
    plant.tick()
    assert plant.commands.stop(run, grace_s=7.0, by="bob")["phase"] == "stopping"
    (line,) = control_lines(plant, run)
    assert (line["cause"], line["grace_s"], line["by"]) == ("stop", 7.0, "bob")
    plant.tick(3)
    assert len(control_lines(plant, run)) == 1
    leader.end("stopped", reason="stopped_by_user", exit_code=130)
    plant.tick()
    assert plant.phase(run) == "stopped"


def test_a_run_that_does_not_end_in_time_is_ended_by_force(plant):
    run = plant.submit(grace_s=5.0)
    plant.tick()
    plant.leader(run).begin()
    plant.tick()
    plant.commands.stop(run, grace_s=None, by="bob")
    plant.clock.advance(14.9)
    plant.tick()
    assert plant.backend.cancels == []
    plant.clock.advance(0.2)
    plant.tick()
    assert len(plant.backend.cancels) == 1
    plant.tick(2)
    row = plant.store.run(run)
    assert (row.phase.value, row.exit_code, row.handle) == ("stopped", 130, None)
    assert plant.store.attempts(run)[0].outcome == "stopped"


def test_a_second_stop_with_less_grace_hurries(plant):
    run = plant.submit(grace_s=1000.0)
    plant.tick()
    plant.leader(run).begin()
    plant.tick()
    plant.commands.stop(run, grace_s=None, by="bob")
    plant.clock.advance(1)
    plant.commands.stop(run, grace_s=0.0, by="bob")
    assert [line["grace_s"] for line in control_lines(plant, run)] == [1000.0, 0.0]
    plant.clock.advance(11)
    plant.tick()
    assert len(plant.backend.cancels) == 1


def test_a_stop_wins_over_a_relaunch(plant):
    run = plant.submit()
    plant.tick()
    leader = plant.leader(run)
    leader.begin()
    plant.tick()
    leader.end("failed", next_step="relaunch", reason="node_lost", budget="infrastructure")
    plant.commands.stop(run, grace_s=None, by="bob")
    plant.backend.kill(run)
    plant.tick(3)
    assert plant.phase(run) == "stopped"
    assert len(plant.backend.submits) == 1


def test_a_stop_between_two_launches_is_final(plant):
    run = plant.submit(backoff_s=50.0)
    for launch in range(2):
        plant.tick()
        plant.leader(run, launch).begin()
        plant.tick()
        plant.backend.kill(run)
        plant.tick(3)
    assert plant.phase(run) == "restarting"
    assert plant.commands.stop(run, grace_s=None, by="bob")["phase"] == "stopped"
    plant.clock.advance(100)
    plant.tick(3)
    assert plant.phase(run) == "stopped"
    assert len(plant.backend.submits) == 2


def test_a_stop_of_a_lost_launch_needs_no_leader(plant):
    run = plant.submit()
    plant.tick()
    plant.leader(run).begin()
    plant.tick()
    plant.backend.kill(run)
    plant.commands.stop(run, grace_s=None, by="bob")
    plant.tick(3)
    assert plant.phase(run) == "stopped"


def test_a_run_that_succeeds_while_it_is_to_stop_has_succeeded(plant):
    run = plant.submit()
    plant.tick()
    leader = plant.leader(run)
    leader.begin()
    plant.tick()
    leader.end()
    plant.commands.stop(run, grace_s=None, by="bob")
    plant.tick()
    assert plant.phase(run) == "succeeded"


def test_a_stop_while_the_backend_has_not_said_whether_it_started(plant):
    run = plant.submit()
    plant.backend.lose_answers()
    plant.tick()
    plant.commands.stop(run, grace_s=5.0, by="bob")
    plant.clock.advance(2)
    plant.tick(2)
    assert plant.store.run(run).handle is not None  # found again, under the same key
    assert len(plant.backend.launches) == 1
    assert len(control_lines(plant, run)) == 1
    plant.leader(run).begin()
    plant.leader(run)
    plant.clock.advance(20)
    plant.tick(4)
    assert plant.phase(run) == "stopped"
    assert plant.backend.live() == []


def test_a_server_killed_before_the_request_was_written_writes_it_later(plant):
    run = plant.submit()
    plant.tick()
    plant.leader(run).begin()
    plant.tick()
    plant.commands.stop(run, grace_s=None, by="bob")
    plant.home.run(run).control.unlink()
    plant.restart_server()
    plant.tick(2)
    assert len(control_lines(plant, run)) == 1


def test_a_request_for_an_earlier_launch_is_none_for_the_next(plant):
    run = plant.submit()
    plant.tick()
    plant.leader(run).begin()
    plant.tick()
    plant.commands.stop(run, grace_s=None, by="bob")
    plant.backend.kill(run)
    plant.tick(3)
    plant.commands.resume(run, by="bob")
    plant.tick()
    told = plant.leader(run, 1).told
    assert told["control_offset"] == plant.home.run(run).control.stat().st_size
    plant.leader(run, 1).begin()
    plant.tick(2)
    assert plant.phase(run) == "running"


def test_a_stop_of_a_run_that_is_over_changes_nothing(plant):
    run = plant.submit()
    first = plant.commands.stop(run, grace_s=None, by="bob")
    assert plant.commands.stop(run, grace_s=None, by="eve") == first


def test_a_stop_that_arrives_while_the_launch_is_being_started(plant, monkeypatch):
    run = plant.submit()
    submit = plant.backend.submit

    def stop_in_between(launch, *, key):
        plant.commands.stop(run, grace_s=3.0, by="bob")
        return submit(launch, key=key)

    monkeypatch.setattr(plant.backend, "submit", stop_in_between)
    plant.tick()
    assert plant.phase(run) == "stopping"
    assert plant.store.run(run).handle is not None
    plant.tick()
    plant.clock.advance(14)
    plant.tick(4)
    assert plant.phase(run) == "stopped"
    assert plant.backend.live() == []


def test_a_preempted_run_that_waits_for_its_agents_to_go_stops_at_once(plant):
    run = plant.submit()
    plant.tick()
    leader = plant.leader(run)
    leader.begin()
    plant.tick()
    leader.end("preempted", next_step="relaunch", reason="preempted", budget="preemption")
    plant.tick()
    assert plant.phase(run) == "preempted"
    assert plant.commands.stop(run, grace_s=None, by="bob")["phase"] == "stopped"
    plant.backend.kill(run)
    plant.tick(3)
    assert plant.phase(run) == "stopped"
    assert plant.store.run(run).handle is None


def test_stop_of_a_run_that_never_reached_its_pool(site):
    run = site.submit()
    site.cluster.refuse(AuthFailed("Pool `a100` needs a login"), times=9)
    for _ in range(3):
        site.tick(after_s=20)
        site.deliver()
    assert "needs a login" in site.row(run).message
    asked = len(site.cluster.submits)
    site.commands.stop(run, grace_s=None, by="alice")
    site.tick(3, after_s=20)
    assert (site.phase(run), site.row(run).placement) == ("stopped", None)
    assert not site.works
    assert len(site.cluster.submits) == asked, "nobody has to be reached to know that there is nothing"


def test_stop_of_a_run_that_may_have_reached_its_pool(site):
    run = site.submit()
    site.cluster.lose_answers()
    site.tick()
    site.deliver()
    site.tick()
    site.cluster.refuse(Transient("away"))
    site.commands.stop(run, grace_s=None, by="alice")
    for _ in range(2):
        site.tick(after_s=20)
        assert site.phase(run) == "stopping"
        site.deliver()
    site.tick(2)
    assert len(site.cluster.cancels) == 1
    site.see(2)
    assert site.phase(run) == "stopped"
