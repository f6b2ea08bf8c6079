"""`recorded/*.json` are answers of a real cluster (Slurm 22.05.8, Debian).

Those of other versions are made by hand, after their manual pages and what people have posted of them.
"""

import json
from pathlib import Path

import pytest

from gangline.backends.slurm.jsonjobs import Unreadable, parse_json_jobs
from gangline.backends.slurm.link import Ran
from gangline.backends.slurm.parse import (
    Form,
    NoAccounting,
    parse_queue,
    parse_sacct,
    parse_scontrol,
    parse_test_only,
    render_queue,
    render_sacct,
    render_scontrol,
)
from gangline.backends.slurm.records import parse_status
from gangline.backends.slurm.states import Standing
from gangline.domain.errors import Transient

TOKEN = "gangline:0123456789ab:{}/0"


def recorded(name):
    raw = json.loads(Path(__file__).with_name("recorded").joinpath(f"{name}.json").read_text())
    return raw["jobs"], Ran(**raw["squeue"]), Ran(**raw["sacct"]), Ran(**raw["scontrol"])


def ran(out="", err="", rc=0):
    return Ran(rc=rc, out=out, err=err)


def row(job="7", state="RUNNING", *, restarts="0", requeue="1", code="0", reason="None", name="n", comment="c"):
    """A line of `squeue` as it is asked for."""
    cells = [(job, 20), (state, 24), (restarts, 10), (requeue, 8), (code, 12)]
    cells += [("1796080000", 24), ("N/A", 24), ("N/A", 24), ("1", 10), (reason, 160), ("node01", 160), (name, 120)]
    return "".join(text[:width].ljust(width) for text, width in [*cells, (comment, 160)]) + "\n"


def account(*cells):
    return "\x1f".join(cells)


def test_a_real_cluster_tells_of_ends():
    jobs, queue, accounts, controller = recorded("ended")
    ok, seven, no_output, killed, cancelled, _ = (parse_queue(queue, jobs)[job] for job in jobs)
    assert (ok.state.name, ok.exit_code, ok.signal, ok.comment) == ("COMPLETED", 0, 0, TOKEN.format("one-7k3q"))
    assert (seven.state.name, seven.exit_code, seven.reason) == ("FAILED", 7, "NonZeroExitCode")
    assert (no_output.exit_code, no_output.signal, no_output.reason) == (0, 53, "JobLaunchFailure")
    assert (killed.exit_code, killed.signal, killed.requeues) == (0, 9, False)
    assert (cancelled.state.name, cancelled.signal) == ("CANCELLED", 15)
    assert cancelled.name == r"a\|b JobState=RUNNING c"
    found, invalid = parse_scontrol(controller, jobs)
    assert not invalid
    for job, record in parse_queue(queue, jobs).items():
        assert found[job].state == record.state
        assert (found[job].exit_code, found[job].signal) == (record.exit_code, record.signal)
        assert (found[job].submitted, found[job].end, found[job].name) == (record.submitted, record.end, record.name)
        assert found[job].nodes == record.nodes == "node01"
    lives = parse_sacct(accounts, jobs)
    assert [life.exit_code for life in lives[jobs[1]]] == [7]
    assert lives[jobs[4]][0].by == "30001"
    assert lives[jobs[0]][0].comment is None


