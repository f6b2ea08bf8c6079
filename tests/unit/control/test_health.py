"""What is remembered of machines, from results to the next launch, with a fake backend of several hosts."""

from contextlib import suppress
from dataclasses import replace

import pytest

from gangline.control.adopt import adopt_runs
from gangline.control.commands import Commands
from gangline.control.decide import decide
from gangline.control.facts import Facts
from gangline.control.health import closing_marks, result_marks
from gangline.control.reconcile import Reconciler
from gangline.control.records import RunRecords
from gangline.domain.errors import NotFound
from gangline.domain.gang import Liveness, Observation
from gangline.domain.phase import Phase
from gangline.queue.health import HealthPolicy
from gangline.store.rows import AttemptRow
from gangline.store.store import Store
from gangline.testing import FakeBackend, make_capacity

HOSTS = ("h0", "h1", "h2", "h3")
ROOM = {"max_infrastructure_restarts": 20, "same_failure_limit": 0}


@pytest.fixture
def cluster(plant):
    """The plant with four machines, each of which carries one node of one run."""

    def make(hosts=HOSTS, nodes=None, **policy):
        parts = {"store": plant.store, "home": plant.home, "clock": plant.clock, "health": HealthPolicy(**policy)}
        capacity = make_capacity(ranks=64, nodes=nodes or len(hosts), hosts=hosts)
        plant.backend = FakeBackend(capacity, home=str(plant.home.path))
        backends = {"local": plant.backend}
        plant.commands = Commands(backends=backends, poke=lambda: None, **parts)
        plant.reconciler = Reconciler(backends=backends, **parts)
        return plant

    return make


def start(plant, *, nodes=2, key="key", **spec) -> str:
    run = plant.submit(nodes=nodes, key=key, **{**ROOM, **spec})
    plant.tick()
    return run


def placed(plant, run) -> tuple[str, ...]:
    return plant.backend.find(run).hosts


def lose(plant, run, *hosts, launch=0, why="lost", reason="node_lost", **keys) -> None:
    """The launch ends, and blames machines of its own; the next one starts."""
    leader = plant.leader(run, launch)
    leader.begin()
    mine = placed(plant, run)
    faults = [{"node": mine.index(host), "host": host, "why": why} for host in hosts]
    message = f"Node of {', '.join(hosts)} was lost: it went silent."
    leader.end("failed", reason=reason, message=message, next_step="relaunch", nodes_at_fault=faults, **keys)
    plant.tick()
    plant.backend.kill(run)
    plant.tick(3)


def kinds(plant) -> dict[str, list[str]]:
    return {node["host"]: [mark["kind"] for mark in node["marks"]] for node in plant.commands.nodes()}


def state(plant, host) -> str:
    return next(node["state"] for node in plant.commands.nodes() if node["host"] == host)


def test_a_relaunch_avoids_the_node_that_failed_its_check(cluster):
    plant = cluster()
    run = start(plant, nodes=1)
    assert placed(plant, run) == ("h0",)
    lose(plant, run, "h0", why="device", reason="unhealthy_node")
    assert placed(plant, run) == ("h1",)
    assert plant.backend.find(run).launch.gang.exclude_hosts == ("h0",)
    assert state(plant, "h0") == "avoided"
    (told,) = [event for event in plant.store.events(run) if event.kind == "avoided"]
    assert told.message.startswith("Node h0 is avoided: 1 failed check of run")
    assert plant.commands.pools()[0]["avoided_nodes"] == 1
    assert plant.commands.pools()[0]["warnings"] == []
    plant.tick(5)
    assert len([event for event in plant.store.events(run) if event.kind == "avoided"]) == 1


def test_a_node_that_breaks_runs_repeatedly_is_avoided_by_all_runs_until_it_is_cleared(cluster):
    plant = cluster()
    run = start(plant)
    for launch in range(3):
        assert placed(plant, run) == ("h0", "h1")
        lose(plant, run, "h1", launch=launch)
    assert placed(plant, run) == ("h0", "h2")
    assert kinds(plant)["h1"] == ["node_lost"] * 3
    other = start(plant, nodes=1, key="other")
    assert placed(plant, other) == ("h3",)
    assert plant.commands.clear_node("h1", pool=None, by="bob") == {"host": "h1", "pools": ["local"]}
    assert state(plant, "h1") == "ok"
    assert placed(plant, start(plant, nodes=1, key="third")) == ("h1",)


def test_what_was_cleared_does_not_come_back_by_a_result_that_is_read_late(cluster):
    plant = cluster()
    run = start(plant, nodes=1)
    lose(plant, run, "h0", why="device", reason="unhealthy_node")
    leader = plant.leader(run, 1)
    leader.begin()
    plant.clock.advance(60)
    faults = [{"node": 0, "host": "h0", "why": "device"}]
    leader.end("failed", reason="unhealthy_node", next_step="end", nodes_at_fault=faults, ended=plant.clock.now() - 30)
    plant.commands.clear_node("h0", pool="local", by="bob")
    plant.tick()
    assert kinds(plant)["h0"] == []
    assert plant.commands.clear_node("h0", pool=None, by="bob")["pools"] == []


