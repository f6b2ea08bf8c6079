"""Runs on a cluster that lies elsewhere and has a queue of its own: what the server makes of what it sees from afar."""

import json
import threading

import pytest

from gangline.control.reconcile import Reconciler
from gangline.domain.errors import AuthFailed, GangTooLarge, NoCapacity, Rejected, StillEnding, Transient
from gangline.domain.gang import Liveness, Observation
from gangline.domain.phase import Reason

POOL = "a100"


# Handing over


def test_a_run_is_handed_over_waits_there_runs_and_ends(site):
    run = site.submit(nodes=2)
    site.tick()
    assert (site.phase(run), site.row(run).message) == ("queued", f"Is handed over to pool `{POOL}`.")
    site.deliver()
    assert site.row(run).handle is not None
    site.cluster.pend(run, "Waits in Slurm: Priority, 3 jobs are ahead.")
    events = len(site.store.events(run))
    site.tick()
    summary = site.commands.summary(run)
    assert (summary["phase"], summary["message"]) == ("queued", "Waits in Slurm: Priority, 3 jobs are ahead.")
    assert len(site.store.events(run)) == events
    pool = site.commands.pools()[0]
    assert (pool["running"], pool["queued"]) == (0, 1)
    site.cluster.begin(run)
    site.cluster.find(run).detail = "Slurm job 7 runs on n[1-2]: its nodes are being prepared"
    site.tick(2)
    assert site.phase(run) == "starting"
    assert "its nodes are being prepared" in site.row(run).message
    pool = site.commands.pools()[0]
    assert (pool["running"], pool["queued"]) == (1, 0)
    site.leader(run).begin()
    site.see()
    assert site.phase(run) == "running"
    site.leader(run).end()
    site.cluster.kill(run)
    site.tick(3)
    assert site.phase(run) == "running"
    site.see()
    assert site.phase(run) == "succeeded"
    site.see(2)
    assert site.row(run).handle is None
    assert not site.reconciler.busy()
    assert site.phases(run) == ["starting", "running", "succeeded"]


def test_a_run_that_was_over_before_anybody_looked(site):
    run = site.queued()
    site.cluster.begin(run)
    leader = site.leader(run)
    leader.begin()
    leader.end("failed", exit_code=3)
    site.cluster.kill(run)
    site.see()
    assert site.phases(run) == ["starting", "failed"]
    assert site.row(run).exit_code == 3


def test_what_agents_are_told_is_about_their_own_folders(site):
    run = site.queued(nodes=2, gpus_per_node=4)
    told = json.loads(site.cluster.far(run).launch(0).spec.read_text())
    assert told["checkpoint"]["path"] == str(site.cluster.far(run).checkpoints)
    assert (told["nodes"], told["devices"], told["gpus_per_node"]) == (2, [], 4)
    assert not site.home.run(run).code.exists()


def test_a_slow_submit_holds_up_no_other_run(site):
    slow = site.submit("slow")
    site.tick(3)
    assert len(site.works) == 1
    assert site.cluster.submits == []
    other = site.submit("other")
    site.tick(3)
    assert len(site.works) == 1, "one thread for the pool"
    site.deliver()
    assert site.keys() == [f"{slow}/0", f"{other}/0"]


def test_a_real_thread_hands_over_and_the_server_need_not_wait_for_it(site):
    site.cluster.hold()
    started = []

    def beside(work):
        thread = threading.Thread(target=work, daemon=True)
        started.append(thread)
        thread.start()

    site.reconciler = Reconciler(
        store=site.store, backends={POOL: site.cluster}, home=site.home, clock=site.clock, beside=beside
    )
    run = site.submit()
    site.tick(3)
    assert site.row(run).handle is None
    site.cluster.hold(on=False)
    started[0].join(30)
    site.tick()
    assert site.row(run).handle is not None


@pytest.mark.parametrize("reached", [False, True])
def test_a_server_that_is_killed_during_a_submit_makes_one_job(site, reached):
    run = site.submit()
    site.tick()
    if reached:
        site.works.pop()()  # the answer never comes back
    site.start_server()
    site.tick()
    site.deliver()
    assert site.keys() == [f"{run}/0"]
    assert site.row(run).handle is not None