def test_a_real_cluster_tells_of_waiting():
    jobs, queue, accounts, controller = recorded("waiting")
    requeued, _, busy, many, long, begin, held, late, dependent, drained, wide = (
        parse_queue(queue, jobs).get(job) for job in jobs
    )
    assert (requeued.restarts, requeued.reason, requeued.state.standing) == (1, "BeginTime", Standing.PENDING)
    assert [job.reason for job in (busy, begin, held)] == ["Resources", "BeginTime", "JobHeldUser"]
    assert [job.reason for job in (many, long)] == ["PartitionNodeLimit", "PartitionTimeLimit"]
    assert late.reason == "DependencyNeverSatisfied"
    assert dependent.reason == "Dependency"
    assert drained.reason == "ReqNodeNotAvail, UnavailableNodes:node03"
    assert wide.reason.startswith("Nodes required for job are DOWN, DRAINED or reserved")
    assert begin.start - begin.submitted == 7200
    assert held.start is None
    lives = parse_sacct(accounts, jobs)[jobs[0]]
    assert [life.state.name for life in lives] == ["REQUEUED", "PENDING"]
    found, _ = parse_scontrol(controller, jobs)
    assert found[jobs[0]].restarts == 1
    assert found[jobs[-1]].reason.startswith("Nodes_required_for_job")


def test_a_real_cluster_tells_of_what_it_did_itself():
    jobs, queue, accounts, _ = recorded("preempted-requeued")
    assert parse_queue(queue, jobs)[jobs[0]].restarts == 1
    assert parse_sacct(accounts, jobs)[jobs[0]][0].state.name == "PREEMPTED"
    jobs, queue, _, _ = recorded("preempted")
    assert parse_queue(queue, jobs)[jobs[0]].state.meaning.preempted
    jobs, queue, _, _ = recorded("node-failed")
    lost, back = (parse_queue(queue, jobs)[job] for job in jobs)
    assert (lost.state.name, lost.reason, lost.requeues) == ("NODE_FAIL", "NodeDown", False)
    assert (back.state.standing, back.restarts) == (Standing.PENDING, 1)
    jobs, queue, _, _ = recorded("timeout")
    assert parse_queue(queue, jobs)[jobs[2]].state.name == "TIMEOUT"


def test_a_purged_job_is_absent_and_that_is_said():
    jobs, queue, accounts, controller = recorded("purged")
    assert parse_queue(queue, jobs) == {}
    assert parse_scontrol(controller, jobs) == ({}, frozenset(jobs))
    assert parse_sacct(accounts, jobs)[jobs[1]][0].exit_code == 7
    jobs, queue, _, controller = recorded("purged-one")
    assert queue.rc == 1
    assert parse_queue(queue, jobs) == {}
    assert parse_scontrol(controller, jobs) == ({}, frozenset(jobs))


TROUBLES = [
    ran(err="slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n", rc=1),
    ran(err="slurm_load_jobs error: Socket timed out on send/recv operation\n", rc=1),
    ran(
        err="squeue: error: Parsing error at unrecognized key\nsqueue: fatal: Unable to process configuration file\n",
        rc=1,
    ),
    ran(err="slurm_load_jobs error: Unable to contact slurm controller\n"),
    ran(err="squeue: error: slurm_receive_msg: Zero Bytes were transmitted or received\n"),
    ran(row()[:-40]),
    ran(row() + row("8")[:300]),
    ran('{"jobs": [{"job_id": 7, "job_st'),
    ran(rc=None),
    ran(rc=127, err="env: 'squeue': No such file or directory\n"),
    ran(rc=-9),
]


@pytest.mark.parametrize("answer", TROUBLES, ids=lambda answer: (answer.err or answer.out)[:40])
def test_trouble_is_no_answer(answer):
    with pytest.raises(Transient):
        parse_queue(answer, ["7", "8"])
    with pytest.raises(Transient):
        parse_sacct(answer, ["7"])


def test_a_column_that_is_not_known_is_told_from_silence():
    answer = ran(row()[:20] + "\n", err="squeue: error: Invalid job format specification: RestartCnt\n")  # rc 0: 22.05
    with pytest.raises(Unreadable):
        parse_queue(answer, ["7"])


def test_an_empty_answer_lists_nothing():
    assert parse_queue(ran(), ["7"]) == {}
    assert parse_sacct(ran(), ["7"]) == {}


