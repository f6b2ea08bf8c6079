"""Whole lives of runs against a fake backend and a leader that only writes files."""

import json
import time

import pytest

from gangline.domain.errors import NoCapacity, Rejected, Transient
from gangline.domain.gang import Liveness, Observation
from gangline.domain.phase import Reason


def test_a_run_starts_runs_and_succeeds(plant):
    run = plant.submit(nodes=2, procs_per_node=2)
    assert plant.phase(run) == "queued"
    plant.tick()
    assert plant.phase(run) == "starting"
    assert [launch.key for launch in plant.backend.live()] == [f"{run}/0"]
    leader = plant.leader(run)
    leader.begin()
    leader.progress(5, 10)
    leader.log({"loss": 2.5, "tokens_per_s": 100.0}, step=5)
    plant.tick()
    assert plant.phase(run) == "running"
    summary = plant.commands.summary(run)
    assert (summary["step"], summary["total_steps"], summary["attempt"]) == (5, 10, 0)
    leader.end()
    plant.tick()
    assert plant.phase(run) == "succeeded"
    detail = plant.commands.detail(run)
    assert detail["exit_code"] == 0
    assert detail["reason"] is None
    assert detail["tokens_per_s"] == 100.0
    assert detail["attempts"][0]["outcome"] == "succeeded"
    assert [rank["rank"] for rank in detail["attempts"][0]["ranks"]] == [0, 1, 2, 3]


def test_machines_are_held_until_the_agents_are_gone(plant):
    run = plant.submit(procs_per_node=8)
    plant.clock.advance(1)
    second = plant.submit(procs_per_node=8, key="second")
    plant.tick()
    leader = plant.leader(run)
    leader.begin()
    leader.end()
    plant.tick()
    assert (plant.phase(run), plant.phase(second)) == ("succeeded", "queued")
    plant.backend.kill(run)
    plant.tick(2)
    assert plant.phase(second) == "starting"
    assert plant.store.run(run).handle is None


def test_agents_that_linger_after_the_end_are_ended_by_force(plant):
    run = plant.submit()
    plant.tick()
    leader = plant.leader(run)
    leader.begin()
    leader.end(ended=plant.clock.now())
    plant.tick()
    plant.clock.advance(16)
    plant.tick()
    assert len(plant.backend.cancels) == 1
    plant.tick(3)
    assert plant.phase(run) == "succeeded"
    assert not plant.reconciler.busy()


FAILING = {
    "reason": "user_error",
    "message": "Rank 1 on node 0 (h) failed: ValueError: x.",
    "hint": "Read the trace.",
    "signature": None,
    "failure": {"rank": 1, "node": 0, "host": "h", "exit_code": 1, "time": 5.0, "error_type": "ValueError", "step": 7},
}


def test_why_a_run_fails_is_known_before_its_attempt_is_over(plant):
    run = plant.submit()
    plant.tick()
    leader = plant.leader(run)
    leader.begin()
    plant.tick()
    leader.journal("first_failure", **FAILING)
    plant.tick(2)
    detail = plant.commands.detail(run)
    assert (detail["phase"], detail["reason"]) == ("running", None)
    assert detail["message"] == "Rank 1 on node 0 (h) failed: ValueError: x. The other ranks are being ended."
    attempt = detail["attempts"][0]
    assert (attempt["outcome"], attempt["reason"], attempt["hint"]) == (None, "user_error", "Read the trace.")
    assert (attempt["first_failure"]["rank"], attempt["first_failure"]["step"]) == (1, 7)
    leader.end("failed", reason="killed", message="It was rank 0.", signature="killed", hint="Look.")
    plant.tick()
    attempt = plant.commands.detail(run)["attempts"][0]
    assert (attempt["reason"], attempt["signature"], attempt["hint"]) == ("killed", "killed", "Look.")
    assert attempt["first_failure"] is None
    assert plant.phase(run) == "failed"


@pytest.mark.parametrize("failure", [None, 7, []])
def test_a_first_failure_that_makes_no_sense_is_passed_over(plant, failure):
    run = plant.submit()
    plant.tick()
    leader = plant.leader(run)
    leader.begin()
    leader.journal("first_failure", **{**FAILING, "failure": failure})
    plant.tick(2)
    detail = plant.commands.detail(run)
    assert detail["attempts"][0]["first_failure"] is None
    assert "being ended" not in detail["message"]


