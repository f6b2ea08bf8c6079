"""Why a job has ended, and why Slurm has put it back: by the best witness of several."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.backends.slurm.polls import CLAIM, Case, job, life

from gangline.backends.slurm.endings import ExitMark
from gangline.backends.slurm.evidence import Footprint
from gangline.backends.slurm.jobwords import JobWords
from gangline.domain.gang import Liveness
from gangline.domain.phase import Reason


@pytest.mark.parametrize(
    ("record", "reason", "words"),
    [
        (job("FAILED", exit_code=7, signal=0), None, "ended as FAILED with exit code 7"),
        (job("FAILED", exit_code=0, signal=9), Reason.KILLED, "by signal 9 (SIGKILL)"),
        (job("FAILED", exit_code=137, signal=0), Reason.KILLED, "exit code 137"),
        (job("FAILED", exit_code=67, signal=0), Reason.USER_ERROR, "a set-up line failed"),
        (job("FAILED", exit_code=5, signal=0), Reason.STORAGE, "disk of the work folder is full"),
        (job("TIMEOUT", signal=15), Reason.TIME_LIMIT, "time limit that it was submitted with was over"),
        (job("DEADLINE"), Reason.TIME_LIMIT, "its deadline has passed"),
        (job("OUT_OF_MEMORY", signal=125), Reason.OUT_OF_MEMORY, "more memory than it had asked for"),
        (job("FAILED", exit_code=1, signal=0, out_of_memory=True), Reason.OUT_OF_MEMORY, "more memory"),
        (job("NODE_FAIL"), Reason.NODE_LOST, "a node of it failed"),
        (job("BOOT_FAIL"), Reason.NODE_LOST, "did not boot"),
        (job("PREEMPTED", signal=15), Reason.PREEMPTED, "a job that comes first"),
        (job("FAILED", reason="BadConstraints"), Reason.BACKEND_REJECTED, "no node has what it asks for"),
        (job("COMPLETED", start=1.0, end=400.0), None, "ended as COMPLETED"),
    ],
)
def test_why_it_ended(record, reason, words):
    seen = Case().poll(record, Footprint(has_log=True))
    assert (seen.liveness, seen.reason) == (Liveness.GONE, reason)
    assert words in seen.detail
    assert seen.preempted == (reason is Reason.PREEMPTED)
    assert not seen.cancelled


def test_what_the_leader_said_of_the_end_has_the_last_word():
    assert Case().poll(job("TIMEOUT"), Footprint(last_word="end")).reason is None


@pytest.mark.parametrize("word", ["end", "relaunch"])
def test_the_exit_code_of_a_run_is_not_taken_for_one_of_ours(word):
    seen = Case().poll(job("FAILED", exit_code=67, signal=0), Footprint(last_word=word))
    assert (seen.detail, seen.reason) == ("Slurm job 7 has ended (FAILED)", None)


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (job("NODE_FAIL"), Reason.NODE_LOST),
        (job("TIMEOUT"), Reason.TIME_LIMIT),
        (job("PREEMPTED"), Reason.PREEMPTED),
        (job("FAILED", exit_code=75, signal=0, reason="NodeDown"), Reason.NODE_LOST),
        (job("FAILED", exit_code=0, signal=9), None),
    ],
)
def test_slurm_knows_why_agents_were_told_to_end(record, reason):
    seen = Case().poll(record, Footprint(last_word="relaunch"))
    assert (seen.liveness, seen.reason, seen.preempted) == (Liveness.GONE, reason, reason is Reason.PREEMPTED)
    seen = Case().poll(record, Footprint(last_word="end"))
    assert (seen.reason, seen.preempted) == (None, False)


# S6


def test_a_death_at_once_without_a_log_is_explained():
    seen = Case().poll(job("FAILED", exit_code=0, signal=53, reason="JobLaunchFailure", nodes="node01"))
    assert seen.reason is Reason.STORAGE
    assert CLAIM.log in seen.detail
    assert "node01" in seen.detail
    seen = Case().poll(job("COMPLETED", start=5.0, end=5.0))
    assert "left nothing" in seen.detail
    assert CLAIM.log in seen.detail


@pytest.mark.parametrize("has_accounts", [True, False])
@pytest.mark.parametrize(
    ("state", "words", "reason", "preempted"),
    [
        ("NODE_FAIL", "NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS", Reason.NODE_LOST, False),
        ("PREEMPTED", "PREEMPTION", Reason.PREEMPTED, True),
    ],
)
def test_why_slurm_had_put_a_job_back_counts_when_it_was_taken_out_of_the_queue(
    state, words, reason, preempted, has_accounts
):
    """Its leader was sent a signal, and has asked for another launch: the job that is back is cancelled by us."""
    case = Case(has_accounts=has_accounts)
    case.is_invalid = not has_accounts
    footprint = Footprint(
        mark=ExitMark(exit_code=143, restart=0, time=1.0), last_word="relaunch", words=JobWords(ends=(words,))
    )
    case.lives = [life(state)]
    assert case.poll(job("PENDING", restarts=1, requeues=True), footprint).liveness is Liveness.PENDING
    case.lives = [life(state), life("CANCELLED", submitted=1100.0)]
    ours = replace(footprint, is_cancelled=True)
    _, seen = case.until_gone(job("CANCELLED", restarts=1, requeues=True), ours)
    assert (seen.reason, seen.preempted, seen.cancelled) == (reason, preempted, False)
    assert "had put job 7 back into its queue" in seen.detail


@pytest.mark.parametrize(
    ("record", "blamed", "reason", "at_fault"),
    [
        (job("NODE_FAIL"), (), Reason.NODE_LOST, ()),
        (job("FAILED", reason="NodeDown"), (), Reason.NODE_LOST, ()),
        (job("NODE_FAIL"), ("node03",), Reason.NODE_LOST, ("node03",)),
        (job("FAILED", exit_code=233, signal=0), ("node03",), Reason.NODE_LOST, ("node03",)),
        (job("FAILED", exit_code=7, signal=0), (), None, None),
        (job("FAILED", exit_code=4, signal=0), (), Reason.NODE_LOST, None),
        (job("TIMEOUT"), ("node03",), Reason.TIME_LIMIT, ("node03",)),
    ],
)
def test_the_node_that_failed_is_named_and_no_other(record, blamed, reason, at_fault):
    seen = Case().poll(record, Footprint(has_log=True, words=JobWords(blamed=blamed)))
    assert (seen.reason, seen.at_fault) == (reason, at_fault)
    assert ("; srun names node03" in seen.detail) == (bool(blamed) and reason is Reason.NODE_LOST)
