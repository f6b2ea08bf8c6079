"""What is concluded from answers, as sequences of polls: the cases S3, S4, S5, S6, H4, D3 and the recorded clusters."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.backends.slurm.polls import CLAIM, MARK, NOTHING, Case, job, life

from gangline.backends.slurm.endings import ExitMark
from gangline.backends.slurm.evidence import Answers, Claim, Footprint, Memory, is_of
from gangline.backends.slurm.link import Ran
from gangline.backends.slurm.parse import parse_queue, parse_sacct, parse_scontrol
from gangline.backends.slurm.tokens import Token
from gangline.backends.slurm.truth import weigh
from gangline.backends.slurm.waits import render_clock
from gangline.domain.gang import Liveness
from gangline.domain.phase import Reason

# S4: what is listed does not run because it is listed


@pytest.mark.parametrize(
    ("state", "liveness"),
    [
        ("PENDING", Liveness.PENDING), ("CONFIGURING", Liveness.PENDING), ("REQUEUED", Liveness.PENDING),
        ("RUNNING", Liveness.ALIVE), ("SUSPENDED", Liveness.ALIVE), ("STOPPED", Liveness.ALIVE),
        ("COMPLETIN", Liveness.ALIVE), ("COMPLETING", Liveness.ALIVE), ("STAGE_OUT", Liveness.ALIVE),
        ("HIBERNATING", Liveness.ALIVE), ("REVOKED", Liveness.ALIVE), ("COMPLET", Liveness.ALIVE),
        ("COMPLETED", Liveness.GONE), ("FAILED", Liveness.GONE), ("TIMEOUT", Liveness.GONE),
        ("NODE_FAIL", Liveness.GONE), ("BOOT_FAIL", Liveness.GONE), ("PREEMPTED", Liveness.GONE),
        ("DEADLINE", Liveness.GONE),
        ("OUT_OF_ME+", Liveness.GONE),
    ],
)  # fmt: skip
def test_each_state_in_the_queue(state, liveness):
    seen = Case().poll(job(state))
    assert seen.liveness is liveness
    assert "7" in seen.detail


def test_a_state_that_nobody_knows_is_shown_as_it_is():
    assert "HIBERNATING" in Case().poll(job("HIBERNATING")).detail


# S3: the job has left the queue, and accounting is off


@pytest.mark.parametrize(
    ("mark", "reason", "words"),
    [
        (ExitMark(exit_code=0, restart=0, time=1.0), None, "exit code 0"),
        (ExitMark(exit_code=7, restart=0, time=1.0), None, "exit code 7"),
        (ExitMark(exit_code=137, restart=0, time=1.0), Reason.KILLED, "exit code 137"),
    ],
)
def test_a_job_that_left_the_queue_is_told_by_its_own_mark(mark, reason, words):
    case = Case(has_accounts=False)
    case.is_invalid = True
    assert case.poll(job("RUNNING")).liveness is Liveness.ALIVE
    times, seen = case.until_gone(footprint=Footprint(mark=mark))
    assert times == 1
    assert seen.reason is reason
    assert words in seen.detail


def test_a_job_of_which_nothing_is_left_is_gone_only_after_the_controller_has_said_so_again_and_again():
    case = Case(has_accounts=False)
    case.is_invalid = True
    case.poll(job("RUNNING"))
    times, seen = case.until_gone()
    assert times == 5  # 20 s
    assert "no longer" in seen.detail
    assert seen.reason is None
    assert not seen.cancelled


def test_absence_in_the_queue_alone_is_never_an_end():
    case = Case(has_accounts=False)
    case.poll(job("RUNNING"))
    times, seen = case.until_gone(most=200)
    assert times is None
    assert seen.liveness is Liveness.UNKNOWN
    case = Case()
    assert case.until_gone(most=200)[0] is None  # accounting that knows nothing of it adds nothing


def test_trouble_is_never_an_end_and_counts_for_nothing():
    case = Case(has_accounts=False)
    case.is_invalid = True
    for _ in range(50):
        seen = case.poll(trouble="slurm_load_jobs error: Socket timed out on send/recv operation")
        assert seen.liveness is Liveness.UNKNOWN
        assert "Socket timed out" in seen.detail
    assert case.memory.absent_since is None
    assert case.poll(job("RUNNING")).liveness is Liveness.ALIVE


def test_a_queue_that_forgets_a_job_for_a_moment_changes_nothing():
    case = Case()
    case.lives, case.controller = [life("RUNNING")], job("RUNNING")
    case.poll(job("RUNNING"))
    for _ in range(10):
        assert case.poll().liveness in {Liveness.UNKNOWN, Liveness.ALIVE}
        assert case.poll().liveness in {Liveness.UNKNOWN, Liveness.ALIVE}
        assert case.poll(job("RUNNING")).liveness is Liveness.ALIVE
    assert case.memory.absent_times == 0


def test_agents_that_live_outweigh_a_controller_that_knows_no_such_job():
    case = Case(has_accounts=False)
    case.is_invalid = True
    case.poll(job("RUNNING"), Footprint(alive_sign=1_000_000_000))
    for number in range(2, 20):
        seen = case.poll(footprint=Footprint(alive_sign=number * 10**9))
    assert seen.liveness is Liveness.ALIVE
    assert "agents" in seen.detail


def test_a_last_sign_that_is_seen_late_does_not_keep_a_job_alive_for_ever():
    """A controller that has lost its state has the job killed; the mirror brings the leader's last sign afterwards."""
    case = Case(has_accounts=False)
    case.is_invalid = True
    case.poll(job("RUNNING"), Footprint(alive_sign=1))
    case.poll(footprint=Footprint(alive_sign=1))
    assert case.poll(footprint=Footprint(alive_sign=2)).liveness is Liveness.ALIVE
    for _ in range(20):
        seen = case.poll(footprint=Footprint(alive_sign=2))
    assert seen.liveness is Liveness.GONE
    assert "knows job 7 no longer" in seen.detail