def test_a_run_that_goes_on_after_its_time_limit_is_paid_by_no_budget(plant):
    run = plant.submit(on_time_limit="continue", time_limit_s=60.0)
    plant.tick()
    leader = plant.leader(run)
    for _ in range(5):
        leader.begin()
        plant.tick()
        leader.end(
            "stopped",
            reason="time_limit",
            next_step="restart",
            budget="continuation",
            restart_message="goes on from step 5 (continuation 1)",
        )
        plant.tick()
        assert plant.phase(run) == "restarting"
    assert "Goes on from step 5" in plant.commands.summary(run)["message"]
    leader.begin()
    leader.end("failed", reason="node_lost", next_step="relaunch", budget="infrastructure")
    plant.tick()
    plant.backend.kill(run)
    plant.tick(3)
    assert plant.leader(run, 1).told["restarts_used"]["continuation"] == 5
    assert plant.leader(run, 1).told["delay_s"] == 0.0


def test_a_restart_in_place_keeps_the_launch(plant):
    run = plant.submit(max_restarts=2)
    plant.tick()
    leader = plant.leader(run)
    leader.begin()
    plant.tick()
    leader.end("failed", next_step="restart", budget="user", restart_message="restart 1 of 2 (user)")
    plant.tick()
    assert plant.phase(run) == "restarting"
    leader.begin()
    plant.tick()
    assert plant.phase(run) == "running"
    assert plant.commands.summary(run)["restarts"] == 1
    assert len(plant.backend.submits) == 1


def test_a_restart_between_two_looks_is_still_in_the_history(plant):
    run = plant.submit(max_restarts=2)
    plant.tick()
    leader = plant.leader(run)
    leader.begin()
    plant.tick()
    leader.end("failed", next_step="restart", budget="user", restart_message="restart 1 of 2 (user)")
    leader.begin()
    plant.tick()
    assert plant.phases(run) == ["starting", "running", "restarting", "running"]


def test_a_relaunch_waits_for_the_old_launch_to_be_gone(plant):
    run = plant.submit()
    plant.tick()
    leader = plant.leader(run)
    leader.begin()
    plant.tick()
    leader.end(
        "failed", next_step="relaunch", reason="node_lost", budget="infrastructure", restart_message="restart 1 of 3"
    )
    plant.tick(2)
    assert plant.phase(run) == "restarting"
    assert len(plant.backend.submits) == 1
    plant.backend.kill(run)
    plant.tick(3)
    assert plant.backend.submits == [f"{run}/0", f"{run}/1"]
    second = plant.leader(run, 1)
    assert second.told["first_attempt"] == 1
    assert second.told["restarts_used"] == {"user": 0, "infrastructure": 1, "preemption": 0, "continuation": 0}
    assert second.told["token"] != leader.told["token"]
    second.begin()
    plant.tick()
    assert plant.phase(run) == "running"


def test_a_lost_launch_is_followed_by_another_until_the_budget_is_spent(plant):
    run = plant.submit(max_infrastructure_restarts=1)
    plant.tick()
    plant.leader(run).begin()
    plant.tick()
    plant.backend.kill(run)
    plant.tick()
    assert plant.phase(run) == "running"  # once is no proof
    plant.tick(2)
    assert plant.phase(run) == "starting"
    plant.leader(run, 1).begin()
    plant.tick()
    plant.backend.kill(run)
    plant.tick(3)
    row = plant.store.run(run)
    assert (row.phase.value, row.reason.value, row.exit_code) == ("failed", "node_lost", 71)
    assert "No restart" in row.message
    assert [attempt.outcome for attempt in plant.store.attempts(run)] == ["failed", "failed"]


def test_the_second_lost_launch_waits_for_its_back_off(plant):
    run = plant.submit(backoff_s=10.0)
    for launch in range(2):
        plant.tick()
        plant.leader(run, launch).begin()
        plant.tick()
        plant.backend.kill(run)
        plant.tick(3)
    assert plant.phase(run) == "restarting"
    plant.clock.advance(9.9)
    plant.tick()
    assert len(plant.backend.submits) == 2
    plant.clock.advance(0.2)
    plant.tick()
    assert len(plant.backend.submits) == 3


