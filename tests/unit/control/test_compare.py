"""What the server finds that differs between runs, and between the workers of one; what journals add to a history."""

from __future__ import annotations

import pytest

from gangline.control.compare import MOST_RUNS, median_step_s
from gangline.domain.errors import InvalidRequest, NotFound
from gangline.rundir.files import write_json

ENVIRONMENT = {"version": 2, "time": 1.0, "host": "h", "kernel": "5.1", "python": {"packages": {"torch": "2.1"}}}


def describe(plant, run, node, **changes):
    path = plant.home.run(run).attempt(0).environment(node)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {**ENVIRONMENT, **changes})


def begin(plant, run):
    plant.tick()
    leader = plant.leader(run)
    leader.begin()
    plant.tick()
    return leader


def finish(plant, run, leader, outcome="succeeded", **keys):
    leader.end(outcome, **keys)
    plant.tick()
    plant.backend.kill(run)
    plant.tick(3)


def values(rows):
    return {row["key"]: row["values"] for row in rows}


def history(plant, run, kind):
    return [event for event in plant.store.events(run) if event.kind == kind]


def test_runs_are_compared_by_spec_environment_metrics_and_how_they_went(plant):
    first = plant.submit(key="1", args=("1",))
    leader = begin(plant, first)
    describe(plant, first, 0)
    for step, loss in enumerate((3.0, 1.0, 2.0)):
        leader.log({"loss": loss}, step=step)
    finish(plant, first, leader)
    second = plant.submit(key="2", args=("2",))
    leader = begin(plant, second)
    describe(plant, second, 0, kernel="6.1", time=9.0, host="i")
    finish(plant, second, leader, "failed")
    found = plant.commands.compare([first, second], code=False)
    assert [run["id"] for run in found["runs"]] == [first, second]
    assert values(found["spec"]) == {"args": [["1"], ["2"]]}
    assert values(found["environment"])["kernel"] == ["5.1", "6.1"]
    assert not {"time", "version"} & values(found["environment"]).keys()
    facts = values(found["facts"])
    assert facts["phase"] == ["succeeded", "failed"]
    assert facts["attempts"] == [["succeeded"], ["failed (user_error)"]]
    assert [one["name"] for one in found["metrics"]] == ["loss"]
    assert found["metrics"][0]["values"] == [{"last": 2.0, "min": 1.0, "max": 3.0, "count": 3}, None]


def test_code_that_is_not_stored_is_said_beside_what_is_known(plant):
    runs = [plant.submit(key=str(number)) for number in range(2)]
    found = plant.commands.compare(runs, code=True)
    assert "no snapshot" in found["code"][0]["fault"]
    assert values(found["facts"])["phase"] == ["queued", "queued"]


@pytest.mark.parametrize("ids", [["a"], ["a", "a"], [str(number) for number in range(MOST_RUNS + 1)]])
def test_too_few_too_many_or_the_same_run_twice_is_refused(plant, ids):
    run = plant.submit()
    names = [run] if ids == ["a"] else [run, run] if ids == ["a", "a"] else ids
    with pytest.raises((InvalidRequest, NotFound)):
        plant.commands.compare(names, code=False)


def test_workers_are_compared_node_by_node_and_rank_by_rank(plant):
    run = plant.submit(nodes=2, procs_per_node=1)
    leader = begin(plant, run)
    describe(plant, run, 0)
    describe(plant, run, 1, kernel="6.1")
    for step in range(4):
        leader.line(0, k="m", s=step, v={"loss": 1.0}, t=step * 0.1)
        leader.line(1, k="p", s=step, n=None, t=step * 0.5)
    leader.line(1, k="m", s=9, v={}, a=7)
    with plant.home.run(run).metrics(1).open("a") as file:
        file.write("no JSON\n[1]\n")
    ranks = [
        {"rank": 0, "node": 0, "exit_code": 0, "ended_by": "self", "started": 1.0, "ended": 3.5, "peak_rss_bytes": 5},
        {"rank": 1, "node": 1, "signal": 9, "ended_by": "self", "started": 1.0, "ended": None},
    ]
    finish(plant, run, leader, "failed", ranks=ranks)
    found = plant.commands.compare_ranks(run, attempt=None)
    assert (found["attempt"], found["nodes"], found["missing"]) == (0, [0, 1], [])
    assert values(found["environment"])["kernel"] == ["5.1", "6.1"]
    first, second = found["ranks"]
    assert (first["exit_code"], first["duration_s"], first["peak_rss_bytes"], first["last_step"]) == (0, 2.5, 5, 3)
    assert (second["signal"], second["duration_s"], second["last_step"]) == (9, None, 3)
    assert first["step_s"] == pytest.approx(0.1)
    assert second["step_s"] == pytest.approx(0.5)


def test_nodes_that_described_nothing_and_attempts_that_are_not_there(plant):
    run = plant.submit(nodes=2, procs_per_node=1)
    with pytest.raises(NotFound, match="none yet"):
        plant.commands.compare_ranks(run, attempt=None)
    begin(plant, run)
    describe(plant, run, 0)
    found = plant.commands.compare_ranks(run, attempt=0)
    assert (found["nodes"], found["missing"], found["environment"]) == ([0], [1], [])
    with pytest.raises(NotFound, match="Attempts: 0"):
        plant.commands.compare_ranks(run, attempt=4)


def test_the_median_of_steps_allows_gaps_and_repeats():
    assert median_step_s([(0, 0.0)]) is None
    assert median_step_s([(0, 0.0), (0, 9.0)]) is None
    assert median_step_s([(0, 0.0), (10, 1.0), (11, 1.3), (12, 1.5)]) == pytest.approx(0.2)


def test_what_a_leader_says_of_nodes_and_slow_ranks_is_told_once_in_the_history(plant):
    run = plant.submit(nodes=2, procs_per_node=1)
    leader = begin(plant, run)
    leader.journal("preflight", text="2 nodes are fit.")
    leader.journal("straggler", text="Rank 1 on node 1 (h) takes 3.0 x the median.", rank=1, on=True, ratio=3.0)
    leader.journal("straggler", rank=1, on=False)
    plant.tick(2)
    plant.restart_server()
    plant.tick(2)
    assert [event.message for event in history(plant, run, "preflight")] == ["2 nodes are fit."]
    told = history(plant, run, "straggler")
    assert [event.message for event in told] == ["Rank 1 on node 1 (h) takes 3.0 x the median."]
    assert {key: told[0].data[key] for key in ("attempt", "rank", "on", "ratio")} == {
        "attempt": 0,
        "rank": 1,
        "on": True,
        "ratio": 3.0,
    }


def test_a_smaller_attempt_of_an_elastic_gang_is_known_by_its_size(plant):
    run = plant.submit(nodes=3, procs_per_node=1)
    leader = begin(plant, run)
    assert plant.commands.detail(run)["attempt_nodes"] == 3
    leader.end("failed", next_step="restart")
    leader.attempt += 1
    leader.journal("attempt_started", attempt=1, launch=0, nodes=[0, 2], resume=None, resume_step=None)
    plant.tick(2)
    detail = plant.commands.detail(run)
    assert (detail["attempt"], detail["attempt_nodes"], detail["nodes"]) == (1, 2, 3)
    assert [node["node"] for node in detail["attempts"][1]["nodes"]] == [0, 2]
    leader.attempt = 0
    leader.journal("warning", text="late")
    plant.tick(2)
    detail = plant.commands.detail(run)
    assert (detail["attempt"], detail["attempt_nodes"]) == (1, 2)
