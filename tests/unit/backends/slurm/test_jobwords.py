"""What slurmstepd and srun leave in the log of a job. Lines are those of a real cluster (22.05)."""

import pytest

from gangline.backends.slurm.jobwords import NODE_FAILED, PREEMPTED, REQUEUED, MemoryKill, parse_words

REQUEUE = """\
slurmstepd-node01: error: *** JOB 3 ON node01 CANCELLED AT 2026-12-01T10:43:12 DUE TO JOB REQUEUE ***
slurmstepd-node01: error: *** STEP 3.0 ON node01 CANCELLED AT 2026-12-01T10:43:12 DUE TO JOB REQUEUE ***
srun: Job step aborted: Waiting up to 5 seconds for job step to finish.
"""
KILLED = """\
slurmstepd-node01: error: Exceeded job memory limit
slurmstepd-node01: error: StepId=1.0 exceeded memory limit (322744320 > 104857600), being killed
srun: error: node01: task 0: Killed
"""
KERNEL = (
    "slurmstepd: error: Detected 1 oom_kill event in StepId=5.batch. Some of the step tasks have been OOM Killed.\n"
)
OLDER = "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=5.0. Some of your processes may have been killed.\n"


@pytest.mark.parametrize(
    ("log", "blamed"),
    [
        ("srun: error: Node failure on node03\nsrun: error: node02: task 0: Killed\n", ("node03",)),
        (
            "srun: error: Task launch for StepId=7.0 failed on node n-1.x: Communication connection failure\n",
            ("n-1.x",),
        ),
        ("srun: error: Node failure on node[02-03]\n", ()),
        ("Node failure on node03\nsrun: error: node02: task 0: Exited with exit code 3\n", ()),
        ("", ()),
    ],
)
def test_machines_that_srun_blames(log, blamed):
    assert parse_words(log).blamed == blamed


def test_why_each_life_of_a_job_was_ended():
    failed = REQUEUE.replace(REQUEUED, NODE_FAILED)
    taken = REQUEUE.replace(REQUEUED, PREEMPTED)
    assert parse_words(failed + REQUEUE + taken).ends == (NODE_FAILED, REQUEUED, PREEMPTED)
    assert parse_words(REQUEUE.replace(f" DUE TO {REQUEUED}", "")).ends == ("",)
    assert parse_words("print: *** JOB 3 ON node01 CANCELLED AT noon DUE TO JOB REQUEUE ***\n").ends == ()


def test_a_kill_for_memory_is_told_with_its_figures():
    found = parse_words(KILLED).memory
    assert found == MemoryKill(host="node01", used_bytes=322744320, limit_bytes=104857600)
    assert found.describe() == "it used 307 MiB of memory on node01, and had asked for 100 MiB"


@pytest.mark.parametrize("log", [KERNEL, OLDER, "slurmstepd: error: Exceeded step memory limit at some point.\n"])
def test_a_kill_without_figures(log):
    assert parse_words(log).memory.describe() == "it used more memory than it had asked for"


def test_memory_of_an_earlier_life_says_nothing_of_this_one():
    assert parse_words(KILLED + REQUEUE).memory is None
    assert parse_words(REQUEUE + KILLED).memory is not None
    assert parse_words(f"rank 0 prints {KERNEL}").memory is None
