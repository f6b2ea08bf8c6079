"""The poller against scriptable commands: what a healthy cluster never says, and what 500 runs cost."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path

import pytest
from tests.slurm.stubs import Stubs

from gangline.backends.slurm.poll import Poller
from gangline.backends.slurm.tokens import Token
from gangline.domain.gang import Handle, Liveness, Observation
from gangline.domain.phase import Reason
from gangline.domain.pool import SlurmPool
from gangline.rundir.files import write_json
from gangline.rundir.home import Home
from gangline.testing import FakeClock
from gangline.testing.link import LocalLink

RUN = "llama-ft-7k3q"
OFF = "Slurm accounting storage is disabled\n"


class Ferry:
    """A mirror that always has everything."""

    def follow(self, run_id: str) -> None: ...

    def forget(self, run_id: str) -> None: ...

    def finish(self, run_id: str, launch: int = 0) -> bool:  # noqa: ARG002
        return True

    def mirrored(self, run_id: str) -> float | None:  # noqa: ARG002
        return None


class Scene:
    def __init__(self, folder: Path) -> None:
        self.stubs = Stubs(folder)
        self.home = Home(folder / "home").create()
        self.clock = FakeClock(time.time())
        link = LocalLink(folder / "work", env={**os.environ, **self.stubs.env})
        pool = SlurmPool(name="lab", work=str(folder / "work"))
        self.poller = Poller(link=link, pool=pool, ferry=Ferry(), home=self.home, clock=self.clock)

    def job(self, job: str, run_id: str = RUN, **fields: object) -> Handle:
        """A job of ours; `squeue` lists it."""
        token = str(Token(home="0123456789ab", run_id=run_id, launch=0))
        given = {"state": "RUNNING", "name": f"{run_id}.0", "comment": token, "restarts": 0, "reason": "None", **fields}
        with self.stubs._locked() as state:
            state["jobs"][job] = {"id": job, **given}
        return self.handle(job, token)

    def jobs(self, count: int) -> list[Handle]:
        """Many at once."""
        tokens = {
            str(job): str(Token(home="0123456789ab", run_id=f"run-{job}", launch=0)) for job in range(1, count + 1)
        }
        with self.stubs._locked() as state:
            for job, token in tokens.items():
                state["jobs"][job] = {"id": job, "state": "RUNNING", "comment": token, "restarts": 0, "reason": "None"}
        return [self.handle(job, token) for job, token in tokens.items()]

    def handle(self, job: str, token: str) -> Handle:
        data = {"job": job, "token": token, "submitted": self.clock.now(), "cluster": "lab", "job_dir": "/w/l"}
        return Handle(backend="slurm", version=1, data=data)

    def look(self, handle: Handle, *, polls: int = 1) -> Observation:
        for _ in range(polls):
            self.poller.observe([handle])
            self.poller.poll()
            self.poller.turn()
            self.clock.advance(5.0)
        return self.poller.observe([handle])[0]

    def write(self, name: str, text: str) -> None:
        path = self.home.run(RUN).launch(0).path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def leave_result(self, **fields: object) -> None:
        attempt = self.home.run(RUN).attempt(0)
        attempt.path.mkdir(parents=True)
        write_json(attempt.result, {"version": 1, "attempt": 0, "launch": 0, "next": "end", **fields})


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def forget(scene: Scene) -> None:
    """The job has left the queue, the controller and all accounts."""
    scene.stubs.forget_job("7")


@pytest.mark.parametrize(("code", "reason"), [(0, None), (7, None), (137, Reason.KILLED)])
def test_s3_a_job_that_nobody_knows_any_more_and_no_accounts(scene: Scene, code: int, reason: Reason | None) -> None:
    scene.stubs.answer("sacct", err=OFF, rc=1)
    handle = scene.job("7")
    assert scene.look(handle).liveness is Liveness.ALIVE
    forget(scene)
    scene.write("job.exit", f"{code} 0 1700000000\n")
    seen = scene.look(handle, polls=2)
    assert (seen.liveness, seen.reason) == (Liveness.GONE, reason)
    assert f"exit code {code}" in seen.detail


def test_s3_killed_before_it_could_leave_a_word(scene: Scene) -> None:
    handle = scene.job("7")
    scene.look(handle)
    scene.stubs.change_job("7", state="FAILED", exit_code=9)
    assert scene.look(handle).reason is Reason.KILLED
    other = scene.job("8")
    scene.look(other)
    scene.stubs.forget_job("8")
    assert scene.look(other, polls=2).liveness is Liveness.UNKNOWN
    seen = scene.look(other, polls=4)
    assert (seen.liveness, seen.reason, seen.cancelled) == (Liveness.GONE, None, False)


def test_s3_the_leaders_word_is_enough_when_the_queue_is_empty(scene: Scene) -> None:
    handle = scene.job("7")
    scene.look(handle)
    forget(scene)
    scene.leave_result(outcome="succeeded")
    assert scene.look(handle, polls=2).liveness is Liveness.GONE


def test_trouble_of_every_kind_is_no_end(scene: Scene) -> None:
    handle = scene.job("7")
    scene.look(handle)
    troubles = [
        {"err": "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n", "rc": 1},
        {"err": "slurm_load_jobs error: Socket timed out on send/recv operation\n", "rc": 1},
        {"err": "squeue: error: slurm_receive_msg: Zero Bytes were transmitted or received\n"},
        {"out": "7                   RUNN"},
        {"out": "", "die_by": 9},
        {"out": "Welcome to Stampede3\n7 jobs\n"},
        {"out": ""},
    ]
    for trouble in troubles:
        scene.stubs.answer("squeue", **trouble)
        for _ in range(3):
            assert scene.look(handle).liveness is not Liveness.GONE, trouble
        scene.stubs.clear("squeue")
        assert scene.look(handle).liveness is Liveness.ALIVE, trouble


def test_banners_around_the_answer_do_not_matter(scene: Scene) -> None:
    scene.stubs.answer("squeue", before="Welcome to Stampede3 ✓\n7 nodes are down\n", after="7 | FAILED\n", plain=True)
    assert scene.look(scene.job("7")).liveness is Liveness.ALIVE


@pytest.mark.parametrize(
    ("said", "liveness"),
    [
        ("PENDING", Liveness.PENDING),
        ("CONFIGURING", Liveness.PENDING),
        ("REQUEUED", Liveness.PENDING),
        ("COMPLETIN", Liveness.ALIVE),
        ("COMPLETING", Liveness.ALIVE),
        ("SUSPENDED", Liveness.ALIVE),
        ("SOMETHING_NEW", Liveness.ALIVE),
        ("COMPLETED", Liveness.GONE),
        ("NODE_FAIL", Liveness.GONE),
        ("BOOT_FAIL", Liveness.GONE),
        ("DEADLINE", Liveness.GONE),
        ("PREEMPTED", Liveness.GONE),
        ("TIMEOUT", Liveness.GONE),
        ("OUT_OF_MEMORY", Liveness.GONE),
        ("CANCELLED+", Liveness.GONE),
    ],
)
def test_s4_what_is_listed_is_not_what_runs(scene: Scene, said: str, liveness: Liveness) -> None:
    assert scene.look(scene.job("7", state=said, requeue=0), polls=3).liveness is liveness


def test_s5_slurm_puts_it_back_and_it_is_followed_under_its_number(scene: Scene) -> None:
    handle = scene.job("7", requeue=1)
    assert scene.look(handle).liveness is Liveness.ALIVE
    scene.stubs.change_job("7", state="NODE_FAIL")
    assert scene.look(handle, polls=3).liveness is not Liveness.GONE
    scene.stubs.change_job("7", state="PENDING", restarts=1, reason="BeginTime")
    seen = scene.look(handle)
    assert seen.liveness is Liveness.PENDING
    assert "back into its queue" in seen.detail
    assert "(restart 1)" in seen.detail
    scene.stubs.change_job("7", state="RUNNING", restarts=1, reason="None")
    assert "second time" in scene.look(handle).detail
    assert not scene.stubs.calls("sbatch")


def test_h4_somebody_has_cancelled_it(scene: Scene) -> None:
    handle = scene.job("7")
    scene.look(handle)
    os.spawnve(os.P_WAIT, scene.stubs.bin / "scancel", ["scancel", "7"], {**os.environ, **scene.stubs.env})
    seen = scene.look(handle, polls=2)
    assert (seen.liveness, seen.cancelled) == (Liveness.GONE, True)


def test_h4_who_cancelled_it_stays_known_where_its_last_files_never_come(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its agents were killed without a word: while that is waited for, the server gives its leader up."""
    handle = scene.job("7")
    scene.look(handle)
    monkeypatch.setattr(Ferry, "finish", lambda *_: False)
    os.spawnve(os.P_WAIT, scene.stubs.bin / "scancel", ["scancel", "7"], {**os.environ, **scene.stubs.env})
    assert scene.look(handle, polls=2).liveness is Liveness.ALIVE
    scene.poller.cancelling(handle)
    monkeypatch.setattr(Ferry, "finish", lambda *_: True)
    seen = scene.look(handle)
    assert (seen.liveness, seen.cancelled) == (Liveness.GONE, True)


def test_five_hundred_live_runs_take_one_command_a_poll_and_a_bad_day_two(scene: Scene) -> None:
    handles = scene.jobs(500)
    scene.poller.observe(handles)
    before = time.process_time()
    scene.poller.poll()
    took_s = time.process_time() - before
    assert len(scene.stubs.calls()) == 1
    assert Counter(seen.liveness for seen in scene.poller.observe(handles).values()) == {Liveness.ALIVE: 500}
    assert took_s < 2.0  # 0.1 s on a quiet machine
    with scene.stubs._locked() as state:
        for job in range(1, 501, 2):
            del state["jobs"][str(job)]
    for _ in range(4):
        calls = len(scene.stubs.calls())
        scene.poller.poll()
        assert len(scene.stubs.calls()) - calls <= 2
