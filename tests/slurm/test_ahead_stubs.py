"""Jobs that wait for the end of others, against stubs of Slurm: one at most, whenever the server is killed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.slurm.test_submission import Scene

from gangline.backends.slurm import ahead as ahead_module
from gangline.backends.slurm import backend as backend_module
from gangline.domain.errors import NoCapacity, Rejected, Transient
from gangline.domain.gang import GangSpec, Handle
from gangline.domain.pool import WaitIn
from gangline.domain.spec import SlurmOptions
from gangline.ports import Queued

RUN = "llama-ft-7k3q"
LOST = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation\n"


class Killed(BaseException):
    """The server is gone from here on."""


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    return Scene(tmp_path)


def following(scene: Scene, **fields: Any) -> GangSpec:
    return scene.gang(launch=1, **fields)


def begun(scene: Scene) -> Handle:
    """The first job runs."""
    handle = scene.submit()
    scene.stubs.change_job("1001", state="RUNNING")
    return handle


def needed(scene: Scene, **fields: Any) -> Handle:
    """The run goes on with its next launch."""
    return scene.backend.submit(scene.prepared(launch=1, **fields), key=f"{RUN}/1")


def live(scene: Scene) -> list[str]:
    return [job["id"] for job in scene.stubs.jobs().values() if job["state"] in {"PENDING", "RUNNING"}]


def test_a_job_waits_for_the_first_and_is_told_what_to_start_when_that_is_known(scene: Scene) -> None:
    first = begun(scene)
    assert scene.backend.ahead.queue(following(scene), after=first) == "1002"
    assert scene.backend.ahead.queue(following(scene), after=first) == "1002"
    assert scene.backend.ahead.queued() == {RUN: Queued(launch=1, job="1002")}
    script = scene.stubs.jobs()["1002"]["script"]
    assert "#SBATCH --dependency=afterany:1001\n" in script
    assert "export GANGLINE_AWAIT_S=600\n" in script
    told = scene.work / "runs" / RUN / "launches" / "001" / "launch.json"
    assert not told.exists()
    assert not scene.backend.may_have_started(RUN, 1)
    assert needed(scene).data["job"] == "1002"
    assert told.exists()
    assert scene.backend.ahead.queued() == {}
    assert needed(scene).data["job"] == "1002"
    assert live(scene) == ["1001", "1002"]


def test_what_nobody_needs_is_cancelled_and_never_taken_for_the_next_launch(scene: Scene) -> None:
    first = begun(scene)
    scene.backend.ahead.queue(following(scene), after=first)
    scene.backend.ahead.withdraw(RUN)
    scene.backend.ahead.withdraw(RUN)
    assert live(scene) == ["1001"]
    assert scene.backend.ahead.queued() == {}
    (scene.work / "runs" / RUN / "launches" / "001" / "job.id").write_text("1002\n")  # it had begun, to no purpose
    scene.stubs.answer("sbatch", register=True, err=LOST, rc=1, times=1)
    assert needed(scene).data["job"] == "1003"
    scene.stubs.forget_job("1003")
    with pytest.raises(Transient):
        needed(scene)


def test_another_job_is_made_where_this_one_is_not_what_the_run_needs(scene: Scene) -> None:
    first = begun(scene)
    scene.backend.ahead.queue(following(scene), after=first)
    handle = needed(scene, exclude_hosts=("node07",))
    assert handle.data["job"] == "1003"
    assert live(scene) == ["1001", "1003"]
    assert "--exclude=node07" in scene.stubs.jobs()["1003"]["script"]


@pytest.mark.parametrize("state", ["COMPLETED", "CANCELLED"])
def test_a_job_that_is_over_before_it_is_needed_is_replaced(scene: Scene, state: str) -> None:
    first = begun(scene)
    scene.backend.ahead.queue(following(scene), after=first)
    scene.stubs.change_job("1002", state=state)
    assert needed(scene).data["job"] == "1003"


def test_what_the_run_itself_waited_for_has_happened(scene: Scene) -> None:
    first = begun(scene)
    scene.backend.ahead.queue(following(scene, slurm=SlurmOptions(dependency="afterok:7?afterok:8")), after=first)
    assert re.findall("--dependency=.*", scene.stubs.jobs()["1002"]["script"]) == ["--dependency=afterany:1001"]


def test_an_answer_that_was_lost_makes_no_second_job(scene: Scene) -> None:
    first = begun(scene)
    scene.stubs.answer("sbatch", register=True, err=LOST, rc=1, times=1)
    with pytest.raises(Transient):
        scene.backend.ahead.queue(following(scene), after=first)
    assert scene.backend.ahead.queued() == {RUN: Queued(launch=1, job="")}
    scene.backend = scene.new_backend()
    assert scene.backend.ahead.queue(following(scene), after=first) == "1002"
    scene.stubs.answer("sbatch", err=LOST, rc=1, times=1)
    scene.backend.ahead.withdraw(RUN)
    with pytest.raises(Transient):
        scene.backend.ahead.queue(following(scene), after=first)
    with pytest.raises(Transient, match="did not say"):
        needed(scene)
    scene.now += 31
    assert needed(scene).data["job"] == "1003"


def test_a_pool_that_is_full_or_lets_runs_wait_in_gangline_has_none(scene: Scene) -> None:
    first = begun(scene)
    with pytest.raises(NoCapacity):
        scene.new_backend(max_jobs=1).ahead.queue(following(scene), after=first)
    scene.stubs.answer("sbatch", err="sbatch: error: Batch job submission failed: Invalid qos\n", rc=1, times=1)
    with pytest.raises(Rejected):
        scene.backend.ahead.queue(following(scene), after=first)
    assert scene.backend.ahead.queued() == {}
    assert scene.new_backend(wait_in=WaitIn.GANGLINE).ahead.lead_s == 0
    assert scene.new_backend(ahead_s=0.0).ahead.lead_s == 0
    assert scene.backend.ahead.lead_s == 86_400


def test_a_job_that_cannot_be_cancelled_is_not_forgotten(scene: Scene) -> None:
    first = begun(scene)
    scene.backend.ahead.queue(following(scene), after=first)
    scene.stubs.answer(
        "scancel", err="scancel: error: Kill job error on job id 1002: Socket timed out\n", rc=1, times=1
    )
    with pytest.raises(Transient, match="1002"):
        scene.backend.ahead.withdraw(RUN)
    assert scene.backend.ahead.queued() == {RUN: Queued(launch=1, job="1002")}
    scene.backend.ahead.withdraw(RUN)
    assert live(scene) == ["1001"]


class Deadly:
    """Kills the server at one step of what it does, before or after that step."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, scene: Scene, at: int, *, after: bool) -> None:
        self.left, self.after, self.has_struck = at, after, False
        for name in ("run", "write", "read"):
            monkeypatch.setattr(scene.link, name, self.deadly(getattr(scene.link, name)))
        for module in (ahead_module, backend_module):
            monkeypatch.setattr(module, "write_json", self.deadly(module.write_json))
        monkeypatch.setattr(
            ahead_module.SlurmAhead, "forget", self.deadly(ahead_module.SlurmAhead.forget), raising=True
        )

    def deadly(self, step: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            is_last, self.left = self.left == 0, self.left - 1
            if is_last and not self.after:
                self.has_struck = True
                raise Killed
            done = step(*args, **named)
            if is_last:
                self.has_struck = True
                raise Killed
            return done

        return call


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("end", ["goes on", "is over", "goes on elsewhere"])
def test_whenever_the_server_is_killed_there_is_one_job_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str, *, after: bool
) -> None:
    """All that a server does is done again by the next one, from the beginning."""
    for at in range(60):
        scene = Scene(tmp_path / str(at))
        first = begun(scene)
        with monkeypatch.context() as patch:
            deadly = Deadly(patch, scene, at, after=after)
            try:
                finish(scene, first, end)
            except Killed:
                scene.backend = scene.new_backend()
                finish(scene, first, end)
        jobs = {job["id"]: job for job in scene.stubs.jobs().values() if job["name"] == f"{RUN}.1"}
        alive = [job for job in live(scene) if job in jobs]
        assert len(alive) == (0 if end == "is over" else 1), (at, jobs)
        assert scene.backend.ahead.queued() == {}
        if end != "is over":
            assert (scene.work / "runs" / RUN / "launches" / "001" / "launch.json").exists()
            assert needed(scene, **fields_of(end)).data["job"] == alive[0]
        if not deadly.has_struck:
            assert at >= 8, "it was killed at many steps"
            return
    raise AssertionError("it never came to its end")


