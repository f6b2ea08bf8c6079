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
from gangline.testing import FakeBackend, FakeClock, make_capacity, make_spec
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
