from __future__ import annotations

import json
import threading
import time
from collections import Counter

import pytest

from gangline.backends.slurm.footprint import note_cancel, read_footprint
from gangline.backends.slurm.jobwords import JobWords
from gangline.backends.slurm.link import Hello, Ran
from gangline.backends.slurm.poll import Poller
from gangline.domain.errors import AuthFailed, Transient
from gangline.domain.gang import Handle, Liveness
from gangline.domain.phase import Reason
from gangline.domain.pool import SlurmPool
from gangline.rundir.home import Home
from gangline.server.clock import SystemClock
from gangline.testing import FakeClock

HOME_ID = "0123456789ab"
INVALID = "slurm_load_jobs error: Invalid job id specified\n"
WIDTHS = (20, 24, 10, 8, 12, 24, 24, 24, 10, 160, 160, 120, 160)


class FakeSlurm:
    """A link to a cluster that exists in a table only."""

    def __init__(self):
        self.jobs, self.accounts, self.calls = {}, {}, []
        self.trouble = None
        self.has_accounts = True
        self.knows_columns = True
        self.users = {"30001": "alice"}

    def hello(self):
        return Hello(
            host="login", user="alice", home="/home/alice", python="py", python_version="3", clock_offset_s=0.0
        )

    def run(self, argv, *, stdin=b"", timeout_s=60.0):  # noqa: ARG002
        command = next(word for word in argv if word in {"squeue", "sacct", "scontrol", "getent"})
        self.calls.append(command)
        if self.trouble is not None:
            raise self.trouble
        return getattr(self, f"_{command}")(list(argv), stdin)

    def put(self, job, state, **fields):
        self.jobs[job] = {"state": state, "restarts": 0, "requeue": 0, "code": 0, "reason": "None", **fields}

    def _asked(self, argv):
        return next(word for word in argv if word.startswith("--jobs=")).removeprefix("--jobs=").split(",")

    def _squeue(self, argv, _):
        if "--json" in argv:
            jobs = [
                {
                    "job_id": int(job),
                    "job_state": [row["state"]],
                    "name": row.get("name", "x"),
                    "comment": row["comment"],
                }
                for job, row in self.jobs.items()
            ]
            return Ran(rc=0, out=json.dumps({"jobs": jobs}), err="")
        if not self.knows_columns:
            return Ran(rc=0, out="7\n", err="squeue: error: Invalid job format specification: RestartCnt\n")
        lines = [self._line(job, self.jobs[job]) for job in self._asked(argv) if job in self.jobs]
        return Ran(rc=0, out="".join(lines), err="")

    def _line(self, job, row):
        cells = [job, row["state"], row["restarts"], row["requeue"], row["code"], "1700000000", "N/A", "N/A", 1]
        cells += [row["reason"], "node01", row.get("name", "x"), row["comment"]]
        return "".join(str(cell)[:width].ljust(width) for cell, width in zip(cells, WIDTHS, strict=True)) + "\n"

    def _sacct(self, argv, _):
        if not self.has_accounts:
            return Ran(rc=1, out="", err="Slurm accounting storage is disabled\n")
        lines = []
        for job in self._asked(argv):
            for state, code in self.accounts.get(job, ()):
                cells = [job, state, code, "0:0", "1700000000", "1", "2", "node01", "x", ""]
                lines.append("\x1f".join(cells) + "\n")
        return Ran(rc=0, out="".join(lines), err="")

    def _scontrol(self, _, stdin):
        missing = [line.split()[-1] for line in stdin.decode().splitlines() if line.split()[-1] not in self.jobs]
        return Ran(rc=1 if missing else 0, out="", err=INVALID * len(missing))

    def _getent(self, argv, _):
        name = self.users.get(argv[-1])
        return Ran(rc=0 if name else 2, out=f"{name}:x:{argv[-1]}:\n" if name else "", err="")


class FakeFerry:
    def __init__(self):
        self.followed, self.asked, self.is_complete = set(), [], True

    def follow(self, run_id):
        self.followed.add(run_id)

    def forget(self, run_id):
        self.followed.discard(run_id)

    def finish(self, run_id, launch=0):
        self.asked.append((run_id, launch))
        return self.is_complete

    def mirrored(self, run_id):  # noqa: ARG002
        return 42.0


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def slurm():
    return FakeSlurm()


@pytest.fixture
def ferry():
    return FakeFerry()


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path).create()


@pytest.fixture
def poller(slurm, ferry, home, clock):
    return Poller(
        link=slurm, pool=SlurmPool(name="a100", work="/work", poll_s=5.0), ferry=ferry, home=home, clock=clock
    )