def test_accounting_tells_of_a_job_that_left_the_queue():
    case = Case()
    case.poll(job("RUNNING"))
    case.lives = [life("FAILED", exit_code=7, signal=0)]
    times, seen = case.until_gone()
    assert times == 1
    assert "exit code 7" in seen.detail


def test_accounting_that_lags_is_waited_for():
    case = Case()
    case.is_invalid = True
    case.poll(job("RUNNING"))
    case.lives = [life("RUNNING")]
    assert case.poll().liveness is Liveness.UNKNOWN
    case.lives = [life("COMPLETED", exit_code=0, signal=0)]
    times, seen = case.until_gone()
    assert times <= 2
    assert "COMPLETED" in seen.detail


def test_a_runaway_of_accounting_ends_by_the_controller():
    case = Case()
    case.is_invalid, case.lives = True, [life("RUNNING")]
    case.poll(job("RUNNING"))
    times, seen = case.until_gone(most=30)
    assert times is not None
    assert "no longer" in seen.detail


def test_a_leader_that_has_ended_its_launch_is_believed_once_the_queue_lists_it_no_more():
    case = Case(has_accounts=False)
    case.poll(job("RUNNING"))
    times, seen = case.until_gone(footprint=Footprint(last_word="relaunch"))
    assert times == 2
    assert seen.reason is None


def test_files_alone_prove_the_end_while_slurm_is_silent():
    footprint = Footprint(last_word="end", mark=MARK)
    assert Case().poll(trouble="no answer", footprint=footprint).liveness is Liveness.GONE
    assert Case().poll(job("COMPLETING"), footprint).liveness is Liveness.GONE
    assert Case().poll(job("RUNNING"), footprint).liveness is Liveness.GONE
    assert Case().poll(job("RUNNING"), Footprint(last_word="end")).liveness is Liveness.ALIVE
    assert Case().poll(trouble="no answer", footprint=Footprint(mark=MARK)).liveness is Liveness.UNKNOWN
    assert Case().poll(job("RUNNING"), Footprint(last_word="restart", mark=MARK)).liveness is Liveness.ALIVE


# Recycled numbers


