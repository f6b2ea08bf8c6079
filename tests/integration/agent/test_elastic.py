"""Gangs that go on with fewer nodes, and gangs that fail in the same way each time."""

from __future__ import annotations

from pathlib import Path

from tests.integration.agent.conftest import Gang, kill

TELL_SIZE = """
    import os, pathlib, sys, time

    names = ("RANK", "WORLD_SIZE", "NODE_RANK", "NNODES", "GANGLINE_NODE")
    print({name: os.environ[name] for name in names}, flush=True)
    go_on = pathlib.Path(os.environ["GANGLINE_RUN_DIR"], "go-on")
    while not go_on.exists():
        time.sleep(0.02)
"""
RESTARTS = {"max_restarts": 0, "max_infrastructure_restarts": 2, "backoff_s": 0.05, "max_backoff_s": 1.0}


def places(gang: Gang, attempt: int, ranks: int) -> list[str]:
    return [gang.log(rank, attempt).strip() for rank in range(ranks)]


def test_a_gang_that_may_be_smaller_goes_on_without_a_lost_node(gang: Gang) -> None:
    gang.script(TELL_SIZE)
    gang.start(nodes=3, min_nodes=2, procs_per_node=1, restarts=RESTARTS)
    for rank in range(3):
        gang.until_said("WORLD_SIZE", rank=rank)
    kill(gang.agents[1].pid)
    for rank in range(2):
        gang.until_said("WORLD_SIZE", rank=rank, attempt=1)
    Path(gang.run.path, "go-on").touch()
    codes = gang.wait()
    assert (codes[0], codes[2]) == (0, 0)
    first, second = gang.result(0), gang.result(1)
    assert (first["reason"], first["next"]) == ("node_lost", "restart")
    assert first["restart_message"] == "restart 1 of 2 (infrastructure), with 2 of 3 nodes"
    assert second["outcome"] == "succeeded"
    assert [rank["node"] for rank in second["ranks"]] == [0, 2]
    told = places(gang, 1, 2)
    assert "'RANK': '1', 'WORLD_SIZE': '2', 'NODE_RANK': '1', 'NNODES': '2', 'GANGLINE_NODE': '2'" in told[1]


def test_a_gang_of_fixed_size_is_made_anew(gang: Gang) -> None:
    gang.script(TELL_SIZE)
    gang.start(nodes=2, procs_per_node=1, restarts=RESTARTS)
    gang.until_said("WORLD_SIZE", rank=1)
    kill(gang.agents[1].pid)
    gang.wait()
    assert gang.result(0)["next"] == "relaunch"


def test_a_gang_below_its_smallest_size_is_made_anew(gang: Gang) -> None:
    gang.script(TELL_SIZE)
    gang.start(nodes=3, min_nodes=2, procs_per_node=1, restarts=RESTARTS)
    for rank in range(3):
        gang.until_said("WORLD_SIZE", rank=rank)
    kill(gang.agents[1].pid)
    for rank in range(2):
        gang.until_said("WORLD_SIZE", rank=rank, attempt=1)
    kill(gang.agents[2].pid)
    gang.wait()
    assert (gang.result(1)["reason"], gang.result(1)["next"]) == ("node_lost", "relaunch")


def test_nodes_that_do_not_come_are_left_out(gang: Gang) -> None:
    gang.script(TELL_SIZE)
    Path(gang.run.path, "go-on").touch()
    gang.write_launch(nodes=3, min_nodes=2, procs_per_node=1, stop={"start_timeout_s": 1.0, "grace_s": 5.0})
    for node in (0, 2):
        gang.start_agent(node)
    gang.wait()
    result = gang.result()
    assert result["outcome"] == "succeeded"
    assert [rank["node"] for rank in result["ranks"]] == [0, 2]


def test_a_failure_that_repeats_ends_the_run_early(gang: Gang) -> None:
    gang.script("""
        import gangline

        for step in range(5):
            gangline.progress(step)
        raise ValueError(f"step {step} of attempt {gangline.current().attempt}")
    """)
    limits = {**RESTARTS, "max_restarts": 50, "same_failure_limit": 3}
    result = gang.run_to_end(procs_per_node=1, restarts=limits)
    assert (result["attempt"], result["next"]) == (2, "end")
    told = "no restart: it fails the same way each time (3 times at step 4; --same-failure-limit)"
    assert result["restart_message"] == told