def token(run_id, launch=0):
    return f"gangline:{HOME_ID}:{run_id}/{launch}"


def handle(job, run_id, *, submitted=1_700_000_000.0):
    folder = f"/work/runs/{run_id}/launches/000"
    data = {"job": job, "token": token(run_id), "submitted": submitted, "cluster": "a100", "job_dir": folder}
    return Handle(backend="slurm", version=1, data=data)


def advance(poller, clock, handles, *, turns=1):
    """Let the thread's loop turn, with time passing as it asks for."""
    for _ in range(turns):
        clock.advance(max(0.001, poller.turn()))
    return poller.observe(handles)


def until_gone(poller, clock, handles, *, most=400):
    began = clock.monotonic()
    for _ in range(most):
        seen = advance(poller, clock, handles)[0]
        if seen.liveness is Liveness.GONE:
            return clock.monotonic() - began, seen
    return None, seen


def test_nothing_is_asked_without_jobs_and_observe_asks_nothing(poller, slurm, clock):
    assert poller.observe([]) == {}
    advance(poller, clock, [], turns=5)
    seen = poller.observe([handle("7", "one-7k3q")])
    assert slurm.calls == []
    assert seen[0].liveness is Liveness.UNKNOWN
    assert "not been asked" in seen[0].detail


def test_a_job_is_followed_from_submit_to_end(poller, slurm, ferry, clock):
    one = [handle("7", "one-7k3q")]
    slurm.put("7", "PENDING", comment=token("one-7k3q"), reason="Priority")
    poller.observe(one)
    assert ferry.followed == {"one-7k3q"}
    seen = advance(poller, clock, one, turns=2)[0]
    assert (seen.liveness, seen.mirrored) == (Liveness.PENDING, 42.0)
    assert "waits: Priority" in seen.detail
    slurm.put("7", "RUNNING", comment=token("one-7k3q"))
    assert advance(poller, clock, one, turns=3)[0].liveness is Liveness.ALIVE
    slurm.put("7", "FAILED", comment=token("one-7k3q"), code=7 << 8)
    waited_s, seen = until_gone(poller, clock, one)
    assert waited_s <= 6.0
    assert "exit code 7" in seen.detail
    calls = len(slurm.calls)
    advance(poller, clock, one, turns=50)
    assert len(slurm.calls) == calls
    assert poller.observe([]) == {}
    assert ferry.followed == set()


def test_gone_waits_for_the_mirror(poller, slurm, ferry, clock):
    one = [handle("7", "one-7k3q")]
    ferry.is_complete = False
    slurm.put("7", "COMPLETED", comment=token("one-7k3q"))
    poller.observe(one)
    seen = advance(poller, clock, one, turns=20)[0]
    assert seen.liveness is Liveness.ALIVE
    assert "last files" in seen.detail
    assert slurm.calls == ["squeue"]
    ferry.is_complete = True
    assert advance(poller, clock, one)[0].liveness is Liveness.GONE
    assert set(ferry.asked) == {("one-7k3q", 0)}


def test_five_hundred_runs_take_two_commands_a_poll(poller, slurm, clock):
    many = [handle(str(job), f"run-{job}") for job in range(1000, 1500)]
    for job in range(1000, 1500):
        slurm.put(str(job), "RUNNING", comment=token(f"run-{job}"))
    poller.observe(many)
    advance(poller, clock, many, turns=2)
    assert all(seen.liveness is Liveness.ALIVE for seen in poller.observe(many).values())
    for job in range(1000, 1500):
        if job % 3 == 0:
            del slurm.jobs[str(job)]
        elif job % 3 == 1:
            slurm.put(str(job), "CANCELLED", comment=token(f"run-{job}"))
        slurm.accounts[str(job)] = [("CANCELLED by 30001", "0:0")]
    for _ in range(100):
        slurm.calls.clear()
        poller.poll()
        assert len(slurm.calls) <= 2
        advance(poller, clock, many)
    left = Counter(seen.liveness for seen in poller.observe(many).values())
    assert left == {Liveness.ALIVE: 167, Liveness.GONE: 333}


def test_five_hundred_jobs_vanish_without_accounts(poller, slurm, clock):
    slurm.has_accounts = False
    many = [handle(str(job), f"run-{job}") for job in range(1000, 1500)]
    poller.observe(many)
    for _ in range(200):
        slurm.calls.clear()
        poller.poll()
        assert len(slurm.calls) <= 2
        advance(poller, clock, many)
    assert {seen.liveness for seen in poller.observe(many).values()} == {Liveness.GONE}