OTHERS = [
    job("RUNNING", comment="gangline:0123456789ab:two-9x9x/0"),
    job("RUNNING", comment="gangline:ffffffffffff:one-7k3q/0"),
    job("RUNNING", comment="gangline:0123456789ab:one-7k3q/1"),
    job("RUNNING", comment="", name="bash", submitted=90_000.0),
    job("COMPLETED", comment="other", name="x", submitted=90_000.0),
]


@pytest.mark.parametrize("other", OTHERS, ids=lambda record: f"{record.comment}-{record.name}")
def test_a_recycled_number_is_not_ours(other):
    assert not is_of(other, CLAIM)
    case = Case(has_accounts=False)
    case.poll(job("RUNNING"))
    assert case.poll(other).liveness is Liveness.UNKNOWN
    times, seen = case.until_gone(other)
    assert times is not None
    assert "no longer" in seen.detail


def test_a_site_that_rewrites_comments_does_not_take_our_job_away():
    assert is_of(job("RUNNING", comment="project=17"), CLAIM)
    assert is_of(job("RUNNING", comment="project=17", name="renamed", submitted=1010.0), CLAIM)
    assert is_of(life("RUNNING", comment=None), CLAIM)


def test_an_old_life_of_a_number_in_accounting_is_not_ours():
    case = Case()
    case.lives = [life("COMPLETED", name="older", submitted=-90_000.0)]
    case.is_invalid = True
    case.poll(job("RUNNING"))
    _, seen = case.until_gone()
    assert "COMPLETED" not in seen.detail


# S5: Slurm puts it back by itself


def test_a_requeue_is_followed_under_the_same_number():
    case = Case()
    assert case.poll(job("RUNNING", requeues=True)).liveness is Liveness.ALIVE
    seen = case.poll(job("NODE_FAIL", requeues=True))
    assert seen.liveness is Liveness.UNKNOWN
    case.lives = [life("NODE_FAIL"), life("PENDING", submitted=1500.0, name=None)]
    seen = case.poll(job("PENDING", restarts=1, reason="BeginTime", submitted=1500.0, requeues=True))
    assert seen.liveness is Liveness.PENDING
    assert "back into its queue, as a node of it failed (restart 1)" in seen.detail
    assert "BeginTime" in seen.detail
    assert (seen.reason, seen.preempted) == (Reason.NODE_LOST, False)
    seen = case.poll(job("RUNNING", restarts=1, nodes="node02", requeues=True))
    assert seen.liveness is Liveness.ALIVE
    assert "second time" in seen.detail
    assert case.poll(job("COMPLETED", restarts=1, exit_code=0)).liveness is Liveness.GONE


def test_preemption_with_requeue_is_told_as_such():
    case = Case()
    case.lives = [life("PREEMPTED")]
    seen = case.poll(job("PENDING", restarts=1, reason="BeginTime"))
    assert (seen.liveness, seen.preempted, seen.reason) == (Liveness.PENDING, True, Reason.PREEMPTED)


def test_an_end_that_slurm_may_follow_by_a_requeue_is_waited_out():
    case = Case()
    times, seen = case.until_gone(job("NODE_FAIL", requeues=True))
    assert times == 7  # 30 s
    assert seen.reason is Reason.NODE_LOST
    assert Case().poll(job("NODE_FAIL", requeues=False)).liveness is Liveness.GONE


def test_the_mark_of_an_earlier_life_says_nothing_of_this_one():
    case = Case(has_accounts=False)
    case.is_invalid = True
    old = Footprint(mark=MARK, last_word="relaunch")
    case.poll(job("PENDING", restarts=1))
    assert case.poll(job("RUNNING", restarts=1), old).liveness is Liveness.ALIVE
    assert case.poll(footprint=replace(old, last_word="")).liveness is Liveness.UNKNOWN


