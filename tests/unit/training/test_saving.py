from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

import gangline
from gangline.rundir.checkpoints import find_checkpoints
from gangline.rundir.commits import notes_folder, open_folder
from gangline.training import session
from gangline.training.context import parse_context
from gangline.training.gathering import Gathering, Patience, SaveKey, session_of
from gangline.training.saving import Saver

AsRank = Callable[..., Path]
AT_ONCE = Patience(notice_s=0.0, entry_s=0.02, known_absent_s=0.01, save_s=0.02)


def records(run_dir: Path, kind: str, rank: int = 0) -> list[dict[str, object]]:
    path = run_dir / "metrics" / f"rank-{rank:05d}.jsonl"
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return [record for record in found if record["k"] == kind]


def save(step: int, text: str = "weights") -> Path:
    with gangline.checkpoint(step) as path:
        (path / "model.pt").write_text(text)
    return path


def test_alone_a_script_saves_and_finds_its_checkpoints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gangline.latest_checkpoint() is None
    assert "starting fresh" in capsys.readouterr().err
    save(100)
    found = gangline.latest_checkpoint()
    assert found is not None
    assert found.step == 100
    assert found.path == tmp_path / "checkpoints" / "step-0000000100.attempt-000"
    assert Path(found) / "model.pt" == found.path / "model.pt"
    assert (tmp_path / "checkpoints" / "latest" / "model.pt").read_text() == "weights"
    assert sorted([path.name for path in tmp_path.iterdir()]) == ["checkpoints"]


def test_a_second_script_does_not_mix_with_what_the_first_left(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), gangline.checkpoint(20) as path:  # noqa: PT012 - what the block does is the test
        (path / "rank-1.pt").write_text("old")
        raise KeyboardInterrupt
    save(10)
    session.forget()
    assert save(20).name == "step-0000000020.attempt-001"
    assert [path.name for path in (tmp_path / "checkpoints" / "step-0000000020.attempt-001").iterdir()] != []
    assert not (tmp_path / "checkpoints" / "step-0000000020.attempt-001" / "rank-1.pt").exists()


def test_the_checkpoint_that_a_script_started_from_is_not_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GANGLINE_KEEP_LAST", "1")
    save(10)
    session.forget()
    found = gangline.latest_checkpoint()
    assert found is not None
    save(20)
    save(30)
    assert found.path.exists()
    assert [one.step for one in find_checkpoints(tmp_path / "checkpoints")] == [10, 30]


def test_what_was_saved_and_removed_is_recorded(as_rank: AsRank) -> None:
    run_dir = as_rank(GANGLINE_KEEP_LAST="1")
    first = save(10)
    second = save(20)
    committed = records(run_dir, "c")
    assert [(one["s"], one["path"], one["bytes"], one["files"]) for one in committed] == [
        (10, str(first), 7, 1),
        (20, str(second), 7, 1),
    ]
    assert [(one["s"], one["path"]) for one in records(run_dir, "r")] == [(10, str(first))]
    assert [one["on"] for one in records(run_dir, "h")] == [True, False, True, False]
    manifest = json.loads((second / "manifest.json").read_text())
    assert (manifest["run_id"], manifest["attempt"], manifest["world_size"]) == ("llama-7k3q", 2, 1)


def test_a_second_save_of_a_step_gets_its_own_folder(as_rank: AsRank) -> None:
    as_rank()
    assert save(10).name == "step-0000000010.attempt-002"
    assert save(10).name == "step-0000000010.attempt-002.1"


def test_an_exception_goes_through_and_nothing_counts(as_rank: AsRank) -> None:
    run_dir = as_rank()
    with pytest.raises(ZeroDivisionError), gangline.checkpoint(10) as path:  # noqa: PT012 - what the block does is the test
        (path / "model.pt").write_text("half")
        raise ZeroDivisionError
    assert find_checkpoints(run_dir / "checkpoints") == []
    assert not (run_dir / "checkpoints" / "latest").exists()