def test_an_interval_for_quiet_times_and_one_for_others(poller, slurm, clock):
    one = [handle("7", "one-7k3q")]
    slurm.put("7", "PENDING", comment=token("one-7k3q"), reason="Priority")
    poller.observe(one)

    def polls(over_s):
        slurm.calls.clear()
        end = clock.monotonic() + over_s
        while clock.monotonic() < end:
            advance(poller, clock, one)
        return slurm.calls.count("squeue")

    assert polls(10) in range(9, 13)  # just submitted
    polls(15)
    assert polls(50) in range(9, 12)
    slurm.put("7", "RUNNING", comment=token("one-7k3q"))
    polls(6)
    assert polls(50) in range(9, 12)
    slurm.put("7", "COMPLETING", comment=token("one-7k3q"))
    polls(6)
    assert polls(10) in range(9, 12)


def test_a_mark_of_the_batch_script_hurries_the_next_poll(poller, slurm, home, clock):
    one = [handle("7", "one-7k3q")]
    slurm.put("7", "RUNNING", comment=token("one-7k3q"))
    poller.observe(one)
    advance(poller, clock, one, turns=30)
    slurm.calls.clear()
    launch = home.run("one-7k3q").launch(0).path
    launch.mkdir(parents=True)
    (launch / "job.exit").write_text("7 0 1700000001\n")
    del slurm.jobs["7"]
    waited_s, seen = until_gone(poller, clock, one)
    assert waited_s < 2.5
    assert "exit code 7" in seen.detail


def test_a_slow_queue_is_asked_less_often(poller, slurm, clock):
    one = [handle("7", "one-7k3q")]
    slurm.put("7", "RUNNING", comment=token("one-7k3q"))
    answer = slurm._squeue

    def slow(argv, stdin):
        clock.advance(4.0)
        return answer(argv, stdin)

    slurm._squeue = slow
    poller.observe(one)
    advance(poller, clock, one, turns=60)
    slurm.calls.clear()
    began = clock.monotonic()
    advance(poller, clock, one, turns=100)
    assert slurm.calls.count("squeue") <= (clock.monotonic() - began) / 32 + 1


@pytest.mark.parametrize("trouble", [Transient("The connection was lost"), AuthFailed("Somebody has to log in")])
def test_trouble_holds_the_last_answer_for_a_while_and_is_then_said(poller, slurm, clock, trouble):
    one = [handle("7", "one-7k3q")]
    slurm.put("7", "RUNNING", comment=token("one-7k3q"))
    poller.observe(one)
    advance(poller, clock, one, turns=3)
    slurm.trouble = trouble
    advance(poller, clock, one, turns=6)
    assert poller.observe(one)[0].liveness is Liveness.ALIVE
    assert poller.trouble == str(trouble)
    seen = advance(poller, clock, one, turns=200)[0]
    assert seen.liveness is Liveness.UNKNOWN
    assert str(trouble) in seen.detail
    slurm.trouble = None
    assert advance(poller, clock, one, turns=200)[0].liveness is Liveness.ALIVE
    assert poller.trouble == ""


def test_trouble_is_asked_about_ever_less_often(poller, slurm, clock):
    one = [handle("7", "one-7k3q")]
    slurm.trouble = Transient("The connection was lost")
    poller.observe(one)
    began = clock.monotonic()
    while clock.monotonic() - began < 600:
        advance(poller, clock, one)
    assert len(slurm.calls) < 20
    poller.hurry()
    slurm.calls.clear()
    advance(poller, clock, one, turns=2)
    assert slurm.calls


def test_our_own_cancel_is_not_somebody_elses(poller, slurm, home, clock):
    one = [handle("7", "one-7k3q")]
    slurm.put("7", "RUNNING", comment=token("one-7k3q"))
    poller.observe(one)
    advance(poller, clock, one, turns=30)
    poller.cancelling(one[0])
    slurm.put("7", "CANCELLED", comment=token("one-7k3q"))
    slurm.accounts["7"] = [("CANCELLED by 30001", "0:0")]
    waited_s, seen = until_gone(poller, clock, one)
    assert waited_s < 3.0
    assert not seen.cancelled
    assert read_footprint(home.run("one-7k3q"), 0).is_cancelled
    note_cancel(home.run("one-7k3q").launch(0), 5.0)  # twice does no harm


def test_who_cancelled_is_told_by_name(poller, slurm, clock):
    handles = [handle("7", "one-7k3q"), handle("8", "two-7k3q")]
    for number, run_id, user in (("7", "one-7k3q", 30001), ("8", "two-7k3q", 4711)):
        slurm.put(number, "CANCELLED", comment=token(run_id))
        slurm.accounts[number] = [(f"CANCELLED by {user}", "0:0")]
    poller.observe(handles)
    seen = advance(poller, clock, handles, turns=20)
    assert [one.cancelled for one in seen.values()] == [True, True]
    assert seen[0].detail.endswith("was cancelled by alice")
    assert seen[1].detail.endswith("was cancelled by user 4711")


