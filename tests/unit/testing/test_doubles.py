from __future__ import annotations

import pytest

from gangline.domain.errors import NoCapacity, Rejected, SpecInvalid, Transient
from gangline.domain.gang import Liveness, Observation
from gangline.domain.spec import StartMode
from gangline.ports import Backend, Clock
from gangline.testing import FakeBackend, FakeClock, make_capacity, make_gang, make_spec


@pytest.fixture
def backend() -> FakeBackend:
    return FakeBackend()


def submit(backend: FakeBackend, key: str = "k"):
    return backend.submit(backend.render(make_gang(nodes=2)), key=key)


def seen(backend: FakeBackend, handle) -> Observation:
    return backend.observe([handle])[0]


def test_they_are_what_they_stand_for(backend) -> None:
    assert isinstance(backend, Backend)
    clock: Clock = FakeClock()
    clock.sleep(2.0)
    assert (clock.now(), clock.monotonic()) == (1_700_000_002.0, 1_002.0)


def test_the_wall_clock_moves_alone() -> None:
    clock = FakeClock(start=100.0)
    clock.set_wall(50.0)
    clock.advance(1.0)
    assert (clock.now(), clock.monotonic(), clock.slept) == (51.0, 1_001.0, [])


def test_refusals_start_nothing(backend) -> None:
    backend.refuse(NoCapacity("full"), times=2)
    for _ in range(2):
        with pytest.raises(NoCapacity):
            submit(backend)
    assert backend.launches == {}
    submit(backend)
    assert (backend.submits, len(backend.live())) == (["k", "k", "k"], 1)


def test_a_lost_answer_starts_the_launch(backend) -> None:
    backend.lose_answers()
    with pytest.raises(Transient):
        submit(backend)
    handle = submit(backend)
    assert len(backend.launches) == 1
    assert seen(backend, handle).liveness is Liveness.ALIVE


def test_silence_lies_and_forgetting(backend) -> None:
    handle = submit(backend)
    backend.silence()
    assert seen(backend, handle).liveness is Liveness.UNKNOWN
    backend.silence(on=False)
    backend.lie(handle, Observation(liveness=Liveness.PENDING))
    assert seen(backend, handle).liveness is Liveness.PENDING
    backend.lie(handle, None)
    backend.forget(handle)
    assert seen(backend, handle).liveness is Liveness.GONE
    with pytest.raises(Rejected):
        backend.find(handle)
    with pytest.raises(Rejected):
        backend.find("no-such-run")


def test_ends(backend) -> None:
    killed, preempted = submit(backend, "a"), submit(backend, "b")
    backend.kill(killed, from_outside=True)
    backend.preempt(preempted)
    assert (seen(backend, killed).liveness, seen(backend, killed).cancelled) == (Liveness.GONE, True)
    assert (seen(backend, preempted).liveness, seen(backend, preempted).preempted) == (Liveness.GONE, True)


def test_a_cluster_lets_launches_wait() -> None:
    backend = FakeBackend(pending=True)
    handle = submit(backend)
    assert seen(backend, handle).liveness is Liveness.PENDING
    backend.begin("train-2abc")
    assert seen(backend, handle).liveness is Liveness.ALIVE


def test_specs_are_built_by_bare_names() -> None:
    spec = make_spec(nodes=2, max_restarts=1, start=StartMode.EXEC, grace_s=1.0, name="x", path="/ckpt")
    assert (spec.resources.nodes, spec.restarts.max_restarts, spec.name) == (2, 1, "x")
    assert (spec.environment.start, spec.stop.grace_s, spec.checkpoint.path) == (StartMode.EXEC, 1.0, "/ckpt")
    with pytest.raises(SpecInvalid, match="nodes"):
        make_spec(nodez=2)


def test_hosts_are_taken_in_order_and_those_that_are_excluded_are_left_out() -> None:
    backend = FakeBackend(make_capacity(hosts=("a", "b", "c")))
    first = backend.submit(backend.render(make_gang(exclude_hosts=("a",))), key="1")
    assert backend.find(first).hosts == ("b",)
    second = backend.render(make_gang(nodes=2, launch=1))
    with pytest.raises(NoCapacity, match="1 free hosts, 2 asked"):
        backend.submit(backend.render(make_gang(nodes=2, launch=1, exclude_hosts=("a",))), key="2")
    assert backend.find(backend.submit(second, key="2")).hosts == ("a", "c")
    assert backend.find(backend.submit(second, key="2")).hosts == ("a", "c")
    backend.cancel(first)
    assert backend.find(backend.submit(second, key="2")).hosts == ("a", "c")
