from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from gangline.rundir.checkpoints import (
    LATEST,
    MANIFEST,
    find_checkpoints,
    folder_name,
    judge,
    judge_folder,
    newest_complete,
    parse_folder_name,
    render_choice,
)
from gangline.rundir.commits import (
    CommitRefused,
    commit,
    list_saves,
    move_latest,
    next_attempt,
    notes_folder,
    open_folder,
    retain,
)

OWNER = {"run_id": "run", "numbered_by_platform": True}


def save(root: Path, step: int, attempt: int = 0, run_id: str = "run") -> Path:
    folder = open_folder(root, step, attempt, owner={**OWNER, "run_id": run_id})
    (folder / "model.pt").write_bytes(b"weights")
    (folder / "shards").mkdir()
    (folder / "shards" / "0.bin").write_bytes(b"shard")
    commit(folder, step=step, attempt=attempt, world_size=2, run_id=run_id)
    move_latest(folder)
    return folder


def steps(root: Path) -> list[int]:
    return [found.step for found in find_checkpoints(root)]


def test_an_unfinished_save_shows_what_lies_in_it_and_who_had_not_finished(tmp_path: Path) -> None:
    folder = open_folder(tmp_path, 40, 0, owner=OWNER)
    (folder / "model.pt").write_bytes(b"weights")
    (folder / "shards").mkdir()
    (folder / "shards" / "0.bin.tmp").write_bytes(b"12345")
    assert judge(folder).why_not == "it has no manifest: the save was not finished"
    for name in ("rank-00001.saving", "rank-00001.done", "rank-00002.saving", "rank-00003.saving", "rank-00003.failed"):
        (notes_folder(folder) / name).touch()
    found = judge(folder)
    assert (found.num_files, found.size_bytes, found.complete, found.committed) == (2, 12, False, False)
    assert found.why_not.endswith("not finished, rank 3 failed, rank 2 had not finished writing")
    (folder / "manifest.json").write_text("{")
    found = judge(folder)
    assert (found.num_files, found.size_bytes, found.committed) == (2, 12, True)


def test_names() -> None:
    assert folder_name(100, 2) == "step-0000000100.attempt-002"
    assert parse_folder_name("step-0000000100.attempt-002.1") == (100, 2, 1)
    assert parse_folder_name("step-12345678901.attempt-1000") == (12345678901, 1000, 0)
    for other in ("step-1", "latest", "step-0000000100.attempt-002.tmp", "step-x.attempt-0", "step-²1.attempt-0"):
        assert parse_folder_name(other) is None


def test_a_committed_save_is_found_with_all_that_is_known_of_it(tmp_path: Path) -> None:
    folder = save(tmp_path, 100, 2)
    found, skipped = newest_complete(tmp_path, checksums=True)
    assert found == judge(folder)
    assert found is not None
    assert (found.step, found.attempt, found.world_size, found.run_id) == (100, 2, 2, "run")
    assert (found.num_files, found.size_bytes, skipped) == (2, 12, [])
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["files"]["shards/0.bin"]["size"] == 5
    assert len(manifest["files"]["model.pt"]["crc32"]) == 8
    assert (tmp_path / "latest").readlink() == Path(folder.name)
    assert list_saves(tmp_path) == []


def test_without_any_checkpoint_training_starts_fresh(tmp_path: Path) -> None:
    """C5: an empty and a missing folder."""
    for root in (tmp_path, tmp_path / "missing"):
        assert newest_complete(root) == (None, [])
        assert find_checkpoints(root) == []
        assert next_attempt(root) == 0
    assert render_choice("/ckpt", None, []) == ["no complete checkpoint in /ckpt, starting fresh"]


def test_half_written_checkpoints_are_passed_over_and_named(tmp_path: Path) -> None:
    """C1: 10 is complete, 20 has a truncated file, 30 an empty shard and a .tmp file, 40 no manifest."""
    for step in (10, 20, 30):
        save(tmp_path, step)
    (tmp_path / folder_name(20, 0) / "model.pt").write_bytes(b"wei")
    (tmp_path / folder_name(30, 0) / "shards" / "0.bin").write_bytes(b"")
    (tmp_path / folder_name(30, 0) / "model.pt.tmp").write_bytes(b"x")
    (open_folder(tmp_path, 40, 0, owner=OWNER) / "model.pt").write_bytes(b"weights")
    found, skipped = newest_complete(tmp_path)
    assert found is not None
    assert found.step == 10
    assert [one.step for one in skipped] == [40, 30, 20]
    lines = render_choice(tmp_path, found, skipped)
    assert "no manifest" in lines[0]
    assert "`shards/0.bin` has 0 bytes, 5 were saved" in lines[1]
    assert "`model.pt` has 3 bytes, 7 were saved" in lines[2]
    assert lines[3].startswith("resuming from ")