def test_what_sites_print_does_not_matter():
    junk = "Welcome to Stampede3!\n4711 jobs of yours are waiting\n✓ quota 12%\n7 | RUNNING\n\n7 Messages for you ...\n"
    noise = "-" * 800 + "\nslurm: warning: this cluster goes down on Monday\n"
    found = parse_queue(ran(junk + row() + noise, err="Module cuda/12 loaded\n"), ["7"])
    assert list(found) == ["7"]
    assert found["7"].state.standing is Standing.RUNNING
    line = account("7", "COMPLETED", "0:0", "0:0", "1", "2", "3", "node01", "n", "")
    assert parse_sacct(ran(junk + line + "\n" + noise), ["7"])["7"][0].exit_code == 0


def test_names_and_comments_of_people_shift_nothing():
    name = 'a|b"c,d' * 30
    found = parse_queue(ran(row(name=name, comment="x|FAILED|" * 40, state="PENDING") + row("8")), ["7", "8"])
    assert [found[job].state.name for job in ("7", "8")] == ["PENDING", "RUNNING"]
    line = account("7", "FAILED", "3:0", "0:0", "1", "2", "3", "node01", name, "\x1f|comment")
    record = parse_sacct(ran(line + "\n"), ["7"])["7"][0]
    assert (record.exit_code, record.name) == (3, name)


def test_only_what_was_asked_for_counts():
    assert list(parse_queue(ran(row("7") + row("99")), ["7"])) == ["7"]
    assert list(parse_queue(ran(row("7") + row("99")))) == ["7", "99"]


def test_filters_of_a_profile_are_left_out():
    words = render_queue(["7", "8"])
    assert words[0] == "env"
    assert words[words.index("SQUEUE_USERS") - 1] == "-u"
    assert "--jobs=7,8" in words
    assert "--json" in render_queue(["7"], Form.JSON)
    assert "--json" in render_sacct(["7"], Form.JSON)


@pytest.mark.parametrize(
    "said",
    [
        "Slurm accounting storage is disabled\n",
        "sacct: error: Slurm accounting storage is disabled\n",
        "SLURM accounting storage is disabled\n",
    ],
)
def test_no_accounting_is_told_from_trouble(said):
    with pytest.raises(NoAccounting):
        parse_sacct(ran(err=said, rc=1), ["7"])
    with pytest.raises(NoAccounting):
        parse_sacct(ran(out=said, rc=1), ["7"])


def test_lives_come_in_order_whatever_accounting_does():
    def line(state, submitted):
        return account("7", state, "0:0", "0:0", str(submitted), "2", "3", "node01", "n", "") + "\n"

    lives = parse_sacct(ran(line("PENDING", 300) + line("NODE_FAIL", 100) + line("REQUEUED", 200)), ["7"])["7"]
    assert [life.state.name for life in lives] == ["NODE_FAIL", "REQUEUED", "PENDING"]


def test_memory_is_told_by_the_step_where_the_job_only_failed():
    line = account("7", "FAILED", "1:0", "0:125", "1", "2", "3", "node01", "n", "")
    assert parse_sacct(ran(line + "\n"), ["7"])["7"][0].out_of_memory


def test_scontrol_is_asked_once_for_many_and_is_sure_only_with_an_error_for_each():
    argv, stdin = render_scontrol([str(job) for job in range(80)])
    assert argv[-2:] == ("scontrol", "--oneliner")
    assert stdin.count(b"show job ") == 50
    invalid = "slurm_load_jobs error: Invalid job id specified\n"
    assert parse_scontrol(ran(err=invalid, rc=1), ["7", "8"]) == ({}, frozenset())
    assert parse_scontrol(ran(err=invalid * 2, rc=1), ["7", "8"]) == ({}, frozenset({"7", "8"}))
    mixed = invalid + "slurm_load_jobs error: Unable to contact slurm controller\n"
    assert parse_scontrol(ran(err=mixed, rc=1), ["7"]) == ({}, frozenset())
    with pytest.raises(Transient):
        parse_scontrol(ran(err="slurm_load_jobs error: Unable to contact slurm controller\n", rc=1), ["7"])
    with pytest.raises(Transient):
        parse_scontrol(ran(rc=None), ["7"])
    assert parse_scontrol(ran(), ["7"]) == ({}, frozenset())