def test_columns_that_a_version_does_not_know_are_asked_for_as_json(poller, slurm, clock):
    one = [handle("7", "one-7k3q")]
    slurm.put("7", "RUNNING", comment=token("one-7k3q"))
    slurm.knows_columns = False
    poller.observe(one)
    assert advance(poller, clock, one, turns=30)[0].liveness is Liveness.ALIVE


def test_a_restarted_server_knows_as_much(slurm, ferry, home, clock):
    """Z2: nothing of what the poller remembers has to survive."""
    one = [handle("7", "one-7k3q")]
    slurm.put("7", "RUNNING", comment=token("one-7k3q"))
    pool = SlurmPool(name="a100", work="/work")
    for _ in range(3):
        poller = Poller(link=slurm, pool=pool, ferry=ferry, home=home, clock=clock)
        poller.observe(one)
        assert advance(poller, clock, one, turns=3)[0].liveness is Liveness.ALIVE
    slurm.put("7", "TIMEOUT", comment=token("one-7k3q"))
    poller = Poller(link=slurm, pool=pool, ferry=ferry, home=home, clock=clock)
    poller.observe(one)
    assert until_gone(poller, clock, one)[1].reason is Reason.TIME_LIMIT


def test_one_number_for_two_launches(poller, slurm, clock):
    """A number was recycled while the run that bore it first is still looked after."""
    handles = [handle("7", "one-7k3q", submitted=1.0), handle("7", "two-7k3q")]
    slurm.put("7", "RUNNING", comment=token("two-7k3q"))
    poller.observe(handles)
    _, seen = until_gone(poller, clock, handles)
    assert "no longer" in seen.detail
    assert poller.observe(handles)[1].liveness is Liveness.ALIVE


def test_the_thread_polls_survives_and_ends(slurm, ferry, home):
    one = [handle("7", "one-7k3q")]
    slurm.put("7", "RUNNING", comment=token("one-7k3q"))
    pool = SlurmPool(name="a100", work="/work", poll_s=0.2)
    poller = Poller(link=slurm, pool=pool, ferry=ferry, home=home, clock=SystemClock())
    poller.start()
    try:
        deadline = time.monotonic() + 30
        while poller.observe(one)[0].liveness is not Liveness.ALIVE:
            assert time.monotonic() < deadline
            threading.Event().wait(0.02)
    finally:
        poller.close()
    assert not any(thread.name == "slurm-poll-a100" for thread in threading.enumerate())


def test_the_end_of_the_jobs_log_is_read(home):
    launch = home.run("one-7k3q").launch(0)
    launch.path.mkdir(parents=True)
    (launch.path / "job.log").write_text("x" * 20_000 + "\nsrun: error: Node failure on node03\n")
    assert read_footprint(home.run("one-7k3q"), 0).words.blamed == ("node03",)
    (launch.path / "job.log").unlink()
    assert read_footprint(home.run("one-7k3q"), 0).words == JobWords()


def test_why_a_job_waits_again_rests_on_files_that_were_here_before(poller, slurm, ferry, clock):
    """What its log says of that may still be on its way."""
    one = [handle("7", "one-7k3q")]
    slurm.put("7", "PENDING", comment=token("one-7k3q"), reason="BeginTime")
    poller.observe(one)
    assert advance(poller, clock, one, turns=2)[0].mirrored == 42.0
    ferry.mirrored = lambda _: 43.0
    assert poller.observe(one)[0].mirrored == 42.0
    poller.poll()
    assert poller.observe(one)[0].mirrored == 43.0


def test_the_end_is_told_by_all_that_was_left_of_it(poller, slurm, ferry, home, clock):
    """The job's log comes last."""
    one = [handle("7", "one-7k3q")]
    ferry.is_complete = False
    slurm.put("7", "FAILED", comment=token("one-7k3q"), code=137 << 8)
    poller.observe(one)
    assert advance(poller, clock, one, turns=3)[0].liveness is Liveness.ALIVE
    launch = home.run("one-7k3q").launch(0)
    launch.path.mkdir(parents=True)
    (launch.path / "job.log").write_text(
        "slurmstepd-node01: error: StepId=7.0 exceeded memory limit (30 > 10), being killed\n"
    )
    ferry.is_complete = True
    seen = advance(poller, clock, one, turns=2)[0]
    assert (seen.liveness, seen.reason) == (Liveness.GONE, Reason.OUT_OF_MEMORY)