def test_an_answer_that_was_lost_makes_one_job(site):
    run = site.submit()
    site.cluster.lose_answers()
    site.tick()
    site.deliver()
    assert "did not answer" in site.row(run).message
    site.tick(after_s=2)
    site.deliver()
    assert (site.keys(), site.phase(run)) == ([f"{run}/0"], "queued")
    assert site.row(run).handle is not None


def test_stop_of_a_run_that_is_still_to_be_handed_over(site):
    first, second = site.submit("first"), site.submit("second")
    site.tick()
    site.commands.stop(second, grace_s=None, by="alice")
    site.tick()
    assert site.phase(second) == "stopped"
    site.deliver()
    assert site.keys() == [f"{first}/0"]


def test_stop_of_a_run_whose_submit_is_under_way(site):
    run = site.submit()
    site.tick()
    work = site.works.pop()
    site.cluster.submit, real = (
        lambda launch, *, key: site.commands.stop(run, grace_s=None, by="a") and real(launch, key=key),
        site.cluster.submit,
    )
    work()
    assert site.phase(run) == "stopping"
    site.tick(2)
    assert len(site.cluster.cancels) == 1
    site.see(2)
    assert site.phase(run) == "stopped"
    assert site.row(run).handle is None


def test_a_refusal_ends_the_run_with_the_words_of_the_cluster(site):
    run = site.submit()
    site.cluster.refuse(Rejected("Slurm refuses the job", why="Invalid account", fix="Choose another --account."))
    site.tick()
    site.deliver()
    row = site.row(run)
    assert (row.phase.value, row.reason, row.exit_code) == ("failed", Reason.BACKEND_REJECTED, 65)
    assert "Invalid account" in row.message
    assert not site.reconciler.busy() or site.tick() or not site.reconciler.busy()


def test_a_login_that_is_needed_is_said_and_nothing_is_lost(site):
    first, second = site.submit("first"), site.submit("second")
    site.cluster.refuse(AuthFailed("Pool `a100` needs a login", fix="Type: ssh -M login.example"))
    site.tick()
    site.deliver()
    assert "ssh -M login.example" in site.row(first).message
    assert "ssh -M login.example" in site.row(second).message
    assert site.cluster.submits == [f"{first}/0"], "nobody asks again for each run"
    site.tick(after_s=2)
    site.deliver()
    assert site.keys() == [f"{first}/0", f"{second}/0"]


# Waiting


def test_without_room_runs_wait_in_gangline_in_their_order(site):
    runs = [site.submit(str(number)) for number in range(3)]
    site.cluster.refuse(NoCapacity("Pool `a100` holds 2 jobs of Gangline's, which is its limit"), times=2)
    site.tick()
    site.deliver()
    assert site.cluster.submits == [f"{runs[0]}/0"]
    site.tick(2)
    rows = [site.row(run) for run in runs]
    assert [row.placement for row in rows] == [None, None, None]
    assert rows[0].message == "Pool `a100` holds 2 jobs of Gangline's, which is its limit."
    assert rows[2].message.startswith(f"Position 3 in the queue, behind {runs[0]}. ")
    site.tick(after_s=3)
    site.deliver()
    assert site.cluster.submits == [f"{runs[0]}/0"] * 2, "one finds out for all"
    site.tick(after_s=3)
    assert not site.works, "longer each time"
    site.tick(after_s=3)
    site.deliver()
    site.tick()
    site.deliver()
    assert site.keys() == [f"{run}/0" for run in runs]


def test_room_that_a_run_has_left_is_seen_at_once(site):
    run = site.running()
    site.cluster.refuse(NoCapacity("full"), times=4)
    waiting = site.submit("waiting")
    for _ in range(4):
        site.tick(after_s=20)
        site.deliver()
    site.tick()
    assert len(site.cluster.submits) == 5
    site.leader(run).end()
    site.cluster.kill(run)
    site.see(1, after_s=0.1)
    site.tick(2)
    site.deliver()
    assert site.row(run).handle is None
    assert site.row(waiting).handle is not None


def test_impossible_sizes_are_refused_where_the_cluster_says_what_it_has(site):
    site.submit(nodes=50_000)
    site.cluster._capacity = type(site.cluster._capacity)(nodes=2, ranks=0, cpus=0, memory_bytes=0)
    with pytest.raises(GangTooLarge, match="3 nodes in one gang asked, pool `a100` has 2"):
        site.submit("large", nodes=3)
    site.submit("fits", nodes=2, procs_per_node=64)