def test_an_empty_save_does_not_count_and_is_said(as_rank: AsRank, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = as_rank()
    with gangline.checkpoint(10):
        pass
    assert "holds no file" in str(records(run_dir, "w")[0]["text"])
    assert "holds no file" in capsys.readouterr().err
    assert find_checkpoints(run_dir / "checkpoints") == []


@pytest.mark.parametrize("step", [-1, 1.5, "ten", None])
def test_a_step_has_to_be_a_whole_number(step: object) -> None:
    says = r"step .*(whole number, not (float|str|NoneType)|0 or more, not -1)"
    with pytest.raises((TypeError, ValueError), match=says):
        gangline.checkpoint(step)  # type: ignore[arg-type]


def test_a_folder_that_cannot_be_written_does_not_stop_training(as_rank: AsRank, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    run_dir = as_rank(GANGLINE_CHECKPOINT_DIR=str(tmp_path / "file" / "ckpt"))
    path = save(10)
    assert not path.exists()
    assert "cannot write" in str(records(run_dir, "w")[0]["text"])


def test_a_commit_that_fails_is_said_and_leaves_the_one_before(
    as_rank: AsRank, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = as_rank()
    save(10)

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("gangline.training.saving.commit", fail)
    save(20)
    assert "No space left" in str(records(run_dir, "w")[0]["text"])
    assert (run_dir / "checkpoints" / "latest").readlink() == Path("step-0000000010.attempt-002")


@pytest.mark.parametrize("broken", ["move_latest", "retain"])
def test_trouble_after_the_commit_is_said_and_the_checkpoint_counts(
    as_rank: AsRank, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    run_dir = as_rank()

    def fail(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(f"gangline.training.saving.{broken}", fail)
    assert find_checkpoints(save(10).parent)[0].complete
    assert "not permitted" in str(records(run_dir, "w")[0]["text"])


def test_under_gangline_the_resume_target_is_the_one_that_was_chosen(as_rank: AsRank, tmp_path: Path) -> None:
    as_rank()
    save(10)
    assert gangline.latest_checkpoint() is None
    as_rank(GANGLINE_RESUME=str(tmp_path / "step-0000000007.attempt-001"))
    found = gangline.latest_checkpoint()
    assert found is not None
    assert (found.step, found.path) == (7, tmp_path / "step-0000000007.attempt-001")
    (tmp_path / "latest").symlink_to("step-0000000007.attempt-001")
    as_rank(GANGLINE_RESUME=str(tmp_path / "latest"))
    found = gangline.latest_checkpoint()
    assert found is not None
    assert found.step == 7


def test_rank0_only_waits_for_nobody_and_others_write_to_nowhere(as_rank: AsRank) -> None:
    run_dir = as_rank(0, 4)
    with gangline.checkpoint(10, rank0_only=True) as path:
        (path / "model.pt").write_text("0")
    as_rank(3, 4)
    with gangline.checkpoint(10, rank0_only=True) as scratch:
        (scratch / "model.pt").write_text("3")
    assert not scratch.exists()
    found = find_checkpoints(run_dir / "checkpoints")
    assert [one.complete for one in found] == [True]
    assert (path / "model.pt").read_text() == "0"


def saver(run_dir: Path, rank: int, world_size: int = 4) -> Saver:
    env = {
        "RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "GANGLINE_RUN_ID": "llama-7k3q",
        "GANGLINE_RUN_DIR": str(run_dir),
        "GANGLINE_CHECKPOINT_DIR": str(run_dir / "checkpoints"),
    }
    return Saver(parse_context(env), patience=AT_ONCE)


def test_ranks_that_never_come_are_named_with_the_fix(as_rank: AsRank, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = as_rank(0, 4)
    lead = saver(run_dir, 0)
    for step in (10, 20):
        with lead.save(step, rank0_only=False) as path:
            (path / "model.pt").write_text("0")
    said = capsys.readouterr().err
    assert "ranks 1, 2, 3 to enter gangline.checkpoint(10)" in said
    assert "gangline.checkpoint(10, rank0_only=True)" in said
    assert [one.complete for one in find_checkpoints(run_dir / "checkpoints")] == [False, False]
    assert len(records(run_dir, "w")) == 2


def test_a_rank_that_enters_and_never_leaves_is_named(as_rank: AsRank) -> None:
    run_dir = as_rank(0, 2)
    with saver(run_dir, 0, 2).save(10, rank0_only=False) as path:
        (notes_folder(path) / "rank-00001.saving").touch()
        (path / "model.pt").write_text("0")
    assert "rank 1 did not finish saving" in str(records(run_dir, "w")[0]["text"])


def test_a_rank_that_fails_ends_the_wait_at_once(as_rank: AsRank) -> None:
    run_dir = as_rank(0, 2)
    with Saver(session.current()).save(
        10, rank0_only=False
    ) as path:  # the usual patience: this test would take minutes
        (notes_folder(path) / "rank-00001.failed").touch()
        (path / "model.pt").write_text("0")
    assert "rank 1 failed while saving" in str(records(run_dir, "w")[0]["text"])
    assert not path.exists()


def test_without_rank_0_a_rank_writes_to_nowhere_and_says_so(
    as_rank: AsRank, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = as_rank(3, 4)
    with saver(run_dir, 3).save(10, rank0_only=False) as scratch:
        (scratch / "model.pt").write_text("3")
    assert not scratch.exists()
    assert "waits for rank 0 to enter gangline.checkpoint(10)" in capsys.readouterr().err
    assert find_checkpoints(run_dir / "checkpoints") == []


def test_a_failing_rank_leaves_word(as_rank: AsRank) -> None:
    run_dir = as_rank(1, 2)
    lead = Gathering(parse_context({**os.environ, "RANK": "0"}), patience=AT_ONCE)
    folder = open_folder(run_dir / "checkpoints", 10, 2, owner=lead.owner(SaveKey(step=10, count=0)))
    with pytest.raises(ZeroDivisionError), gangline.checkpoint(10) as path:  # noqa: PT012 - what the block does is the test
        assert path == folder
        raise ZeroDivisionError
    assert lead.wait_for_others(folder, SaveKey(step=10, count=0)) == "rank 1 failed while saving"


def test_a_save_of_another_start_is_not_joined(as_rank: AsRank) -> None:
    run_dir = as_rank(1, 2)
    root = run_dir / "checkpoints"
    mine = Gathering(session.current(), patience=AT_ONCE)
    key = SaveKey(step=10, count=0)
    other = Gathering(parse_context({**os.environ, "GANGLINE_ATTEMPT": "1"}), patience=AT_ONCE)
    open_folder(root, 10, 1, owner=other.owner(key))
    open_folder(root, 10, 2, owner=mine.owner(SaveKey(step=10, count=1)))
    dead = open_folder(root, 10, 2, owner={**mine.owner(key), "pid": 2**22 + 1})
    assert mine.find_folder(key) is None
    assert dead.exists()
    living = open_folder(root, 10, 2, owner=mine.owner(key))
    assert mine.find_folder(key) == living


def test_what_ranks_have_in_common() -> None:
    torchrun = {"WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "none"}
    sessions = [session_of(parse_context({**torchrun, "RANK": rank}), torchrun) for rank in "01"]
    assert sessions[0] == sessions[1]
    assert session_of(parse_context(torchrun), {**torchrun, "TORCHELASTIC_RESTART_COUNT": "1"}) != sessions[0]
    assert session_of(parse_context({"GANGLINE_RUN_ID": "r", "GANGLINE_ATTEMPT": "3"}), {}) == "r.3"
