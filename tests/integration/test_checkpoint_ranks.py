"""Four processes save together, as the ranks of a gang do, without a server and without torch."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gangline.rundir.checkpoints import find_checkpoints, newest_complete

WORLD_SIZE = 4
PROLOGUE = """
import os, signal, sys, time
import gangline
from gangline.training import saving
from gangline.training.gathering import Patience
rank = gangline.current().rank
patience = Patience(notice_s=0.2, entry_s=ENTRY_S, known_absent_s=0.3, save_s=60)
saving._saver = saving.Saver(gangline.current(), patience=patience)
def save(step, **keys):
    with gangline.checkpoint(step, **keys) as path:
        (path / f"rank-{rank}").write_text(f"step {step} attempt {gangline.current().attempt}")
    return path
"""
EPILOGUE = '\nprint("trained on", flush=True)\n'

pytestmark = pytest.mark.integration


@contextmanager
def gang(
    folder: Path, code: str, *, attempt: int = 0, platform: bool = True, entry_s: float = 60.0
) -> Iterator[list[subprocess.Popen[str]]]:
    ranks = []
    for rank in range(WORLD_SIZE):
        env = {
            **os.environ,
            "RANK": str(rank),
            "WORLD_SIZE": str(WORLD_SIZE),
            "MASTER_PORT": "29500",
            "GANGLINE_CHECKPOINT_DIR": str(folder / "ckpt"),
        }
        if platform:
            env |= {
                "GANGLINE_RUN_ID": "gang",
                "GANGLINE_ATTEMPT": str(attempt),
                "GANGLINE_RUN_DIR": str(folder / "run"),
            }
        command = [sys.executable, "-c", PROLOGUE.replace("ENTRY_S", str(entry_s)) + code + EPILOGUE]
        ranks.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    try:
        yield ranks
    finally:
        for rank_process in ranks:
            rank_process.kill()
            rank_process.communicate()


def outcomes(ranks: list[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    found = []
    for rank in ranks:
        out, err = rank.communicate(timeout=60)
        found.append((rank.returncode, out, err))
    return found


def warnings(folder: Path) -> list[str]:
    lines = (folder / "run" / "metrics" / "rank-00000.jsonl").read_text().splitlines()
    return [record["text"] for record in map(json.loads, lines) if record["k"] == "w"]


@pytest.mark.parametrize("platform", [True, False])
def test_all_ranks_write_into_one_checkpoint(tmp_path: Path, *, platform: bool) -> None:
    code = "for step in (10, 20, 20, 30):\n    save(step)"
    for start in range(2):
        with gang(tmp_path, code, attempt=start, platform=platform) as ranks:
            assert [(code, out) for code, out, _ in outcomes(ranks)] == [(0, "trained on\n")] * WORLD_SIZE
    found = find_checkpoints(tmp_path / "ckpt")
    assert [(one.complete, one.num_files, one.world_size) for one in found] == [(True, WORLD_SIZE, WORLD_SIZE)] * 3
    newest, skipped = newest_complete(tmp_path / "ckpt", checksums=True)
    assert newest is not None
    assert ((newest.step, newest.attempt), skipped) == ((30, 1), [])
    assert list((tmp_path / "ckpt" / ".saving").iterdir()) == []


def test_a_slow_rank_is_waited_for(tmp_path: Path) -> None:
    code = """
with gangline.checkpoint(10) as path:
    (path / f"rank-{rank}").write_text("x")
    time.sleep(0.5 * rank)
    (path / f"rank-{rank}").write_text("whole")
"""
    with gang(tmp_path, code) as ranks:
        results = outcomes(ranks)
    assert [code for code, _, _ in results] == [0] * WORLD_SIZE
    newest, _ = newest_complete(tmp_path / "ckpt", checksums=True)
    assert newest is not None
    assert newest.size_bytes == WORLD_SIZE * len("whole")
    assert "to finish saving step 10" in results[0][2]


def test_a_rank_that_raises_gets_its_exception_and_nothing_counts(tmp_path: Path) -> None:
    code = """