def test_a_script_that_ended_by_preemption_may_be_started_again_by_slurm():
    footprint = Footprint(mark=ExitMark(exit_code=143, restart=0, time=1.0), last_word="relaunch")
    case = Case()
    assert case.poll(job("RUNNING", requeues=True), footprint).liveness is Liveness.ALIVE
    assert case.poll(job("COMPLETING", requeues=True), footprint).liveness is Liveness.ALIVE
    assert case.poll(trouble="no answer", footprint=footprint).liveness is Liveness.UNKNOWN
    case.lives = [life("PREEMPTED")]
    seen = case.poll(job("PENDING", restarts=1, reason="BeginTime", requeues=True), footprint)
    assert (seen.liveness, seen.preempted) == (Liveness.PENDING, True)
    assert case.poll(job("RUNNING", restarts=1, requeues=True), footprint).liveness is Liveness.ALIVE


# H4: ended from outside, and by ourselves


def test_somebody_has_cancelled_it():
    case = Case()
    case.lives = [life("CANCELLED by 30001")]
    case.poll(job("RUNNING"))
    _, seen = case.until_gone(job("CANCELLED", signal=15))
    assert seen.cancelled
    assert seen.detail == "Slurm job 7 was cancelled by user 30001"


def test_who_it_was_may_stay_unknown():
    case = Case(has_accounts=False)
    seen = case.poll(job("CANCELLED"))
    assert (seen.liveness, seen.cancelled, seen.detail) == (
        Liveness.GONE,
        True,
        "Slurm job 7 was cancelled by somebody",
    )
    case = Case()
    case.lives = [life("CANCELLED by 4711")]
    assert case.until_gone(job("CANCELLED"))[1].detail == "Slurm job 7 was cancelled by user 4711"


def test_accounting_that_does_not_answer_does_not_keep_a_cancelled_job_alive():
    case = Case()
    case.lives = None
    times, seen = case.until_gone(job("CANCELLED"))
    assert times <= 3
    assert seen.cancelled


def test_accounting_that_lags_does_not_keep_a_cancelled_job_alive():
    case = Case()
    case.lives = [life("RUNNING")]
    times, seen = case.until_gone(job("CANCELLED"))
    assert times <= 3
    assert seen.cancelled


def test_our_own_scancel_is_no_end_from_outside():
    case = Case()
    case.lives = [life("CANCELLED by 30001")]
    _, seen = case.until_gone(job("CANCELLED"), Footprint(is_cancelled=True))
    assert not seen.cancelled
    assert seen.detail == "Slurm job 7 was cancelled"


def test_a_dependency_that_cannot_be_met_is_nobodys_doing():
    case = Case(has_accounts=False)
    seen = case.poll(job("CANCELLED", reason="DependencyNeverSatisfied"))
    assert (seen.cancelled, seen.reason) == (False, Reason.BACKEND_REJECTED)


# What does not end, and what Slurm has not noticed


def test_a_job_that_completes_for_ever_is_let_go():
    case = Case()
    times, _ = case.until_gone(job("COMPLETING"), most=60)
    assert times is not None
    assert times * 5.0 > 120
    case = Case()
    for number in range(60):
        seen = case.poll(job("COMPLETING"), Footprint(alive_sign=number * 10**9))
    assert seen.liveness is Liveness.ALIVE  # its agents still live


def test_a_ghost_that_slurm_still_counts_as_running_is_named():
    seen = Case().poll(job("RUNNING"), Footprint(mark=MARK))
    assert seen.liveness is Liveness.ALIVE
    assert "though its script has ended" in seen.detail


# What people read


def test_why_it_waits_in_one_sentence():
    start = dt.datetime(2026, 12, 1, 14, 5).astimezone().timestamp()
    answers = Answers(queue=job("PENDING", reason="Priority", start=start), wall=start - 3600)
    seen = weigh(CLAIM, Memory(), answers, NOTHING, 0.0)[1]
    assert seen.detail == (
        "Slurm job 7 waits: Priority (jobs of higher priority come first); Slurm expects it to start at 14:05"
    )
    seen = Case().poll(job("PENDING", reason="PartitionTimeLimit"))
    assert "it will never start. Lower --time-limit" in seen.detail
    assert "its nodes are being made ready" in Case().poll(job("CONFIGURING", reason="")).detail