def test_when_it_would_start():
    said = "sbatch: Job 36 to start at 1796082485 using 2 processors on nodes node[01-02] in partition main\n"
    assert parse_test_only(ran(err=said)) == 1796082485
    assert parse_test_only(ran(err="allocation failure: Requested node configuration is not available\n", rc=1)) is None


@pytest.mark.parametrize(
    ("status", "pair"),
    [(0, (0, 0)), (1792, (7, 0)), (9, (0, 9)), (4021, (0, 53)), (137 << 8, (137, 0)), (None, (None, None))],
)
def test_a_wait_status(status, pair):
    assert parse_status(status) == pair


def number(value, *, is_set=True):
    return {"set": is_set, "infinite": False, "number": value}


SQUEUE_JSON_23_11 = {
    "job_id": 7, "job_state": ["RUNNING", "COMPLETING"], "state_reason": "None", "comment": TOKEN.format("one-7k3q"),
    "restart_cnt": 2, "requeue": True, "submit_time": number(100), "start_time": number(200),
    "end_time": number(0, is_set=False), "node_count": number(4), "nodes": "n[1-4]", "name": "one-7k3q.0",
    "exit_code": {"status": ["SUCCESS"], "return_code": number(0), "signal": {"id": number(0, is_set=False)}},
}  # fmt: skip
SACCT_JSON_24_05 = {
    "job_id": 7, "state": {"current": ["CANCELLED"], "reason": "None"}, "kill_request_user": "alice",
    "comment": {"administrator": "", "job": "mine", "system": ""}, "nodes": "n1", "allocation_nodes": 1,
    "exit_code": {"status": ["SIGNALED"], "return_code": number(0), "signal": {"id": number(15), "name": "Terminated"}},
    "derived_exit_code": {"status": ["SIGNALED"], "return_code": number(0), "signal": {"id": number(125), "name": ""}},
    "time": {"submission": 100, "start": 200, "end": 300, "elapsed": 100},
}  # fmt: skip


def test_json_of_newer_versions():
    (record,) = parse_json_jobs("motd {of the day\n"[:4] + json.dumps({"jobs": [SQUEUE_JSON_23_11]}))
    assert (record.job, record.state.standing, record.restarts, record.requeues) == ("7", Standing.ENDING, 2, True)
    assert (record.submitted, record.start, record.end, record.num_nodes) == (100, 200, None, 4)
    assert (record.exit_code, record.signal, record.comment) == (0, 0, TOKEN.format("one-7k3q"))
    (record,) = parse_json_jobs(json.dumps({"jobs": [SACCT_JSON_24_05], "warnings": []}) + "\nbye\n")
    assert (record.state.name, record.by, record.comment, record.signal) == ("CANCELLED", "alice", "mine", 15)
    assert (record.submitted, record.start, record.end) == (100, 200, 300)
    assert record.out_of_memory


def test_json_of_22_05():
    raw = {"job_id": 9, "job_state": "FAILED", "state_reason": "NonZeroExitCode", "exit_code": 1792, "comment": ""}
    raw |= {"restart_cnt": 0, "requeue": True, "submit_time": 100, "start_time": 0, "node_count": 1, "nodes": "node01"}
    found = parse_queue(ran(json.dumps({"meta": {}, "errors": [], "jobs": [raw]}, indent=3)), ["9"])
    assert (found["9"].exit_code, found["9"].start, found["9"].comment) == (7, None, "")


def test_json_without_jobs_is_not_readable():
    with pytest.raises(Unreadable):
        parse_json_jobs('{"errors": ["no such thing"]}')
