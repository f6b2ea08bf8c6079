"""Where attempts start once a person has chosen a checkpoint, and that a debugger keeps its gang."""

from __future__ import annotations

from pathlib import Path

from gangline.agent.attempt import Attempt, RankRecord
from gangline.agent.launchspec import Shape
from gangline.agent.storage import resolve_resume
from gangline.domain.spec import CheckpointPolicy, ResumeMode
from gangline.rundir.checkpoints import find_checkpoints
from gangline.rundir.commits import commit, open_folder, retain

RUN = "llama-7k3q"


def save(root: Path, step: int, attempt: int, run_id: str = RUN) -> Path:
    folder = open_folder(root, step, attempt, owner={"run_id": run_id, "numbered_by_platform": True})
    (folder / "model.pt").write_bytes(b"weights")
    commit(folder, step=step, attempt=attempt, world_size=2, run_id=run_id)
    return folder


def launch(make_launch, root: Path, start: Path, **policy):
    checkpoint = CheckpointPolicy(path=str(root), start_from=str(start), **policy)
    return make_launch(checkpoint=checkpoint, branch_attempt=1)


def test_the_chosen_checkpoint_wins_over_a_newer_one_until_the_branch_has_saved(make_launch, tmp_path):
    chosen = save(tmp_path, 200, 0)
    save(tmp_path, 300, 0)
    told = launch(make_launch, tmp_path, chosen)
    assert resolve_resume(told, 1).path == str(chosen)
    assert resolve_resume(told, 2).step == 200  # attempt 1 died before it saved anything
    saved = save(tmp_path, 210, 1)
    assert resolve_resume(told, 2).path == str(saved)
    assert resolve_resume(told, 3).step == 210  # and never the 300 of the branch that was left


def test_of_what_the_branch_has_saved_only_what_is_complete_counts(make_launch, tmp_path):
    chosen, torn = save(tmp_path, 200, 0), save(tmp_path, 220, 1)
    (torn / "model.pt").write_bytes(b"")
    resume = resolve_resume(launch(make_launch, tmp_path, chosen), 2)
    assert resume.step == 200
    assert "0 bytes" in resume.notes[0]


def test_a_checkpoint_of_another_run_is_only_read(make_launch, tmp_path):
    chosen = save(tmp_path / "other", 200, 0, run_id="other")
    save(tmp_path / "mine", 250, 4, run_id="third")
    resume = resolve_resume(launch(make_launch, tmp_path / "mine", chosen, resume=ResumeMode.NEVER), 0)
    assert (resume.path, resume.step) == (str(chosen), 200)


def test_a_chosen_checkpoint_that_is_gone_refuses_the_attempt(make_launch, tmp_path):
    chosen = save(tmp_path, 200, 0)
    (chosen / "manifest.json").unlink()
    resume = resolve_resume(launch(make_launch, tmp_path, chosen), 1)
    assert resume.path == ""
    assert "cannot be used: it has no manifest" in resume.refused


def test_retention_counts_what_the_branch_left_behind_as_older(tmp_path):
    for step, attempt in ((200, 0), (300, 0), (210, 1), (220, 1)):
        save(tmp_path, step, attempt)
    retain(tmp_path, keep_last=2, run_id=RUN, attempt=1, branch_attempt=1)
    assert [found.step for found in find_checkpoints(tmp_path)] == [210, 220]


def test_a_failure_ends_the_attempt_unless_another_rank_is_being_debugged():
    attempt = Attempt(number=0, launch=0, started=0.0, shape=Shape(nodes=(0,), procs_per_node=2))
    attempt.ranks = {rank: RankRecord(rank=rank, node=0, host="h") for rank in (0, 1)}
    assert not attempt.must_end(None)
    attempt.ranks[1].ended, attempt.ranks[1].exit_code = 5.0, 1
    assert attempt.must_end(None)
    assert attempt.must_end(1)
    assert not attempt.must_end(0)
    attempt.ranks[0].ended, attempt.ranks[0].exit_code = 9.0, 0
    assert attempt.must_end(0)