def test_agents_that_die_before_an_attempt_are_explained_by_their_own_words(plant):
    run = plant.submit(max_infrastructure_restarts=0)
    plant.tick()
    plant.home.run(run).launch(0).log(0).write_text("python: no module named gangline\n")
    plant.backend.kill(run)
    plant.tick(2)
    row = plant.store.run(run)
    assert (row.phase.value, row.reason.value) == ("failed", "platform")
    assert "no module named gangline" in row.message


def test_a_result_that_comes_late_still_counts(plant):
    run = plant.submit()
    plant.tick()
    leader = plant.leader(run)
    leader.begin()
    plant.tick()
    plant.backend.kill(run)
    plant.tick()
    leader.end()
    plant.tick(2)
    assert plant.phase(run) == "succeeded"


def test_a_launch_ended_outside_gangline_is_stopped(plant):  # H4
    run = plant.submit()
    plant.tick()
    plant.leader(run).begin()
    plant.tick()
    plant.backend.kill(run, from_outside=True)
    plant.tick(2)
    row = plant.store.run(run)
    assert (row.phase.value, row.reason.value, row.exit_code) == ("stopped", "stopped_by_user", 130)
    assert "outside" in row.message


def test_a_preempted_launch_goes_back_to_the_queue_and_starts_again(plant):
    run = plant.submit()
    plant.tick()
    plant.leader(run).begin()
    plant.tick()
    plant.backend.preempt(run)
    plant.tick(3)
    assert plant.phases(run)[-3:] == ["preempted", "queued", "starting"]
    assert plant.leader(run, 1).told["restarts_used"]["preemption"] == 1


def told_to_end(plant, reason, **spec):
    """A run whose agents were sent a signal, and the backend tells why; what is shown of it, and of its attempt."""
    run = plant.submit(**spec)
    plant.tick()
    leader = plant.leader(run)
    leader.begin()
    plant.tick()
    leader.end("preempted", next_step="relaunch", reason="preempted", budget="preemption", exit_code=143)
    plant.tick()
    assert plant.phase(run) == "preempted"
    plant.backend.kill(run, reason=reason, detail="the job ended as it did")
    plant.tick(3)
    return run, plant.store.attempts(run)[0]


def test_agents_that_were_told_to_end_as_a_node_was_lost_cost_what_a_lost_node_costs(plant):
    run, attempt = told_to_end(plant, Reason.NODE_LOST, max_preemptions=0)
    assert (attempt.outcome, attempt.reason) == ("failed", "node_lost")
    assert attempt.message == "The agents of attempt 0 were told to end (the job ended as it did)."
    assert attempt.restart_message == "restart 1 of 3 (infrastructure)"
    used = plant.leader(run, 1).told["restarts_used"]
    assert (used["infrastructure"], used["preemption"]) == (1, 0)
    assert plant.phases(run)[-3:] == ["preempted", "queued", "starting"]
    assert not plant.store.marks(plant.store.run(run).pool, since=0.0), "the machine of the leader was well"


@pytest.mark.parametrize("reason", [None, Reason.PREEMPTED, Reason.KILLED])
def test_agents_that_were_told_to_end_are_believed_where_nobody_knows_better(plant, reason):
    run, attempt = told_to_end(plant, reason)
    assert (attempt.outcome, attempt.reason) == ("preempted", "preempted")
    assert plant.leader(run, 1).told["restarts_used"]["preemption"] == 1


def test_agents_that_were_told_to_end_as_time_was_over_end_their_run(plant):
    run, attempt = told_to_end(plant, Reason.TIME_LIMIT)
    assert (plant.phase(run), attempt.reason) == ("failed", "time_limit")
    row = plant.store.run(run)
    assert (row.reason, row.exit_code) == (Reason.TIME_LIMIT, 124)