def test_stop_of_a_run_that_waits_takes_its_job_away_at_once(site):
    run = site.queued()
    site.commands.stop(run, grace_s=None, by="alice")
    assert site.phase(run) == "stopping"
    site.tick()
    assert len(site.cluster.cancels) == 1
    site.see(2)
    assert (site.phase(run), site.row(run).handle) == ("stopped", None)
    assert site.row(run).exit_code == 130


def test_a_silent_cluster_leaves_a_waiting_run_in_its_place(site):
    run = site.queued()
    site.cluster.silence()
    site.tick(3, after_s=40)
    assert site.phase(run) == "queued"
    assert "does not answer" in site.row(run).message
    assert "is silent" in site.row(run).message


def test_a_job_that_is_cancelled_while_it_waits(site):
    run = site.queued()
    site.cluster.kill(run, from_outside=True, detail="CANCELLED by bob")
    site.see(3)
    row = site.row(run)
    assert (row.phase.value, row.exit_code, row.message) == (
        "stopped",
        130,
        "Ended outside Gangline (CANCELLED by bob).",
    )


# The end of a launch, as the cluster tells it


@pytest.mark.parametrize(
    ("reason", "phase", "exit_code"),
    [
        (Reason.TIME_LIMIT, "failed", 124),
        (Reason.OUT_OF_MEMORY, "failed", 137),
        (Reason.BACKEND_REJECTED, "failed", 65),
        (Reason.USER_ERROR, "failed", 1),
        (Reason.START_TIMEOUT, "restarting", None),
        (Reason.NODE_LOST, "restarting", None),
    ],
)
def test_why_a_launch_ended_without_a_word_decides_who_pays(site, reason, phase, exit_code):
    run = site.running()
    site.cluster.kill(run, reason=reason, detail="WORDS OF SLURM")
    site.see(1)
    site.tick()
    row = site.row(run)
    assert "WORDS OF SLURM" in row.message
    assert site.store.attempts(run)[0].reason == reason.value
    if exit_code is None:
        assert row.launch_restarts == {"infrastructure": 1}
        assert row.launch == 1
    else:
        assert (row.phase.value, row.reason, row.exit_code) == (phase, reason, exit_code)


@pytest.mark.parametrize("reason", list(Reason))
def test_a_result_always_wins(site, reason):
    run = site.running()
    site.leader(run).end("failed", exit_code=7, reason="user_error")
    site.cluster.kill(run, reason=reason, from_outside=True)
    site.see(3)
    row = site.row(run)
    assert (row.phase.value, row.reason, row.exit_code) == ("failed", Reason.USER_ERROR, 7)


def test_a_time_limit_of_the_cluster_that_means_a_stop(site):
    run = site.running(time_limit_s=60.0, on_time_limit="stop")
    site.cluster.kill(run, reason=Reason.TIME_LIMIT)
    site.see(2)
    row = site.row(run)
    assert (row.phase.value, row.reason, row.exit_code) == ("stopped", Reason.TIME_LIMIT, 124)


def test_a_time_limit_of_the_cluster_after_which_the_run_goes_on(site):
    run = site.running(time_limit_s=60.0, on_time_limit="continue", max_continuations=1)
    site.leader(run).checkpoint(40)
    site.cluster.kill(run, reason=Reason.TIME_LIMIT)
    site.see(2)
    site.deliver()
    row = site.row(run)
    assert (row.launch, row.launch_restarts) == (1, {"continuation": 1})
    assert site.keys() == [f"{run}/0", f"{run}/1"]
    told = json.loads(site.cluster.far(run).launch(1).spec.read_text())
    assert told["restarts_used"]["continuation"] == 1
    site.cluster.begin(run)
    site.leader(run, 1).begin()
    site.see()
    assert site.phase(run) == "running"
    site.leader(run, 1).checkpoint(80)
    site.cluster.kill(run, reason=Reason.TIME_LIMIT)
    site.see(2)
    assert (site.phase(run), site.row(run).exit_code) == ("failed", 124)
    assert "--max-continuations 1" in site.row(run).message