def test_marks_are_forgotten_with_time(cluster):
    plant = cluster(window_s=100.0)
    run = start(plant, nodes=1)
    lose(plant, run, "h0", why="device", reason="unhealthy_node")
    plant.clock.advance(101)
    assert state(plant, "h0") == "ok"


def test_a_leader_whose_clock_is_ahead_makes_no_mark_that_lasts_longer(cluster):
    plant = cluster(window_s=100.0)
    run = start(plant, nodes=1)
    lose(plant, run, "h0", why="device", reason="unhealthy_node", ended=plant.clock.now() + 1e6)
    assert state(plant, "h0") == "avoided"
    plant.clock.advance(101)
    assert state(plant, "h0") == "ok"


def test_the_one_machine_of_a_pool_is_used_all_the_same_and_nobody_is_told_to_avoid_it(cluster):
    plant = cluster(("laptop",))
    run = start(plant, nodes=1)
    lose(plant, run, "laptop", why="device", reason="unhealthy_node")
    assert placed(plant, run) == ("laptop",)
    assert "avoid" not in " ".join(event.message for event in plant.store.events(run))
    (pool,) = plant.commands.pools()
    assert (pool["avoided_nodes"], pool["warnings"]) == (0, [])
    assert state(plant, "laptop") == "suspect", "what speaks against it is still to be seen"


def test_a_gang_that_needs_every_machine_gets_it(cluster):
    plant = cluster()
    lose(plant, start(plant, nodes=1), "h0", why="device", reason="unhealthy_node")
    plant.commands.stop(plant.commands.list_runs()[0]["id"], grace_s=0, by="bob")
    plant.backend.kill(plant.commands.list_runs()[0]["id"])
    plant.tick(3)
    whole = start(plant, nodes=4, key="whole")
    assert sorted(placed(plant, whole)) == list(HOSTS)
    assert "Node h0 ought to be avoided" in plant.store.events(whole)[-1].message


def test_an_elastic_gang_starts_smaller_rather_than_on_a_bad_machine(cluster):
    plant = cluster()
    run = start(plant, nodes=4, min_nodes=2)
    assert placed(plant, run) == HOSTS
    lose(plant, run, "h2", why="device", reason="unhealthy_node")
    assert placed(plant, run) == ("h0", "h1", "h3")


def test_one_machine_may_hold_all_nodes_of_an_elastic_gang(cluster, monkeypatch):
    plant, asked = cluster(hosts=("laptop",), nodes=16), []
    monkeypatch.setattr(plant.backend, "submit", lambda launch, **_: asked.append(launch.gang.nodes))
    with suppress(AttributeError):  # it has no handle to go on with
        start(plant, nodes=4, min_nodes=1)
    assert asked == [4]


def test_the_node_of_a_leader_that_vanished_is_remembered(cluster):
    plant = cluster()
    run = start(plant)
    plant.leader(run).begin()
    plant.tick()
    plant.backend.kill(run)
    plant.tick(4)
    assert kinds(plant)["host-0"] == ["node_lost"]  # the name that the fake leader gives itself


@pytest.mark.parametrize("end", ["preempt", "from_outside"])
def test_machines_that_were_taken_away_are_not_to_blame(cluster, end):
    plant = cluster()
    run = start(plant)
    plant.leader(run).begin()
    plant.tick()
    if end == "preempt":
        plant.backend.preempt(run)
    else:
        plant.backend.kill(run, from_outside=True)
    plant.tick(4)
    assert all(not found for found in kinds(plant).values())


def test_what_a_dry_run_prints_names_the_machines_to_avoid(cluster):
    plant = cluster()
    run = start(plant, nodes=1)
    lose(plant, run, "h0", why="device", reason="unhealthy_node")
    spec = plant.reconciler._specs.get(plant.store.run(run))
    assert plant.commands.check(spec).gang.exclude_hosts == ("h0",)


def test_a_lost_database_brings_marks_back_from_the_folders(cluster, tmp_path):
    plant = cluster()
    run = start(plant)
    lose(plant, run, "h1")
    RunRecords(plant.store, plant.home).write(run)
    before = plant.store.marks("local", since=0)
    plant.store = Store.open(tmp_path / "another.db")
    try:
        adopt_runs(plant.store, plant.home, plant.clock)
        backends = {"local": plant.backend}
        plant.reconciler = Reconciler(store=plant.store, backends=backends, home=plant.home, clock=plant.clock)
        plant.tick(2)
        assert plant.store.marks("local", since=0) == before
    finally:
        plant.store.close()


