from __future__ import annotations

import os
from pathlib import Path

import pytest

from gangline.bridge import watching
from gangline.bridge.watching import RunsWatch, is_on_nfs

LOG = "attempts/0/rank-00000.log"


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(watching, "time", clock)
    return clock


def put(path: Path, data: bytes = b"x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(data)
    return path


def named(answer: dict, run: str = "r") -> list[str]:
    return sorted(entry[0] for entry in answer["files"].get(run, []))


@pytest.mark.parametrize("on_nfs", [False, True])
def test_each_answer_tells_what_has_changed_since_the_one_that_is_named(tmp_path: Path, on_nfs: bool) -> None:  # noqa: FBT001
    watch = RunsWatch(str(tmp_path), on_nfs=on_nfs)
    put(tmp_path / "r" / LOG)
    put(tmp_path / "r/metrics/rank-00000.jsonl")
    put(tmp_path / "r/launches/000/launch.json")
    put(tmp_path / "r/code/train.py")
    first = watch.changes(["r"], None)
    assert named(first) == [LOG, "metrics/rank-00000.jsonl"]
    assert named(watch.changes(["r"], first["since"])) == []
    put(tmp_path / "r" / LOG)
    put(tmp_path / "r/attempts/0/node-000/events.jsonl")
    put(tmp_path / "r/attempts/0/result.json")
    second = watch.changes(["r"], first["since"])
    assert named(second) == ["attempts/0/node-000/events.jsonl", LOG, "attempts/0/result.json"]
    assert second["files"]["r"][0][1:] != first["files"]["r"][0][1:]
    assert named(watch.changes(["r"], first["since"])) == named(second)  # the answer was lost on the way
    assert len(named(watch.changes(["r"], None))) == 4


def test_a_bridge_that_was_started_again_tells_everything(tmp_path: Path) -> None:
    put(tmp_path / "r" / LOG)
    since = RunsWatch(str(tmp_path)).changes(["r"], None)["since"]
    assert named(RunsWatch(str(tmp_path)).changes(["r"], since)) == [LOG]
    assert named(RunsWatch(str(tmp_path)).changes(["r"], "nonsense")) == [LOG]


def test_a_run_that_is_asked_about_for_the_first_time_is_told_whole(tmp_path: Path) -> None:
    watch = RunsWatch(str(tmp_path))
    put(tmp_path / "a" / LOG)
    put(tmp_path / "b" / LOG)
    since = watch.changes(["a"], None)["since"]
    answer = watch.changes(["a", "b", "none"], since)
    assert named(answer, "a") == []
    assert named(answer, "b") == [LOG]
    assert answer["gone"] == ["none"]


def test_a_replaced_file_is_told_even_where_the_folders_time_is_coarse(tmp_path: Path, clock: Clock) -> None:
    watch = RunsWatch(str(tmp_path))
    result = put(tmp_path / "r/attempts/0/result.json")
    since = watch.changes(["r"], None)["since"]
    before = result.parent.stat()
    put(result.with_suffix(".new"), b"other").replace(result)
    os.utime(result.parent, ns=(before.st_atime_ns, before.st_mtime_ns))
    clock.now += 1.0
    assert named(watch.changes(["r"], since)) == ["attempts/0/result.json"]


def test_folders_that_are_settled_are_not_read_again(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = RunsWatch(str(tmp_path))
    put(tmp_path / "r" / LOG)
    read: list[str] = []
    scandir = os.scandir
    monkeypatch.setattr(watching.os, "scandir", lambda path: (read.append(path), scandir(path))[1])
    since = watch.changes(["r"], None)["since"]
    clock.now += 3.0
    watch.changes(["r"], since)
    assert len(read) == 4
    clock.now += 3.0
    watch.changes(["r"], since)
    assert len(read) == 4


def test_older_attempts_are_looked_at_now_and_then(tmp_path: Path, clock: Clock) -> None:
    watch = RunsWatch(str(tmp_path))
    old = put(tmp_path / "r/attempts/9/rank-00000.log")
    put(tmp_path / "r/attempts/10/rank-00000.log")
    since = watch.changes(["r"], None)["since"]
    clock.now += 10.0
    put(old)
    looks = 0
    while not named(watch.changes(["r"], since)):
        looks += 1
        assert looks < 20
    assert looks > 1
    put(tmp_path / "r/attempts/10/rank-00000.log")
    assert "attempts/10/rank-00000.log" in named(watch.changes(["r"], since))


def test_signs_of_life_are_those_of_the_newest_launch(tmp_path: Path) -> None:
    watch = RunsWatch(str(tmp_path))
    put(tmp_path / "r/launches/000/node-000.log")
    assert watch.changes(["r"], None)["alive"] == {}
    for number, at in ((0, 500), (1, 400)):
        alive = put(tmp_path / f"r/launches/{number:03d}/leader.alive")
        os.utime(alive, ns=(at, at))
    assert watch.changes(["r"], None)["alive"] == {"r": (1, 400)}
    put(tmp_path / "r/launches/002/node.sh")  # it waits for the end of the other one
    assert RunsWatch(str(tmp_path)).changes(["r"], None)["alive"] == {"r": (1, 400)}


def test_links_and_pipes_are_not_told(tmp_path: Path) -> None:
    put(tmp_path / "outside/rank-00001.log")
    put(tmp_path / "r" / LOG)
    (tmp_path / "r/attempts/0/rank-00001.log").symlink_to(tmp_path / "outside/rank-00001.log")
    (tmp_path / "r/attempts/1").symlink_to(tmp_path / "outside")
    os.mkfifo(tmp_path / "r/attempts/0/pipe.log")
    assert named(RunsWatch(str(tmp_path)).changes(["r"], None)) == [LOG]
    answer = RunsWatch(str(tmp_path / "r")).changes(["../r", "", ".", "attempts/0"], None)
    assert (answer["files"], len(answer["gone"])) == ({}, 4)


def test_what_vanishes_is_told_no_more(tmp_path: Path) -> None:
    watch = RunsWatch(str(tmp_path))
    put(tmp_path / "r" / LOG)
    gone = put(tmp_path / "r/attempts/0/gone.json")
    watch.changes(["r"], None)
    gone.unlink()
    assert named(watch.changes(["r"], None)) == [LOG]


def test_nfs_is_known_by_the_mount_that_a_folder_lies_on() -> None:
    mounts = [
        "21 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw",
        "30 21 0:40 / /nfs rw shared:1 - nfs4 server:/export rw",
        "31 30 8:2 / /nfs/local rw - xfs /dev/sdb rw",
        "broken",
    ]
    assert is_on_nfs("/nfs/work", mounts)
    assert not is_on_nfs("/nfs/local/work", mounts)
    assert not is_on_nfs("/nfsother", mounts)
    assert not is_on_nfs("/home", mounts)
