"""What only a Ray cluster can do to a launch: say nothing, be another one, refuse, wait."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contract.test_backend_contract import (
    RayHarness,
    cancel_and_wait,
    launch_dir,
    liveness,
    start,
    without_rest,
)

from gangline.domain.errors import Transient
from gangline.domain.gang import Liveness
from gangline.domain.phase import Reason
from gangline.domain.pool import JobStanding, PoolStatus


@pytest.fixture
def ray(tmp_path: Path) -> Iterator[RayHarness]:
    yield from without_rest(RayHarness(tmp_path), tmp_path)


def test_a_cluster_that_does_not_answer_ends_nothing(ray: RayHarness) -> None:
    handle = start(ray)
    ray.ray.down = True
    seen = ray.backend.observe([handle])[0]
    assert seen.liveness is Liveness.UNKNOWN
    assert "nobody listens" in seen.detail
    assert ray.backend.state().status is PoolStatus.UNREACHABLE
    ray.ray.down = False
    assert liveness(ray, handle) is Liveness.ALIVE
    assert ray.backend.state().status is PoolStatus.READY
    cancel_and_wait(ray, handle)


def test_another_session_of_the_cluster_is_the_proof_that_a_launch_is_lost(ray: RayHarness) -> None:
    handle = start(ray)
    ray.num_started(ray.gang())
    ray.ray.new_session()
    seen = ray.backend.observe([handle])[0]
    assert (seen.liveness, seen.reason) == (Liveness.GONE, Reason.NODE_LOST)
    assert "started anew" in seen.detail
    assert start(ray) == handle, "the key was used: nothing is started in the new session"
    assert ray.ray.jobs == {}


def test_a_submit_whose_answer_was_lost_is_one_job(ray: RayHarness) -> None:
    launch = ray.backend.render(ray.gang())
    ray.ray.lose_next_answer = True
    with pytest.raises(Transient):
        ray.backend.submit(launch, key="k")
    ray.restart_server()
    assert ray.backend.may_have_started(launch.gang.run_id, 0)
    handle = ray.backend.submit(launch, key="k")
    assert len(ray.ray.jobs) == 1
    assert ray.num_started(launch.gang) == 1
    cancel_and_wait(ray, handle)


def test_a_submit_to_a_cluster_that_was_started_anew_meanwhile_counts_as_lost(ray: RayHarness) -> None:
    launch = ray.backend.render(ray.gang())
    ray.ray.lose_next_answer = True
    with pytest.raises(Transient):
        ray.backend.submit(launch, key="k")
    ray.num_started(launch.gang)
    ray.ray.new_session()
    handle = ray.backend.submit(launch, key="k")
    assert liveness(ray, handle) is Liveness.GONE


def test_many_launches_are_looked_at_with_one_list(ray: RayHarness) -> None:
    first = start(ray, key="a")
    second = ray.backend.submit(ray.backend.render(ray.gang(launch=1)), key="b")
    ray.ray.asked.clear()
    ray.backend.observe([first, second])
    assert ray.ray.asked.count("GET /api/jobs/") == 1
    cancel_and_wait(ray, first)
    cancel_and_wait(ray, second)


@pytest.mark.parametrize(
    ("status", "code", "message", "reason"),
    [
        ("FAILED", 66, "failed:\ngangline: Ray node n7 cannot use the run's folder.", Reason.BACKEND_REJECTED),
        ("FAILED", 67, "failed:\ngangline: Version mismatch: Ray 2.9 and Ray 2.60.", Reason.BACKEND_REJECTED),
        ("FAILED", 127, "failed:\n/bin/sh: 1: exec: python: not found", Reason.BACKEND_REJECTED),
        ("FAILED", None, "Job supervisor actor could not be scheduled", None),
    ],
)
def test_why_a_driver_failed_is_told(ray: RayHarness, status: str, code: int, message: str, reason: Reason) -> None:
    handle = start(ray)
    cancel_and_wait(ray, handle)
    ray.ray.jobs[handle.data["submission_id"]].update(status=status, driver_exit_code=code, message=message)
    seen = ray.backend.observe([handle])[0]
    assert (seen.liveness, seen.reason) == (Liveness.GONE, reason)
    assert seen.detail == message.splitlines()[-1].removeprefix("gangline: ")


def test_a_job_that_waits_for_room_says_what_is_missing(ray: RayHarness) -> None:
    handle = start(ray)
    ray.num_started(ray.gang())
    state = launch_dir(ray.gang()).path / "ray-state.json"
    ray.ray._settle = lambda: state.write_text('{"state": "waiting", "why": "Waits for 2 Ray nodes."}')
    seen = ray.backend.observe([handle])[0]
    assert (seen.liveness, seen.detail) == (Liveness.PENDING, "Waits for 2 Ray nodes.")
    del ray.ray._settle
    cancel_and_wait(ray, handle)


def test_jobs_that_no_run_counts_on_are_found_and_ended(ray: RayHarness) -> None:
    handle = start(ray)
    assert [job.standing for job in ray.backend.jobs({("train-2abc", 0): handle}, quiet_s=1)] == [JobStanding.FOLLOWED]
    orphan = ray.backend.jobs({}, quiet_s=1)[0]
    assert orphan.standing is JobStanding.ORPHAN
    ray.backend.end_job(orphan)
    assert ray.backend.jobs({}, quiet_s=1) == []
    assert liveness(ray, handle) is Liveness.GONE