def test_a_silent_backend_decides_nothing(plant):
    run = plant.submit()
    plant.tick()
    leader = plant.leader(run)
    leader.begin()
    plant.tick()
    plant.backend.silence()
    plant.tick(5)
    assert plant.phase(run) == "running"
    plant.clock.advance(31)
    plant.tick()
    assert plant.phase(run) == "unknown"
    plant.backend.silence(on=False)
    plant.tick()
    assert plant.phase(run) == "running"


def test_a_result_counts_although_the_backend_is_silent(plant):
    run = plant.submit()
    plant.tick()
    leader = plant.leader(run)
    leader.begin()
    plant.backend.silence()
    plant.tick()
    plant.clock.advance(31)
    plant.tick()
    leader.end()
    plant.tick()
    assert plant.phase(run) == "succeeded"


def test_a_single_gone_between_two_alive_is_no_proof(plant):
    run = plant.submit()
    plant.tick()
    plant.leader(run).begin()
    plant.tick()
    for _ in range(3):
        plant.backend.lie(run, Observation(liveness=Liveness.GONE))
        plant.tick()
        plant.backend.lie(run, None)
        plant.tick()
    assert plant.phase(run) == "running"


def test_pending_words_of_the_backend_are_shown(plant):
    plant.backend._pending = True
    run = plant.submit()
    plant.tick()
    plant.backend.find(run).detail = "waiting for nodes (Resources)"
    plant.tick()
    assert plant.store.run(run).message == "waiting for nodes (Resources)"


def test_a_rejected_launch_fails_with_the_words_of_the_backend(plant):
    run = plant.submit()
    plant.backend.refuse(Rejected("Account `x` is unknown"))
    plant.tick()
    row = plant.store.run(run)
    assert (row.phase.value, row.reason.value, row.exit_code) == ("failed", "backend_rejected", 65)
    assert "Account" in row.message
    plant.tick(2)
    assert not plant.reconciler.busy()


def test_no_capacity_puts_the_run_back_in_the_queue(plant):
    run = plant.submit()
    plant.backend.refuse(NoCapacity("No machine is free"))
    plant.tick()
    assert plant.phase(run) == "queued"
    assert "No machine is free" in plant.store.run(run).message
    plant.clock.advance(3)
    plant.tick()
    assert plant.phase(run) == "starting"
    assert len(plant.backend.live()) == 1


def test_an_answer_that_was_lost_makes_no_second_launch(plant):
    run = plant.submit()
    plant.backend.lose_answers()
    plant.tick()
    assert plant.store.run(run).handle is None
    assert "did not answer" in plant.store.run(run).message
    plant.clock.advance(2)
    plant.tick(2)
    assert plant.backend.submits == [f"{run}/0", f"{run}/0"]
    assert len(plant.backend.launches) == 1
    assert plant.store.run(run).handle is not None


def test_a_server_killed_between_submit_and_note_finds_the_same_launch(plant):
    run = plant.submit()
    plant.tick()
    row = plant.store.run(run)
    plant.store.change(row, {"handle": None})
    token = plant.leader(run).told["token"]
    plant.restart_server()
    plant.tick()
    assert len(plant.backend.launches) == 1
    assert plant.leader(run).told["token"] == token
    assert plant.store.run(run).handle == row.handle


def test_a_new_server_adopts_what_runs(plant):  # Z2
    run = plant.submit()
    plant.tick()
    leader = plant.leader(run)
    leader.begin()
    plant.tick()
    leader.log({"loss": 1.0}, step=1)
    plant.restart_server()
    leader.log({"loss": 2.0}, step=2)
    plant.tick(3)
    assert plant.phase(run) == "running"
    assert plant.commands.metric(run, "loss", rank=0, buckets=10)["count"] == 2
    assert plant.phases(run) == ["starting", "running"]


def test_trouble_with_one_run_is_noted_and_stops_no_other(plant):
    bad = plant.submit()
    good = plant.submit(key="good")
    plant.tick()
    folder = plant.home.run(bad).attempt(0).events(0)
    folder.parent.mkdir(parents=True)
    folder.mkdir()  # reading it raises
    (folder / "x").touch()
    plant.leader(good).begin()
    plant.tick(3)
    assert plant.phase(good) == "running"
    errors = [event for event in plant.store.events(bad) if event.kind == "error"]
    assert len(errors) == 1
    assert "IsADirectory" in errors[0].message