def test_the_clock():
    now = dt.datetime(2026, 12, 1, 12, 0, tzinfo=dt.timezone.utc).timestamp()
    assert render_clock(now + 3600, now=now, tz=dt.timezone.utc) == "13:00"
    assert render_clock(now + 86400, now=now, tz=dt.timezone.utc) == "2 Dec 12:00"
    plus_two = dt.timezone(dt.timedelta(hours=2))
    assert render_clock(now + 11 * 3600, now=now, tz=plus_two) == "2 Dec 01:00"


# What a real cluster said


def recorded(name):
    raw = json.loads(Path(__file__).with_name("recorded").joinpath(f"{name}.json").read_text())
    jobs = raw["jobs"]
    queue = parse_queue(Ran(**raw["squeue"]), jobs)
    lives = parse_sacct(Ran(**raw["sacct"]), jobs)
    controller, invalid = parse_scontrol(Ran(**raw["scontrol"]), jobs)
    return jobs, queue, lives, controller, invalid


def replay(name, index, run_id, *, has_accounts=True):
    jobs, queue, lives, controller, invalid = recorded(name)
    number = jobs[index]
    first = (lives.get(number) or [queue.get(number)])[0]
    token = Token(home="0123456789ab", run_id=run_id, launch=0)
    case = Case(Claim(job=number, token=token, submitted=first.submitted - 0.7), has_accounts=has_accounts)
    case.lives, case.controller = lives.get(number, []), controller.get(number)
    case.is_invalid = number in invalid
    for _ in range(12):
        seen = case.poll(queue.get(number))
        if seen.liveness is not Liveness.UNKNOWN and "has ended" not in seen.detail:
            break
    return seen


@pytest.mark.parametrize("has_accounts", [True, False])
@pytest.mark.parametrize(
    ("name", "index", "run_id", "liveness", "reason", "words"),
    [
        ("ended", 0, "one-7k3q", Liveness.GONE, None, "COMPLETED"),
        ("ended", 1, "two-7k3q", Liveness.GONE, None, "exit code 7"),
        ("ended", 2, "three-7k3q", Liveness.GONE, Reason.STORAGE, "signal 53"),
        ("ended", 3, "four-7k3q", Liveness.GONE, Reason.KILLED, "SIGKILL"),
        ("ended", 4, "five-7k3q", Liveness.GONE, None, "was cancelled by"),
        ("purged", 1, "two-7k3q", Liveness.GONE, None, ""),
        ("purged-one", 0, "one-7k3q", Liveness.GONE, None, ""),
        ("preempted", 0, "one-7k3q", Liveness.GONE, Reason.PREEMPTED, "PREEMPTED"),
        ("preempted-requeued", 0, "one-7k3q", Liveness.PENDING, None, "back into its queue"),
        ("node-failed", 0, "one-7k3q", Liveness.GONE, Reason.NODE_LOST, "NODE_FAIL"),
        ("node-failed", 1, "two-7k3q", Liveness.PENDING, None, "back into its queue"),
        ("timeout", 2, "three-7k3q", Liveness.GONE, Reason.TIME_LIMIT, "TIMEOUT"),
        ("waiting", 0, "one-7k3q", Liveness.PENDING, None, "back into its queue"),
        ("waiting", 1, "two-7k3q", Liveness.ALIVE, None, "runs on node01"),
    ],
)  # fmt: skip
def test_a_recorded_cluster(name, index, run_id, liveness, reason, words, has_accounts):
    seen = replay(name, index, run_id, has_accounts=has_accounts)
    assert seen.liveness is liveness
    assert words in seen.detail
    if seen.liveness is Liveness.GONE:
        assert seen.reason is reason
    assert seen.cancelled == ("was cancelled by" in words)


def test_a_leader_that_wants_another_launch_waits_for_slurms_word():
    """It was sent a signal: because the machines were taken away, or because somebody has cancelled the job."""
    case, footprint = Case(), Footprint(last_word="relaunch", mark=MARK)
    assert case.poll(job("RUNNING"), footprint).liveness is Liveness.ALIVE
    seen = case.poll(job("CANCELLED"), footprint)
    seen = case.poll(job("CANCELLED"), footprint) if seen.liveness is not Liveness.GONE else seen
    assert (seen.liveness, seen.cancelled) == (Liveness.GONE, True)
