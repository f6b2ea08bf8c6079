"""Marks against machines are never lost and never doubled, whoever reads results in whatever order."""

import json
import tempfile
from pathlib import Path

import hypothesis.strategies as st
from hypothesis import HealthCheck, given, settings

from gangline.control.ingest import Follower
from gangline.rundir.home import Home
from gangline.store.rows import NewRun
from gangline.store.store import Store
from gangline.testing.leader import FakeLeader

RUNS, READERS, NOW = 2, 3, 1e9
STEP = st.one_of(
    st.tuples(st.just("end"), st.integers(0, RUNS - 1), st.integers(0, 2)),
    st.tuples(st.just("read"), st.integers(0, RUNS - 1), st.integers(0, READERS - 1)),
    st.tuples(st.just("new reader"), st.integers(0, RUNS - 1), st.integers(0, READERS - 1)),
    st.tuples(st.just("lose database"), st.just(0), st.just(0)),
)


def add_run(store: Store, run_id: str) -> None:
    texts = {"key": run_id, "name": "n", "project": "p", "user": "u", "pool": "local"}
    sizes = {"priority": 0, "nodes": 3, "procs_per_node": 1, "gpus_per_node": 0}
    store.add_run(NewRun(id=run_id, **texts, **sizes, labels={}, spec={}, client={}, snapshot=None, created=1.0))


class Scene:
    def __init__(self, folder: Path) -> None:
        self.folder, self.home, self.databases = folder, Home(folder / "home").create(), 0
        self.runs = [f"r-{number}" for number in range(RUNS)]
        self.expected: set[tuple[str, int, str]] = set()
        for run_id in self.runs:
            path = self.home.run(run_id).launch(0).spec
            path.parent.mkdir(parents=True)
            path.write_text(json.dumps({"first_attempt": 0, "nodes": 3, "procs_per_node": 1}))
        self.leaders = [FakeLeader(self.home.run(run_id)) for run_id in self.runs]
        self.open()

    def open(self) -> None:
        self.store = Store.open(self.folder / f"{self.databases}.db")
        self.databases += 1
        for run_id in self.runs:
            add_run(self.store, run_id)
        self.readers = {(run, reader): self.reader(run) for run in range(RUNS) for reader in range(READERS)}

    def reader(self, run: int) -> Follower:
        return Follower(self.store, self.runs[run], self.home.run(self.runs[run]))

    def end(self, run: int, node: int) -> None:
        leader = self.leaders[run]
        leader.begin()
        faults = [{"node": node, "host": f"h{node}", "why": "lost"}, {"node": 2, "host": "h2", "why": "lost"}]
        leader.end("failed", reason="node_lost", next_step="relaunch", nodes_at_fault=faults)
        self.expected |= {(self.runs[run], leader.attempt, host) for host in (f"h{node}", "h2")}

    def read(self, run: int, reader: int) -> None:
        self.readers[run, reader].read(self.store.run(self.runs[run]), now=NOW)

    def step(self, kind: str, run: int, number: int) -> None:
        if kind == "end":
            self.end(run, number)
        elif kind == "read":
            self.read(run, number)
        elif kind == "new reader":
            self.readers[run, number] = self.reader(run)
        else:
            self.store.close()
            self.open()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=st.lists(STEP, max_size=14))
def test_marks_are_never_lost_nor_doubled(steps):
    with tempfile.TemporaryDirectory() as folder:
        scene = Scene(Path(folder))
        try:
            for step in steps:
                scene.step(*step)
            for run in range(RUNS):
                for reader in range(READERS):
                    for _ in range(2):  # one whose memory is old is refused once
                        scene.read(run, reader)
            found = [(mark.run_id, mark.attempt, mark.host) for mark in scene.store.marks("local", since=0.0)]
            assert sorted(found) == sorted(scene.expected)
        finally:
            scene.store.close()