def test_unknown_names_are_answered_with_those_that_there_are(cluster):
    plant = cluster()
    with pytest.raises(NotFound) as error:
        plant.commands.clear_node("h9", pool=None, by="bob")
    assert error.value.fix == "Known: h0, h1, h2, h3."
    with pytest.raises(NotFound, match="There is no pool `lokal`") as error:
        plant.commands.nodes("lokal")
    assert "local" in error.value.fix
    with pytest.raises(NotFound, match="There is no pool `x`"):
        plant.commands.clear_node("h0", pool="x", by="bob")


def attempt(**keys) -> AttemptRow:
    row = {"number": 2, "launch": 0, "outcome": "failed", "ended": 50.0, "message": "Why.\nMore."}
    nodes = [{"node": node, "host": f"h{node}"} for node in range(4)]
    return AttemptRow(**{**row, "nodes": nodes, **keys})


FAILED = {"rank": 1, "node": 1, "host": "h1"}
CHECKED = {"reason": "unhealthy_node"}


@pytest.mark.parametrize(
    ("keys", "faults", "expected"),
    [
        ({"reason": "user_error", "first_failure": FAILED}, [], {}),
        ({"reason": "killed", "signature": "killed", "first_failure": FAILED}, [], {}),
        ({"reason": "out_of_memory", "signature": "kernel_memory_kill", "first_failure": FAILED}, [], {}),
        ({"reason": "communication", "signature": "nccl_remote", "first_failure": FAILED}, [], {}),
        ({"reason": "hang", "first_failure": FAILED}, [], {}),
        ({**CHECKED, "signature": "device_broken", "first_failure": FAILED}, [], {"h1": "hardware"}),
        ({**CHECKED, "signature": "of_the_team", "first_failure": FAILED}, [], {"h1": "hardware"}),
        ({"reason": "communication", "signature": "infiniband", "first_failure": FAILED}, [], {"h1": "network"}),
        ({"reason": "hang", "first_failure": FAILED}, [(1, "blocked")], {"h1": "blocked"}),
        ({"reason": "node_lost"}, [(1, "lost"), (2, "lost")], {"h1": "node_lost", "h2": "node_lost"}),
        (CHECKED, [(1, "clock")], {"h1": "failed_check"}),
        (CHECKED, [(1, "allreduce"), (2, "allreduce")], {"h1": "shared_check", "h2": "shared_check"}),
        (CHECKED, [(1, "device"), (2, "device")], {"h1": "failed_check", "h2": "failed_check"}),
        ({**CHECKED, "nodes": [{"node": 0, "host": "h0"}]}, [(0, "disk")], {"h0": "shared_check"}),
        ({**CHECKED, "outcome": "stopped"}, [(1, "device")], {}),
        ({**CHECKED, "ended": None}, [(1, "device")], {}),
    ],
)
def test_what_a_result_has_against_machines(plant, keys, faults, expected):
    run = plant.store.run(plant.submit())
    listed = [{"node": node, "host": f"h{node}", "why": why} for node, why in faults]
    found = result_marks(run, attempt(**keys), {"nodes_at_fault": listed}, now=100.0)
    assert {mark.host: mark.kind for mark in found} == expected
    assert {(mark.pool, mark.run_id, mark.attempt, mark.time, mark.detail) for mark in found} <= {
        ("local", run.id, 2, 50.0, "Why.")
    }
    assert closing_marks(run, attempt(**keys, next="end")) == []


@pytest.mark.parametrize("listed", [None, 7, {}, [None, 3, {"node": 1}], [{"host": None, "why": []}]])
def test_a_result_that_makes_no_sense_has_nothing_against_anyone(plant, listed):
    run = plant.store.run(plant.submit())
    assert result_marks(run, attempt(**CHECKED), {"nodes_at_fault": listed}, now=100.0) == []


@pytest.mark.parametrize(
    ("failed", "expected"), [(None, {"h0"}), ([], set()), (["h2"], {"h2"}), (["h1", "h3"], {"h1", "h3"})]
)
def test_who_is_to_blame_for_a_launch_that_left_no_word(plant, failed, expected):
    """Without a word of the backend the leader's machine; with one, those that it names, and nobody else."""
    run = plant.store.run(plant.submit())
    seen = Observation(liveness=Liveness.GONE, detail="Slurm job 3 ended as NODE_FAIL", at_fault=failed)
    row = replace(attempt(outcome=None), reason=None)
    running = replace(run, phase=Phase.RUNNING, handle={"backend": "fake"})
    steps = decide(Facts(run=running, attempts=[row], observation=seen, confirmed_gone=True))
    closed = [one for step in steps for one in getattr(step, "attempts", ())]
    assert {mark.host for one in closed for mark in closing_marks(run, one)} == expected