def test_a_result_that_cannot_be_read_ends_the_run_with_that_reason(plant):
    run = plant.submit()
    plant.tick()
    leader = plant.leader(run)
    leader.begin()
    plant.home.run(run).attempt(0).result.write_text("{")
    plant.tick()
    row = plant.store.run(run)
    assert (row.phase.value, row.reason.value) == ("failed", "platform")
    assert "result.json" in row.message


@pytest.mark.parametrize("error", [Transient("The backend is away"), OSError(28, "No space left on device")])
def test_a_start_that_fails_for_now_is_tried_again(plant, error, monkeypatch):
    run = plant.submit()
    submit = plant.backend.submit
    monkeypatch.setattr(plant.backend, "submit", _raiser(error))
    plant.tick()
    assert plant.phase(run) == "starting"
    monkeypatch.setattr(plant.backend, "submit", submit)
    plant.tick()
    assert not plant.backend.submits  # not at once
    plant.clock.advance(1.1)
    plant.tick()
    assert plant.backend.submits == [f"{run}/0"]


def test_a_start_is_tried_again_though_the_clock_was_set_back(plant, monkeypatch):
    run = plant.submit()
    submit = plant.backend.submit
    monkeypatch.setattr(plant.backend, "submit", _raiser(Transient("The backend is away")))
    plant.tick()
    monkeypatch.setattr(plant.backend, "submit", submit)
    plant.clock.set_wall(plant.clock.now() - 3600)
    plant.tick()
    assert plant.backend.submits == [f"{run}/0"]


@pytest.mark.parametrize("jump_s", [3600.0, -3600.0])
def test_a_clock_that_is_set_while_a_run_goes_on_changes_nothing(plant, jump_s):
    """The leader's machine is this one: its clock jumps, too, as its files show."""
    run = plant.submit()
    plant.tick()
    leader = plant.leader(run)
    leader.begin()
    plant.tick()
    leader.log({"loss": 2.5}, step=5)
    plant.clock.advance(2)
    plant.tick(2)
    plant.clock.set_wall(plant.clock.now() + jump_s)
    leader.log({"loss": 1.5}, step=6)
    for _ in range(3):
        plant.clock.advance(2)
        plant.tick()
    assert plant.phase(run) == "running"
    assert plant.store.newest_metrics(run)["loss"] == 1.5
    leader.end(ended=plant.clock.now())
    plant.tick()
    assert plant.phases(run) == ["starting", "running", "succeeded"]
    events = plant.store.events(run)
    assert [event.seq for event in events] == sorted(event.seq for event in events)
    assert events[-1].kind == "phase"


def test_a_disk_that_stays_full_fails_the_run(plant, monkeypatch):
    run = plant.submit()
    monkeypatch.setattr(plant.backend, "submit", _raiser(OSError(28, "No space left on device")))
    for _ in range(4):
        plant.tick()
        plant.clock.advance(31)
    row = plant.store.run(run)
    assert (row.phase.value, row.reason.value) == ("failed", "storage")
    assert f"{plant.home.run(run).path} cannot be written: No space left on device (" in row.message
    assert f"`gangline resume {run}`" in row.message


def test_launch_files_are_for_their_owner_alone(plant):
    run = plant.submit(env={"TOKEN": "x"})
    plant.tick()
    path = plant.home.run(run).launch(0).spec
    assert path.stat().st_mode & 0o777 == 0o600
    assert json.loads(path.read_text())["env"] == {"TOKEN": "x"}


def _raiser(error):
    def fail(*_args, **_kwargs):
        raise error

    return fail


def test_the_history_tells_what_happened_in_its_order(plant):
    run = plant.submit(max_restarts=1)
    plant.tick()
    leader = plant.leader(run)
    leader.begin()
    leader.end("failed", next_step="restart", ended=time.time())
    leader.begin()
    plant.tick()
    told = [(event.kind, event.data.get("attempt")) for event in plant.store.events(run)]
    assert told.index(("attempt_ended", 0)) < told.index(("attempt_started", 1))