save(10)
try:
    with gangline.checkpoint(20) as path:
        (path / f"rank-{rank}").write_text("x")
        if rank == 2:
            raise ValueError("my own")
except ValueError as error:
    print(error)
save(30)
"""
    with gang(tmp_path, code) as ranks:
        results = outcomes(ranks)
    assert [out for _, out, _ in results] == ["trained on\n"] * 2 + ["my own\ntrained on\n", "trained on\n"]
    assert [one.step for one in find_checkpoints(tmp_path / "ckpt") if one.complete] == [10, 30]
    assert "rank 2 failed while saving" in warnings(tmp_path)[0]


def test_the_if_rank_0_habit(tmp_path: Path) -> None:
    with gang(tmp_path, "if rank == 0:\n    save(10, rank0_only=True)\nsave(20, rank0_only=True)") as ranks:
        results = outcomes(ranks)
    assert [code for code, _, _ in results] == [0] * WORLD_SIZE
    assert [(one.complete, one.num_files) for one in find_checkpoints(tmp_path / "ckpt")] == [(True, 1), (True, 1)]


def test_the_habit_without_rank0_only_is_explained_and_does_not_stop_training(tmp_path: Path) -> None:
    with gang(tmp_path, "if rank == 0:\n    save(10)", entry_s=0.6) as ranks:
        results = outcomes(ranks)
    assert [(code, out) for code, out, _ in results] == [(0, "trained on\n")] * WORLD_SIZE
    assert "gangline.checkpoint(10, rank0_only=True)" in results[0][2]
    assert [one.complete for one in find_checkpoints(tmp_path / "ckpt")] == [False]
    assert "ranks 1, 2, 3 did not enter" in warnings(tmp_path)[0]


def test_a_retry_after_a_death_mixes_nothing(tmp_path: Path) -> None:
    """C4: rank 1 dies before it writes its shard of step 20; the retry saves step 20 again."""
    died = """
save(10)
with gangline.checkpoint(20) as path:
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    (path / f"rank-{rank}").write_text("old")
"""
    with gang(tmp_path, died) as ranks:
        assert ranks[1].wait(timeout=60) == -signal.SIGKILL
    newest, skipped = newest_complete(tmp_path / "ckpt")
    assert newest is not None
    assert (newest.step, [one.step for one in skipped]) == (10, [20])
    with gang(tmp_path, "save(20)", attempt=1) as ranks:
        assert [code for code, _, _ in outcomes(ranks)] == [0] * WORLD_SIZE
    newest, skipped = newest_complete(tmp_path / "ckpt")
    assert newest is not None
    assert (newest.step, newest.attempt, newest.num_files, skipped) == (20, 1, WORLD_SIZE, [])
    texts = {path.read_text() for path in newest.path.glob("rank-*")}
    assert texts == {"step 20 attempt 1"}
    assert [one.path.name for one in find_checkpoints(tmp_path / "ckpt")] == [
        "step-0000000010.attempt-000",
        "step-0000000020.attempt-001",
    ]


def test_a_save_that_needs_all_ranks_inside_the_block_works(tmp_path: Path) -> None:
    """As `torch.distributed.checkpoint` does: nobody leaves before everybody has entered."""
    code = """
with gangline.checkpoint(10) as path:
    (path / f"rank-{rank}").write_text("x")
    until = time.monotonic() + 30
    while len(list(path.glob("rank-*"))) < 4:
        assert time.monotonic() < until
        time.sleep(0.01)
"""
    with gang(tmp_path, code) as ranks:
        assert [code for code, _, _ in outcomes(ranks)] == [0] * WORLD_SIZE
    newest, _ = newest_complete(tmp_path / "ckpt")
    assert newest is not None
    assert newest.num_files == WORLD_SIZE