def fields_of(end: str) -> dict[str, Any]:
    return {"exclude_hosts": ("node07",)} if end == "goes on elsewhere" else {}


def finish(scene: Scene, first: Handle, end: str) -> None:
    def patient(work: Callable[[], Any]) -> Any:
        try:
            return work()
        except Transient:
            scene.now += 31
            return work()

    patient(lambda: scene.backend.ahead.queue(following(scene), after=first))
    scene.stubs.change_job("1001", state="COMPLETED")
    if end == "is over":
        patient(lambda: scene.backend.ahead.withdraw(RUN))
    else:
        patient(lambda: needed(scene, **fields_of(end)))


def test_the_run_of_a_removed_folder_has_its_job_cancelled(scene: Scene) -> None:
    first = begun(scene)
    scene.backend.ahead.queue(following(scene), after=first)
    run = scene.home.run(RUN)
    run.path.rename(run.path.with_name(f".removed-{RUN}"))
    scene.backend.ahead.withdraw(RUN)
    assert live(scene) == ["1001"]
    assert not run.path.exists(), "nothing is made anew for it"


def test_a_launch_that_was_handed_over_meanwhile_gets_no_second_job(scene: Scene) -> None:
    first = begun(scene)
    assert needed(scene).data["job"] == "1002"
    assert scene.backend.ahead.queue(replace(following(scene), exclude_hosts=("x",)), after=first) == ""
    assert live(scene) == ["1001", "1002"]