def test_a_time_limit_without_progress_ends_the_run(site):
    run = site.running(time_limit_s=60.0, on_time_limit="continue")
    site.cluster.kill(run, reason=Reason.TIME_LIMIT)
    site.see(2)
    assert site.phase(run) == "failed"
    assert "No checkpoint was saved" in site.row(run).message


# Put back into the queue by the cluster itself


def test_a_launch_that_is_put_back_is_followed_as_a_new_attempt(site):
    run = site.running()
    site.cluster.pend(run, "BeginTime: not before 12:00.", preempted=True)
    site.tick()
    assert site.phase(run) == "running", "its result may still be on its way"
    site.see()
    row, attempt = site.row(run), site.store.attempts(run)[0]
    assert (row.phase.value, row.launch, row.launch_restarts) == ("queued", 0, {"preemption": 1})
    assert (attempt.outcome, attempt.reason) == ("preempted", "preempted")
    site.tick(2)
    assert site.row(run).message == "BeginTime: not before 12:00."
    site.cluster.begin(run)
    leader = site.leader(run)
    leader.begin_anew()
    site.see()
    assert (site.phase(run), site.row(run).attempt) == ("running", 1)
    site.leader(run).end()
    site.cluster.kill(run)
    site.see(3)
    assert site.phase(run) == "succeeded"
    assert site.keys() == [f"{run}/0"]
    assert site.phases(run) == ["starting", "running", "preempted", "queued", "starting", "running", "succeeded"]


def test_a_launch_that_was_put_back_between_two_looks(site):
    run = site.running()
    site.leader(run).begin_anew()
    site.see(3)
    row = site.row(run)
    assert (row.phase.value, row.attempt, row.launch_restarts) == ("running", 1, {"infrastructure": 1})
    assert [one.outcome for one in site.store.attempts(run)] == ["failed", None]


def test_a_result_that_comes_late_is_no_sign_of_a_launch_that_was_put_back(site):
    run = site.running(max_restarts=3)
    leader = site.leader(run)
    leader.end("failed", next_step="restart", budget="user")
    leader.begin()
    result = leader.run_dir.attempt(0).result
    hidden = result.rename(result.with_name("hidden"))
    site.see(3)
    hidden.rename(result)
    site.see(2)
    assert site.row(run).launch_restarts == {}
    assert [one.outcome for one in site.store.attempts(run)] == ["failed", None]
    assert site.phase(run) == "running"


def test_a_launch_that_is_put_back_too_often_is_ended(site):
    run = site.running(max_infrastructure_restarts=0)
    site.cluster.pend(run, "NodeDown")
    site.see(2)
    row = site.row(run)
    assert (row.phase.value, row.reason, row.exit_code) == ("failed", Reason.NODE_LOST, 71)
    assert len(site.cluster.cancels) == 1
    site.see(3)
    assert site.row(run).handle is None


def test_a_poll_that_is_late_to_say_that_the_launch_runs_is_no_end(site):
    run = site.queued()
    site.leader(run).begin()
    site.see(5)
    assert site.phase(run) == "running"
    assert site.store.attempts(run)[0].outcome is None
    site.cluster.begin(run)
    site.see()
    assert site.phases(run) == ["starting", "running"]


def test_a_new_server_learns_that_a_launch_was_put_back(site):
    run = site.running()
    site.leader(run).beat()
    site.see()
    site.cluster.pend(run, "Resources")
    site.start_server()
    site.see(3)
    assert site.phase(run) == "running", "the answer of the cluster may be old"
    site.see(12)
    assert (site.phase(run), site.row(run).launch_restarts) == ("restarting", {"infrastructure": 1})


def test_a_finished_job_that_is_queued_again_is_ended(site):
    run = site.running()
    site.leader(run).end()
    site.see()
    site.cluster.pend(run, "requeued by hand")
    site.see(3)
    assert site.phase(run) == "succeeded"
    assert len(site.cluster.cancels) == 1


# Silence


def test_a_leader_is_not_silent_while_its_mirror_stands_still(site):
    run = site.running()
    site.leader(run).beat()
    site.see()
    site.tick(30, after_s=10)
    assert site.cluster.cancels == []
    site.see(11)
    assert len(site.cluster.cancels) == 1
    assert "no sign of life" in site.store.events(run)[-1].message


