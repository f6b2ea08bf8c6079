"""A disk that takes nothing more, played by /dev/full, which every write to fails on."""

import pytest

pytestmark = pytest.mark.integration

_FULL_NEXT = """
import os, pathlib, sys, time
folder = pathlib.Path(os.environ["GANGLINE_RUN_DIR"], "attempts", "1", "node-%03d")
if os.environ["GANGLINE_ATTEMPT"] == "0":
    if os.environ["RANK"] == "0":
        folder.mkdir(parents=True)
        (folder / "events.jsonl").symlink_to("/dev/full")
        sys.exit(1)
    time.sleep(600)
"""
"""Fails once, and leaves a full disk to the journal that one node writes in the attempt after."""


def run_into_full_disk(gang, then: str, *, node: int = 0, **keys):
    gang.script(_FULL_NEXT % node + then)
    restarts = {"max_restarts": 1, "max_infrastructure_restarts": 0, "backoff_s": 0.05, "max_backoff_s": 1.0}
    gang.run_to_end(restarts=restarts, procs_per_node=1, **keys)
    return gang.result(1)


def test_a_journal_that_takes_nothing_ends_the_attempt_as_storage(gang):
    result = run_into_full_disk(gang, "time.sleep(600)\n")
    assert (result["outcome"], result["reason"], result["next"]) == ("failed", "storage", "end")
    assert str(gang.attempt(1).events(0)) in result["message"]
    assert "No space left" in result["message"]
    assert "MiB are free" in result["message"]
    assert result["exit_code"] == 74
    assert not gang.left_behind()


def test_ranks_that_succeed_beside_a_full_journal_have_succeeded(gang):
    assert run_into_full_disk(gang, "print('done')\n")["outcome"] == "succeeded"


def test_a_follower_tells_the_leader_of_its_full_disk(gang):
    result = run_into_full_disk(gang, "time.sleep(600)\n", node=1, nodes=2)
    assert result["reason"] == "storage"
    assert result["message"].startswith("Node 1: The journal ")
