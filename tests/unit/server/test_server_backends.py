"""The pools of a server follow pools.yaml while it runs, and no run loses its backend by it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gangline.domain.pool import PoolStatus
from gangline.rundir.home import Home
from gangline.server.backends import Backends
from gangline.testing import FakeBackend


class Pool(FakeBackend):
    def __init__(self, pool):
        super().__init__()
        self.pool = pool


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home").create()


class Yard:
    """A server's backends, with a clock and runs that a test sets."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.now = 0.0
        self.used: set[str] = set()
        self.made: list[Pool] = []
        self.broken = False

    def open(self) -> Backends:
        backends = Backends(
            self.home,
            factories={"local": lambda: lambda _home: FakeBackend(), "slurm": lambda: self.make},
            monotonic=lambda: self.now,
        )
        backends.watch(lambda: self.used)
        return backends

    def make(self, _home: Home, pool) -> Pool:
        if self.broken:
            raise RuntimeError("no such module")
        self.made.append(Pool(pool))
        return self.made[-1]

    def write(self, text: str) -> None:
        self.home.pools.write_text(text)
        os.utime(self.home.pools, ns=(int(self.now * 1e9), int(self.now * 1e9)))
        self.now += 1.0


@pytest.fixture
def yard(home: Home) -> Yard:
    return Yard(home)


A = "pools: {a: {work: /shared/a, ssh: bastion}}"


def test_without_a_file_there_is_the_local_pool_and_nothing_is_written(yard: Yard):
    backends = yard.open()
    assert (list(backends), backends.fault) == (["local"], "")
    assert not yard.home.known_pools.exists()


def test_pools_come_change_and_go_with_the_file(yard: Yard):
    backends = yard.open()
    yard.write(A)
    assert list(backends) == ["local", "a"]
    first = backends["a"]
    assert first.pool.ssh == "bastion"
    assert backends["a"] is first
    yard.write("pools: {a: {work: /shared/a, ssh: login2}, b: {work: /b/b}}")
    assert list(backends) == ["local", "a", "b"]
    assert backends["a"].pool.ssh == "login2"
    yard.write("# none left\n")
    assert list(backends) == ["local"]


def test_a_broken_file_keeps_the_pools_and_says_what_is_wrong(yard: Yard):
    yard.write(A)
    backends = yard.open()
    kept = backends["a"]
    yard.write("pools: {a: {wrk: /shared/a}}")
    assert backends["a"] is kept
    assert f"`pools.a.wrk` ({yard.home.pools}, line 1) is not a key of a pool. Did you mean `work`?" in backends.fault
    again = yard.open()  # the server was started again meanwhile
    assert list(again) == ["local", "a"]
    assert "Did you mean `work`?" in again.fault
    yard.write(A.replace("bastion", "other"))
    assert (backends["a"].pool.ssh, backends.fault) == ("other", "")


def test_a_pool_with_a_fault_stays_as_it_was_and_the_others_follow_the_file(yard: Yard):
    yard.write(A)
    backends = yard.open()
    kept = backends["a"]
    yard.write("pools:\n  a: {work: /shared/a, poll: 1ms}\n  b: {work: /s/b}\n  c: {}\n")
    assert set(backends) == {"local", "a", "b"}
    assert backends["a"] is kept
    place = f"`pools.a` ({yard.home.pools}, line 2)"
    assert place in str(backends.fault_of("a"))
    assert "has no `work`" in str(backends.fault_of("c"))
    assert backends.fault_of("b") is None is backends.fault_of("local")
    assert "Pool `a` stays as it was." in backends.fault
    assert "Pool `c` is not served." in backends.fault
    assert set(yard.open()) == {"local", "a", "b"}, "also after a restart"
    yard.write("pools: {a: [\n")
    assert set(backends) == {"local", "a", "b"}
    assert f"{yard.home.pools}, line " in str(backends.fault_of("d"))


def test_a_pool_that_was_written_a_moment_ago_is_there(yard: Yard):
    backends = yard.open()
    assert "a" not in backends
    yard.home.pools.write_text(A)
    assert backends.get("a") is not None


def test_what_is_given_out_does_not_change_under_its_reader(yard: Yard):
    yard.write(A)
    backends = yard.open()
    seen = []
    for name, backend in backends.items():
        yard.write("pools: {}")
        list(backends)
        seen.append((name, backend.state().status))
    assert seen == [("local", PoolStatus.READY), ("a", PoolStatus.READY)]


def test_a_removed_pool_serves_its_runs_until_they_are_over(yard: Yard):
    yard.write(A)
    backends = yard.open()
    served = backends["a"]
    yard.used = {"a"}
    yard.write("pools: {}")
    assert backends["a"].state().status is PoolStatus.REMOVED
    assert backends["a"].capacity() == served.capacity()
    after = yard.open()  # also over a restart
    assert after["a"].state().status is PoolStatus.REMOVED
    yard.write(A)  # it was a mistake
    assert backends["a"] is served
    yard.write("pools: {}")
    yard.used = set()
    yard.now += 1
    assert "a" not in backends
    assert "a" not in yard.open()


def test_a_pool_that_is_removed_while_no_server_runs_serves_its_runs(yard: Yard):
    yard.write(A)
    yard.open().close()
    yard.write("pools: {}")
    yard.used = {"a"}
    assert yard.open()["a"].state().status is PoolStatus.REMOVED
    yard.used = set()
    assert "a" not in yard.open()


def test_a_removed_pool_with_runs_outlives_restarts_beside_others(yard: Yard):
    yard.write(A)
    yard.open().close()
    yard.write(A.replace("a:", "b:", 1))
    yard.used = {"a"}
    for _ in range(3):
        backends = yard.open()
        assert set(backends) == {"local", "a", "b"}
        assert backends["a"].state().status is PoolStatus.REMOVED
        backends.close()
    yard.used = set()
    assert set(yard.open()) == {"local", "b"}
    yard.used = {"a"}
    assert set(yard.open()) == {"local", "b"}, "what nobody needed is not kept"


def test_the_work_folder_of_a_pool_stays_while_runs_are_in_it(yard: Yard):
    yard.write(A)
    backends = yard.open()
    yard.used = {"a"}
    yard.write(A.replace("/shared/a", "/other"))
    assert backends["a"].pool.work == "/shared/a"
    assert "stays at /shared/a" in backends.fault
    yard.used = set()
    yard.now += 1
    assert backends["a"].pool.work == "/other"
    assert backends.fault == ""


def test_a_pool_that_no_backend_can_be_made_from_is_told_of_once_and_the_others_serve(yard: Yard, caplog):
    yard.broken = True
    yard.write(A)
    backends = yard.open()
    assert list(backends) == ["local"]
    assert backends.fault == "Pool `a` cannot be used: no such module."
    for _ in range(5):
        yard.now += 1
        list(backends)
    assert len([record for record in caplog.records if "cannot be used" in record.message]) == 1
    yard.broken = False
    yard.write(A + "\n")
    yard.write(A.replace("bastion", "b2"))
    assert (list(backends), backends.fault) == (["local", "a"], "")