def test_no_answer_is_ever_an_end(site):
    run = site.running()
    site.leader(run).beat()
    site.cluster.silence()
    site.tick(30, after_s=100)
    assert (site.phase(run), site.cluster.cancels) == ("unknown", [])
    site.cluster.silence(on=False)
    site.see()
    assert site.phase(run) == "running"


def test_a_cancel_that_does_not_get_through_is_tried_again(site):
    run = site.running()
    site.commands.stop(run, grace_s=0.0, by="alice")
    real, calls = site.cluster.cancel, []

    def cancel(handle):
        calls.append(handle)
        if len(calls) == 1:
            raise Transient("The connection to `a100` was lost")
        real(handle)

    site.cluster.cancel = cancel
    site.tick(after_s=11)
    site.tick(after_s=6)
    site.see(2)
    assert len(calls) == 2
    assert site.phase(run) == "stopped"
    assert [event.kind for event in site.store.events(run)].count("error") == 0


def test_a_stop_reaches_the_leader_through_the_mirror(site):
    run = site.running()
    site.commands.stop(run, grace_s=5.0, by="alice")
    site.see(1, after_s=0.5)
    asked = site.cluster.far(run).control.read_text()
    assert json.loads(asked)["grace_s"] == 5.0
    site.leader(run).end("stopped", reason="stopped_by_user", exit_code=130)
    site.cluster.kill(run)
    site.see(3)
    assert site.phase(run) == "stopped"


def test_a_lie_about_a_launch_that_has_machines_changes_nothing(site):
    run = site.running()
    site.cluster.lie(run, Observation(liveness=Liveness.UNKNOWN, detail="squeue: error"))
    site.see(2)
    assert site.phase(run) == "running"


def test_a_pool_that_is_not_configured_any_more(site):
    run = site.running()
    backends = {}
    site.reconciler = Reconciler(store=site.store, backends=backends, home=site.home, clock=site.clock)
    site.tick(3, after_s=40)
    assert site.store.run(run).handle is not None
    backends[POOL] = site.cluster
    site.see()
    assert site.phase(run) == "running"


def test_the_storage_of_this_machine_says_nothing_of_theirs(site, monkeypatch):
    monkeypatch.setattr("gangline.control.reconcile.probe_folder", lambda _: "this disk is full")
    run = site.running()
    site.cluster.kill(run)
    site.see(2)
    assert site.store.attempts(run)[0].reason == "node_lost"


def test_what_the_job_printed_before_any_agent_did(site):
    run = site.queued()
    site.cluster.begin(run)
    log = site.cluster.far(run).launch(0).path / "job.log"
    log.write_text("module: command not found\n")
    site.cluster.kill(run, reason=Reason.USER_ERROR, detail="FAILED 127:0")
    site.see(2)
    assert "FAILED 127:0" in site.row(run).message
    assert "module: command not found" in site.row(run).message


def test_elsewhere_without_a_queue_gangline_counts(site_without_queue):
    site = site_without_queue
    first, second = site.submit("a", procs_per_node=64), site.submit("b")
    site.tick()
    site.deliver()
    assert (site.phase(first), site.phase(second)) == ("starting", "queued")


def test_a_run_that_was_over_before_its_handle_was_noted_is_not_resumed_beside_its_launch(site):
    run = site.submit()
    site.cluster.lose_answers()
    site.tick()
    site.deliver()
    site.cluster.begin(run)
    leader = site.leader(run)
    leader.begin()
    leader.end("failed")
    site.see()
    assert (site.phase(run), site.row(run).handle) == ("failed", None)
    with pytest.raises(StillEnding):
        site.commands.resume(run, by="alice")


def test_a_look_that_takes_too_long_goes_on_where_it_ended(site):
    runs = [site.queued(str(number)) for number in range(3)]

    class SlowClock:
        def __getattr__(self, name):
            return getattr(site.clock, name)

        def monotonic(self):
            site.clock.advance(1.1)
            return site.clock.monotonic()

    site.reconciler = Reconciler(
        store=site.store, backends={POOL: site.cluster}, home=site.home, clock=SlowClock(), beside=site.works.append
    )
    for run in runs:
        site.cluster.begin(run)
    seen = []
    for _ in range(3):
        site.reconciler.tick()
        seen.append([site.phase(run) for run in runs])
    assert seen == [
        ["starting", "queued", "queued"],
        ["starting", "starting", "queued"],
        ["starting", "starting", "starting"],
    ]
