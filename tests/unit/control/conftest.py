"""A server's insides without a server: real store and run directories, a fake backend, time that stands still."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gangline.control.commands import Commands
from gangline.control.reconcile import Reconciler
from gangline.domain.spec import EntryKind
from gangline.rundir.home import Home
from gangline.store.store import Store
from gangline.testing import FakeBackend, FakeClock, FakeCluster, FakeElsewhere, make_capacity, make_spec
from gangline.testing.leader import FakeLeader


@dataclass
class Plant:
    home: Home
    store: Store
    backend: FakeBackend
    clock: FakeClock
    commands: Commands
    reconciler: Reconciler
    pokes: list[str]

    def submit(self, *, key="key", **spec) -> str:
        command = make_spec(**{"entry": "sleep", "entry_kind": EntryKind.COMMAND, **spec})
        return self.commands.submit(command, client={"user": "alice", "host": "laptop"}, key=key)["id"]

    def tick(self, times: int = 1) -> None:
        for _ in range(times):
            self.reconciler.tick()

    def leader(self, run_id: str, launch: int = 0) -> FakeLeader:
        return FakeLeader(self.home.run(run_id), launch, clock=self.clock)

    def phase(self, run_id: str) -> str:
        return self.store.run(run_id).phase.value

    def phases(self, run_id: str) -> list[str]:
        return [event.data["new"] for event in self.store.events(run_id) if event.kind == "phase"]

    def restart_server(self) -> None:
        """As after kill -9: nothing is kept but the store and the files."""
        self.reconciler = Reconciler(
            store=self.store, backends={"local": self.backend}, home=self.home, clock=self.clock
        )


@pytest.fixture
def plant(tmp_path: Path) -> Iterator[Plant]:
    home = Home(tmp_path / "home").create()
    store = Store.open(home.database)
    backend, clock, pokes = FakeBackend(make_capacity(ranks=8), home=str(home.path)), FakeClock(), []
    commands = Commands(
        store=store, backends={"local": backend}, home=home, clock=clock, poke=lambda: pokes.append("poke")
    )
    reconciler = Reconciler(store=store, backends={"local": backend}, home=home, clock=clock)
    yield Plant(home, store, backend, clock, commands, reconciler, pokes)
    store.close()


POOL = "a100"


@dataclass
class Site:
    """A server, a cluster, and what lies between the two, moved on by hand."""

    home: Home
    store: Store
    cluster: FakeElsewhere
    clock: FakeClock
    works: list

    def __post_init__(self):
        self.start_server()

    def start_server(self):
        self.works.clear()
        parts = {"store": self.store, "backends": {POOL: self.cluster}, "home": self.home, "clock": self.clock}
        self.commands = Commands(**parts, poke=lambda: None)
        self.reconciler = Reconciler(**parts, beside=self.works.append)

    def submit(self, key="key", **spec):
        self.clock.advance(0.001)
        command = make_spec(**{"entry": "sleep", "entry_kind": EntryKind.COMMAND, "pool": POOL, **spec})
        return self.commands.submit(command, client={}, key=key)["id"]

    def tick(self, times=1, *, after_s=0.1):
        for _ in range(times):
            self.clock.advance(after_s)
            self.reconciler.tick()

    def deliver(self):
        """What was on its way to the cluster arrives there, and the answers come back."""
        while self.works:
            self.works.pop(0)()
        self.tick()

    def queued(self, key="key", **spec):
        """A run that waits in the cluster's queue."""
        run = self.submit(key, **spec)
        self.tick()
        self.deliver()
        return run

    def running(self, key="key", **spec):
        run = self.queued(key, **spec)
        self.cluster.begin(run)
        self.leader(run).begin()
        self.see()
        return run

    def see(self, times=1, *, after_s=6.0):
        """The mirror catches up, and the server looks."""
        for _ in range(times):
            self.clock.advance(after_s)
            self.cluster.ferry()
            self.tick()

    def leader(self, run, launch=0):
        leader = FakeLeader(self.cluster.far(run), launch, clock=self.clock)
        begun = leader.run_dir.attempts()
        leader.attempt = max([leader.attempt, *(one.number for one in begun)])
        return leader

    def row(self, run):
        return self.store.run(run)

    def phase(self, run):
        return self.row(run).phase.value

    def phases(self, run):
        return [event.data["new"] for event in self.store.events(run) if event.kind == "phase"]

    def keys(self):
        return list(self.cluster.launches)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    home = Home(tmp_path / "home").create()
    store, clock = Store.open(home.database), FakeClock()
    yield Site(home, store, FakeCluster(tmp_path / "far", home.path, clock=clock), clock, [])
    store.close()


@pytest.fixture
def site_without_queue(tmp_path: Path) -> Iterator[Site]:
    home = Home(tmp_path / "home").create()
    store, clock = Store.open(home.database), FakeClock()
    yield Site(home, store, FakeElsewhere(tmp_path / "far", home.path, clock=clock), clock, [])
    store.close()
