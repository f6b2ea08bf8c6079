"""What is true of a job by what Slurm's own programs have left in its log."""

from dataclasses import replace

import pytest
from tests.unit.backends.slurm.test_truth import Case, job, life

from gangline.backends.slurm.endings import ExitMark
from gangline.backends.slurm.jobwords import NODE_FAILED, PREEMPTED, REQUEUED, JobWords, MemoryKill
from gangline.backends.slurm.truth import Footprint
from gangline.domain.gang import Liveness
from gangline.domain.phase import Reason


@pytest.mark.parametrize(
    ("ends", "reason", "preempted"),
    [
        ((REQUEUED,), Reason.PREEMPTED, True),
        ((PREEMPTED,), Reason.PREEMPTED, True),
        ((NODE_FAILED,), Reason.NODE_LOST, False),
        ((), None, False),
        (("SOMETHING NEW",), None, False),
    ],
)
def test_without_accounts_the_jobs_log_says_why_it_was_put_back(ends, reason, preempted):
    case, left = Case(has_accounts=False), Footprint(has_log=True, words=JobWords(ends=ends))
    seen = case.poll(job("PENDING", restarts=1, reason="BeginTime", requeues=True), left)
    assert (seen.liveness, seen.preempted, seen.reason) == (Liveness.PENDING, preempted, reason)
    seen = case.poll(job("RUNNING", restarts=1, requeues=True), left)
    assert (seen.liveness, seen.preempted, seen.reason) == (Liveness.ALIVE, preempted, reason)


def test_what_was_said_of_an_earlier_life_does_not_count_for_a_later_one():
    """The machine that failed last could say nothing any more."""
    case, left = Case(has_accounts=False), Footprint(has_log=True, words=JobWords(ends=(REQUEUED,)))
    seen = case.poll(job("PENDING", restarts=2, reason="BeginTime", requeues=True), left)
    assert (seen.preempted, seen.reason) == (False, None)


def test_accounts_tell_a_requeue_by_hand_from_a_lost_node_before_it():
    case = Case()
    case.lives = [life("NODE_FAIL"), life("REQUEUED", submitted=1500.0, name=None), life("PENDING", submitted=1600.0)]
    seen = case.poll(job("PENDING", restarts=2, reason="BeginTime", submitted=1600.0, requeues=True))
    assert (seen.preempted, seen.reason) == (True, Reason.PREEMPTED)
    assert "scontrol requeue" in seen.detail


def test_a_kill_for_memory_is_no_plain_kill():
    memory = MemoryKill(host="node01", used_bytes=322744320, limit_bytes=104857600)
    left = Footprint(has_log=True, words=JobWords(memory=memory), mark=ExitMark(exit_code=137, restart=0, time=1.0))
    for record in (job("FAILED", exit_code=137, signal=0), job("FAILED", signal=9), job("OUT_OF_MEMORY", signal=125)):
        seen = Case().poll(record, left)
        assert seen.reason is Reason.OUT_OF_MEMORY
        assert "used 307 MiB of memory on node01, and had asked for 100 MiB" in seen.detail
    case = Case(has_accounts=False)
    case.is_invalid = True
    _, seen = case.until_gone(None, left)
    assert seen.reason is Reason.OUT_OF_MEMORY
    assert Case().poll(job("NODE_FAIL"), left).reason is Reason.NODE_LOST
    assert Case().poll(job("FAILED", signal=9), replace(left, last_word="end")).reason is None