@pytest.mark.parametrize(
    ("damage", "word"),
    [
        (lambda folder: (folder / "model.pt").unlink(), "missing"),
        (lambda folder: (folder / "manifest.json").write_text("{"), "cannot be read"),
        (lambda folder: (folder / "manifest.json").write_bytes(b""), "cannot be read"),
        (lambda folder: (folder / "manifest.json").write_text('{"files": {}}'), "no files"),
        (lambda folder: (folder / "manifest.json").write_text('{"files": {"a": 1}}'), "how large"),
        (lambda folder: (folder / "model.pt.tmp").touch(), "still writing"),
        (lambda folder: (folder / "manifest.json").unlink(), "no manifest"),
    ],
)
def test_damage_is_seen_and_said(tmp_path: Path, damage: object, word: str) -> None:
    folder = save(tmp_path, 1)
    damage(folder)  # type: ignore[operator]
    found = judge(folder)
    assert not found.complete
    assert word in found.why_not


def test_changed_bytes_are_seen_when_checksums_are_asked_for(tmp_path: Path) -> None:
    folder = save(tmp_path, 1)
    (folder / "model.pt").write_bytes(b"WEIGHTS")
    assert judge(folder).complete
    assert "checksum" in judge(folder, checksums=True).why_not


def test_the_manifest_comes_last_and_only_when_all_else_is_on_the_disk(tmp_path: Path, monkeypatch: Any) -> None:
    """C1: what has a manifest loads, also after a power cut."""
    folder = open_folder(tmp_path, 10, 0, owner=OWNER)
    for name in ("model.pt", "shards/0.bin"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"weights")
    synced: list[str] = []

    def fsync(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        assert path in {folder, tmp_path} or not (folder / MANIFEST).exists(), f"{path} after the manifest"
        synced.append("manifest" if path.name.startswith(f".{MANIFEST}.") else str(path.relative_to(tmp_path)))

    monkeypatch.setattr(os, "fsync", fsync)
    commit(folder, step=10, attempt=0, world_size=2, run_id="run")
    own = folder.name
    contents = {f"{own}/model.pt", f"{own}/shards/0.bin", f"{own}/shards", own}
    assert set(synced[: len(contents)]) == contents
    assert synced[len(contents) :] == ["manifest", own, "."]


def test_a_save_that_cannot_be_made_durable_stays_incomplete(tmp_path: Path, monkeypatch: Any) -> None:
    folder = open_folder(tmp_path, 10, 0, owner=OWNER)
    (folder / "model.pt").write_bytes(b"weights")

    def fail(_descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="Input/output"):
        commit(folder, step=10, attempt=0, world_size=2, run_id="run")
    assert not judge_folder(folder).committed


def test_large_files_are_recorded_by_size_alone(tmp_path: Path) -> None:
    folder = open_folder(tmp_path, 1, 0, owner=OWNER)
    (folder / "big").write_bytes(b"x" * 100)
    commit(folder, step=1, attempt=0, world_size=1, crc_limit_bytes=99)
    assert json.loads((folder / "manifest.json").read_text())["files"]["big"] == {"size": 100, "crc32": None}


def test_an_empty_save_and_one_with_a_manifest_of_its_own_are_refused(tmp_path: Path) -> None:
    folder = open_folder(tmp_path, 1, 0, owner=OWNER)
    with pytest.raises(CommitRefused, match="no file"):
        commit(folder, step=1, attempt=0, world_size=1)
    (folder / "x").touch()
    (folder / "manifest.json").write_text("mine")
    with pytest.raises(CommitRefused, match=r"manifest\.json"):
        commit(folder, step=1, attempt=0, world_size=1)
    assert (folder / "manifest.json").read_text() == "mine"


def test_numbers_are_compared_as_numbers(tmp_path: Path) -> None:
    """C3: 9800 to 10200 by 100, the last three stay."""
    for step in range(9800, 10201, 100):
        save(tmp_path, step)
        retain(tmp_path, keep_last=3, run_id="run", attempt=0)
    assert steps(tmp_path) == [10000, 10100, 10200]
    for wide in (9_999_999_999, 10_000_000_000):
        save(tmp_path, wide)
    found, _ = newest_complete(tmp_path)
    assert found is not None
    assert found.step == 10_000_000_000


def test_retention_protects_what_is_in_use(tmp_path: Path) -> None:
    resumed = save(tmp_path, 10)
    for step in (20, 30, 40):
        save(tmp_path, step)
    removed = retain(tmp_path, keep_last=1, run_id="run", attempt=1, protect=[resumed])
    assert [one.step for one in removed] == [20, 30]
    assert steps(tmp_path) == [10, 40]
    assert retain(tmp_path, keep_last=0, run_id="run", attempt=1) == []


def test_what_latest_points_to_stays_even_below_others(tmp_path: Path) -> None:
    save(tmp_path, 500)
    save(tmp_path, 100, attempt=1)
    retain(tmp_path, keep_last=1, run_id="run", attempt=1)
    assert steps(tmp_path) == [100, 500]


def test_latest_is_there_at_every_moment(tmp_path: Path) -> None:
    folders = [save(tmp_path, 10), save(tmp_path, 20)]
    done = threading.Event()
    missing: list[OSError] = []

    def watch() -> None:
        while not done.is_set():
            try:
                (tmp_path / LATEST).readlink()
            except OSError as error:  # noqa: PERF203 - each look counts
                missing.append(error)

    watcher = threading.Thread(target=watch)
    watcher.start()
    for number in range(500):
        move_latest(folders[number % 2])
    done.set()
    watcher.join()
    assert missing == []


def test_another_runs_checkpoints_stay_and_can_be_left_out(tmp_path: Path) -> None:
    save(tmp_path, 900, run_id="other")
    for step in (10, 20):
        save(tmp_path, step)
    retain(tmp_path, keep_last=1, run_id="run", attempt=0)
    assert steps(tmp_path) == [20, 900]
    found, skipped = newest_complete(tmp_path, run_id="run")
    assert found is not None
    assert (found.step, skipped) == (20, [])


def test_another_runs_checkpoints_do_not_count_towards_those_that_are_kept(tmp_path: Path) -> None:
    for step in (10, 20):
        save(tmp_path, step)
    for step in (30, 40, 50):
        save(tmp_path, step, run_id="other")
    assert retain(tmp_path, keep_last=2, run_id="run", attempt=0) == []
    assert steps(tmp_path) == [10, 20, 30, 40, 50]
    assert [one.step for one in retain(tmp_path, keep_last=1, run_id="run", attempt=0)] == [10]


def test_after_a_branch_what_older_attempts_saved_goes_first_whatever_its_step(tmp_path: Path) -> None:
    for step in (80, 90):
        save(tmp_path, step, attempt=0)
    for step in (20, 30):
        save(tmp_path, step, attempt=1)
    removed = retain(tmp_path, keep_last=2, run_id="run", attempt=1, branch_attempt=1)
    assert [one.step for one in removed] == [80, 90]
    assert steps(tmp_path) == [20, 30]


def test_a_damaged_newest_does_not_count_towards_those_that_are_kept(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        save(tmp_path, step)
    (tmp_path / folder_name(30, 0) / "model.pt").write_bytes(b"")
    retain(tmp_path, keep_last=1, run_id="run", attempt=0)
    found, _ = newest_complete(tmp_path)
    assert found is not None
    assert found.step == 20


def test_unfinished_folders_of_older_attempts_go_once_a_newer_checkpoint_exists(tmp_path: Path) -> None:
    left = open_folder(tmp_path, 20, 0, owner=OWNER)
    (left / "half").touch()
    save(tmp_path, 10, attempt=1)
    retain(tmp_path, keep_last=3, run_id="run", attempt=1)
    assert left.exists()
    running = open_folder(tmp_path, 5, 1, owner=OWNER)
    foreign = open_folder(tmp_path, 6, 0, owner={**OWNER, "run_id": "other"})
    save(tmp_path, 20, attempt=1)
    retain(tmp_path, keep_last=3, run_id="run", attempt=1)
    assert not left.exists()
    assert running.exists()
    assert foreign.exists()


def test_without_a_platform_an_unfinished_folder_goes_when_its_process_is_gone(tmp_path: Path) -> None:
    code = (
        "import sys; from gangline.rundir.commits import open_folder; "
        "open_folder(sys.argv[1], 1, 0, owner={'run_id': 'local'})"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    alive = open_folder(tmp_path, 2, 0, owner={"run_id": "local"})
    save(tmp_path, 10, attempt=1, run_id="local")
    retain(tmp_path, keep_last=3, run_id="local", attempt=1)
    assert steps(tmp_path) == [2, 10]
    assert alive.exists()


def test_no_two_saves_share_a_folder(tmp_path: Path) -> None:
    """C4, in its widest form: same step, same attempt, another run in the same path, leftovers."""
    first = open_folder(tmp_path, 20, 0, owner=OWNER)
    second = open_folder(tmp_path, 20, 0, owner={**OWNER, "run_id": "other"})
    assert {first.name, second.name} == {folder_name(20, 0), folder_name(20, 0, 1)}
    notes_folder(tmp_path / folder_name(20, 0, 2)).mkdir()  # somebody was killed between the two mkdirs
    assert open_folder(tmp_path, 20, 0, owner=OWNER).name == folder_name(20, 0, 3)


def test_a_removal_that_was_cut_off_is_finished_by_the_next_retention(tmp_path: Path) -> None:
    cut = tmp_path / ".removed" / (folder_name(1, 0) + ".1")
    cut.mkdir(parents=True)
    (cut / "big").touch()
    save(tmp_path, 2)
    retain(tmp_path, keep_last=1, run_id="run", attempt=0)
    assert not (tmp_path / ".removed").exists()


def test_an_attempt_without_a_platform_gets_a_number_of_its_own(tmp_path: Path) -> None:
    save(tmp_path, 100, attempt=4)
    open_folder(tmp_path, 1, 7, owner=OWNER)
    assert next_attempt(tmp_path) == 8
