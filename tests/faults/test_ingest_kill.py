"""kill -9 in the middle of ingestion loses nothing and doubles nothing."""

import json
import random
import signal
import subprocess
import sys
import time

import pytest

from gangline.control.ingest import Follower
from gangline.rundir.home import Home
from gangline.store.rows import NewRun
from gangline.store.store import Store
from gangline.testing.leader import FakeLeader

pytestmark = pytest.mark.faults

LINES = 6_000
KILLS = 8
READER = """
import sys
from pathlib import Path
from gangline.control.ingest import Follower
from gangline.rundir.home import Home
from gangline.store.store import Store

home = Home(Path(sys.argv[1]))
store = Store.open(home.database)
follower = Follower(store, "r-1", home.run("r-1"), limit_bytes=4096)  # many small transactions
print("ready", flush=True)
while not follower.read(store.run("r-1")).is_drained:
    pass
print("done", flush=True)
"""


def test_a_reader_killed_at_any_moment_stores_every_record_once(tmp_path):
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    randomness = random.Random(seed)
    home = Home(tmp_path / "home").create()
    store = Store.open(home.database)
    store.add_run(run_row())
    leader = write_run(home)
    store.close()
    kills = sum(read_and_kill(home, randomness.uniform(0.0, 0.25)) for _ in range(KILLS))
    assert kills >= 1, "every reader was done before it could be killed"
    store = Store.open(home.database)
    follower = Follower(store, "r-1", home.run("r-1"))
    while not follower.read(store.run("r-1")).is_drained:
        pass
    cells = store.chart("r-1", "loss", rank=0, buckets=LINES)
    assert [(cell[0], cell[4]) for cell in cells] == [(step, float(step)) for step in range(LINES)]
    events = [event.kind for event in store.events("r-1")]
    assert events.count("warning") == 50
    assert events.count("attempt_running") == 1
    assert events.count("attempt_ended") == 1
    assert len(store.checkpoints("r-1")) == 20
    assert store.attempts("r-1")[0].outcome == "succeeded"
    assert store.cursors("r-1")["metrics/rank-00000.jsonl"] == leader.run_dir.metrics(0).stat().st_size
    store.close()


def run_row():
    texts = {"key": "k", "name": "n", "project": "p", "user": "u", "pool": "local"}
    sizes = {"priority": 0, "nodes": 1, "procs_per_node": 1, "gpus_per_node": 0}
    return NewRun(id="r-1", **texts, **sizes, labels={}, spec={}, client={}, snapshot=None, created=1.0)


def write_run(home):
    path = home.run("r-1").launch(0).spec
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"first_attempt": 0, "nodes": 1, "procs_per_node": 1}))
    leader = FakeLeader(home.run("r-1"))
    leader.begin()
    for step in range(LINES):
        leader.log({"loss": float(step)}, step=step)
        if step % 300 == 0:
            leader.checkpoint(step)
    for number in range(50):
        leader.journal("warning", text=f"w {number}")
    leader.end()
    return leader


def read_and_kill(home, after_s):
    """Start a reader and kill it; returns whether it still had work to do."""
    command = [sys.executable, "-c", READER, str(home.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        time.sleep(after_s)  # the moment of the kill is the experiment
        process.send_signal(signal.SIGKILL)
        return "done" not in process.stdout.read()
