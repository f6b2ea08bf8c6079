"""What `gangline checkpoints` tells: the records of the ranks and the folder, as one list."""

import shutil
from pathlib import Path

import pytest

from gangline.rundir.commits import commit, open_folder


@pytest.fixture
def run(plant):
    run_id = plant.submit()
    plant.tick()
    plant.leader(run_id).begin()
    plant.tick()
    return run_id


@pytest.fixture
def save(plant, run):
    """Saves a checkpoint as rank 0 does; returns its folder."""

    def act(step, *, recorded=True, committed=True, owner=run, root=None):
        root = root or plant.home.run(run).checkpoints
        root.mkdir(parents=True, exist_ok=True)
        folder = open_folder(root, step, 0, owner={"run_id": owner})
        (folder / "model.pt").write_bytes(b"12345")
        if committed:
            commit(folder, step=step, attempt=0, world_size=1, run_id=owner)
        if recorded:
            leader = plant.leader(run)
            leader.attempt = 0
            leader.line(0, k="c", s=step, path=str(folder), bytes=5, files=1, seconds=0.5)
            plant.clock.advance(2)
            plant.tick()
        return folder

    return act


def listed(plant, run):
    keys = ("step", "state", "why", "latest")
    return [tuple(view[key] for key in keys) for view in plant.commands.checkpoints(run)]


def test_a_checkpoint_whose_record_was_cut_off_is_listed_and_is_what_resume_takes(plant, run, save):
    save(1)
    save(2, recorded=False)
    assert listed(plant, run) == [(1, "complete", "", False), (2, "complete", "", True)]
    view = plant.commands.checkpoints(run)[1]
    assert (view["size_bytes"], view["num_files"], view["duration_s"]) == (5, 1, None)
    assert view["time"] > 0


@pytest.mark.parametrize(
    ("harm", "state", "why"),
    [
        (lambda folder: (folder / "model.pt").unlink(), "damaged", "`model.pt` is missing"),
        (lambda folder: (folder / "model.pt").write_bytes(b"1"), "damaged", "`model.pt` has 1 bytes, 5 were saved"),
        (lambda folder: (folder / "manifest.json").write_text("{"), "damaged", "its manifest cannot be read"),
        (lambda folder: (folder / "manifest.json").unlink(), "incomplete", "it has no manifest"),
        (shutil.rmtree, "removed", "its folder is gone"),
    ],
)
def test_what_became_of_a_recorded_one_is_said(plant, run, save, harm, state, why):
    save(1)
    harm(save(2))
    first, second = listed(plant, run)
    assert first == (1, "complete", "", True)
    assert second[:2] == (2, state)
    assert why in second[2]


def test_retention_and_unfinished_saves(plant, run, save):
    folder = save(1)
    plant.leader(run).line(0, k="r", s=1, path=str(folder))
    shutil.rmtree(folder)
    save(2)
    save(3, recorded=False, committed=False)
    plant.clock.advance(2)
    plant.tick()
    states = [(step, state, latest) for step, state, _, latest in listed(plant, run)]
    assert states == [(1, "removed", False), (2, "complete", True), (3, "incomplete", False)]


@pytest.mark.parametrize(("resume", "latest"), [("auto", (9, "saved by run other", True)), ("never", (1, "", True))])
def test_of_a_shared_folder_only_what_resume_would_take_is_shown_of_others(plant, tmp_path, save, resume, latest):
    shared = tmp_path / "shared"
    mine = plant.submit(key="shared", path=str(shared), resume=resume)
    save(1, recorded=False, owner=mine, root=shared)
    save(8, recorded=False, owner="other", root=shared)
    save(9, recorded=False, owner="other", root=shared)
    save(7, recorded=False, committed=False, owner="other", root=shared)
    found = [(view["step"], view["why"], view["latest"]) for view in plant.commands.checkpoints(mine)]
    assert latest in found
    assert [step for step, *_ in found] == ([1, 9] if resume == "auto" else [1])


def test_a_link_on_the_way_makes_no_second_one(plant, tmp_path):
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    link.symlink_to(real)
    run = plant.submit(key="linked", path=str(link))
    folder = open_folder(real, 1, 0, owner={})
    (folder / "x").write_bytes(b"1")
    commit(folder, step=1, attempt=0, world_size=1, run_id=run)
    plant.tick()
    leader = plant.leader(run)
    leader.begin()
    leader.line(0, k="c", s=1, path=str(folder), bytes=1, files=1, seconds=0.5)
    plant.tick()
    assert listed(plant, run) == [(1, "complete", "", True)]


def test_a_folder_that_cannot_be_read_is_said(plant, run, save, monkeypatch):
    save(1)

    def refuse(_path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refuse)
    assert listed(plant, run) == [(1, "damaged", "the checkpoint folder cannot be read (Permission denied)", False)]
