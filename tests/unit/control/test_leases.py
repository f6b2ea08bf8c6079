"""Runs that somebody has to want, as long as no leader counts for them."""

from gangline.domain.spec import EntryKind, Resources
from gangline.rundir.journal import read_journal
from gangline.testing import make_spec


def submit(plant, *, key="key", lease_s=30.0, ranks=1):
    spec = make_spec(entry="sleep", entry_kind=EntryKind.COMMAND, resources=Resources(cpus_per_rank=ranks))
    return plant.commands.submit(spec, client={"user": "alice"}, key=key, lease_s=lease_s)["id"]


def let_pass(plant, seconds):
    for _ in range(int(seconds)):
        plant.clock.advance(1.0)
        plant.tick()


def test_a_run_that_waits_ends_when_nobody_renews(plant):
    holder = submit(plant, key="holder", lease_s=None, ranks=8)
    plant.tick()
    run = submit(plant)
    let_pass(plant, 25)
    plant.commands.renew(run)
    let_pass(plant, 29)
    assert plant.phase(run) == "queued"
    let_pass(plant, 3)
    row = plant.store.run(run)
    assert (row.phase.value, row.reason.value, row.exit_code) == ("stopped", "lease_ended", 129)
    assert plant.phase(holder) == "starting"


def test_a_launch_whose_agents_have_not_begun_is_stopped(plant):
    run = submit(plant)
    plant.tick()
    let_pass(plant, 32)
    assert plant.phase(run) == "stopping"
    (line,) = [line for line in read_journal(plant.home.run(run).control) if line["kind"] == "stop"]
    assert line["cause"] == "lease"
    plant.backend.kill(run)
    plant.tick(3)
    row = plant.store.run(run)
    assert (row.phase.value, row.reason.value, row.exit_code) == ("stopped", "lease_ended", 129)
    assert (row.stop_cause, row.stop_by) == ("lease", None)


def test_a_person_of_any_name_who_stops_a_run_is_no_lease(plant):
    run = submit(plant)
    plant.tick()
    plant.commands.stop(run, grace_s=None, by="the end of its lease")
    plant.backend.kill(run)
    plant.tick(3)
    row = plant.store.run(run)
    assert (row.reason.value, row.exit_code, row.stop_cause) == ("stopped_by_user", 130, "stop")


def test_of_a_run_with_a_leader_the_server_counts_nothing(plant):
    run = submit(plant)
    plant.tick()
    plant.leader(run).begin()
    plant.home.run(run).launch(0).alive.touch()
    for _ in range(10):
        plant.home.run(run).launch(0).alive.touch()
        let_pass(plant, 10)
    assert plant.phase(run) in {"starting", "running"}


def test_a_server_that_was_away_or_is_new_ends_nothing_at_once(plant):
    submit(plant, key="holder", lease_s=None, ranks=8)
    plant.tick()
    run = submit(plant)
    let_pass(plant, 20)
    plant.clock.advance(3600.0)
    plant.tick()
    plant.restart_server()
    let_pass(plant, 25)
    assert plant.phase(run) == "queued"


def test_a_person_who_resumes_needs_no_lease_and_another_client_brings_its_own(plant):
    run = submit(plant)
    plant.commands.stop(run, grace_s=None, by="bob")
    assert plant.commands.resume(run, by="bob")["lease_s"] is None
    let_pass(plant, 60)
    assert plant.phase(run) == "starting"


def test_the_same_key_gives_the_same_run(plant):
    assert submit(plant) == submit(plant)
