from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from gangline.domain.errors import Conflict, InvalidRequest
from gangline.rundir import pull as pulling
from gangline.rundir.mirror import FileState, is_mirrored
from gangline.rundir.pull import Read, Wanted, pull
from gangline.testing.link import LocalLink, pull_run

LOG = "attempts/0/rank-00000.log"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    root = tmp_path / "runs/r"
    for path, data in {
        LOG: b"hello\n",
        "attempts/0/result.json": b"{}",
        "attempts/0/.result.json.ab.tmp": b"{",
        "attempts/0/node-000/events.jsonl": b'{"seq": 0}\n',
        "metrics/rank-00000.jsonl": b"",
        "launches/000/node-000.log": b"agent\n",
        "launches/000/launch.json": b'{"token": "secret"}',
        "code/train.py": b"print()",
        "checkpoints/big": b"x",
        "spec.json": b"{}",
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
    return root


def files_of(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def listed(source: Path, copy: Path) -> list[Wanted]:
    copy.mkdir(exist_ok=True)
    found = LocalLink(source.parents[1]).changes(["r"], None).files["r"]
    return [Wanted("r", FileState(*one), copy) for one in found]


def test_a_pull_copies_what_agents_and_ranks_write_and_no_secrets(source: Path, tmp_path: Path) -> None:
    assert pull_run(source, tmp_path / "copy") == {}
    expected = {path: data for path, data in files_of(source).items() if is_mirrored(path)}
    assert files_of(tmp_path / "copy") == expected
    assert set(expected) == {
        LOG,
        "attempts/0/result.json",
        "attempts/0/node-000/events.jsonl",
        "metrics/rank-00000.jsonl",
        "launches/000/node-000.log",
    }


def test_a_pull_goes_on_where_the_last_one_stopped(source: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    os.utime(source / "attempts/0/result.json", ns=(1, 1))
    assert pull_run(source, copy) == {}
    with (source / LOG).open("ab") as file:
        file.write(b"more\n")
    asked: list[Read] = []
    link = LocalLink(tmp_path)

    def read(reads: Sequence[Read]) -> list[bytes | None]:
        asked.extend(reads)
        return link.read(reads)

    copied = list(pull(read, listed(source, copy), piece_bytes=2))
    assert sum(one.num_bytes for one in copied) == 5
    assert {path for _, path, offset, num_bytes in asked if num_bytes and offset >= 6} == {LOG}
    assert not [path for _, path, _, _ in asked if path.endswith("result.json")]
    assert (copy / LOG).read_bytes() == b"hello\nmore\n"


def test_a_file_that_is_replaced_twice_in_a_moment_is_not_taken_for_the_same(source: Path, tmp_path: Path) -> None:
    result, copy = source / "attempts/0/result.json", tmp_path / "copy"
    assert pull_run(source, copy) == {}
    status = result.stat()
    (source / "attempts/0/new").write_bytes(b"[]")
    (source / "attempts/0/new").replace(result)
    os.utime(result, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert pull_run(source, copy) == {}
    assert (copy / "attempts/0/result.json").read_bytes() == b"[]"


def test_many_files_share_a_question_and_a_large_one_holds_up_none(tmp_path: Path) -> None:
    source = tmp_path / "runs/r"
    for rank in range(50):
        path = source / f"metrics/rank-{rank:05d}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * (10 if rank else 10_000))
    batches: list[int] = []
    link = LocalLink(tmp_path)

    def read(reads: Sequence[Read]) -> list[bytes | None]:
        batches.append(sum(one[3] for one in reads))
        return link.read(reads)

    done = [
        one.wanted.state.path
        for one in pull(read, listed(source, tmp_path / "copy"), piece_bytes=500, batch_bytes=lambda: 1000)
    ]
    assert done[-1] == "metrics/rank-00000.jsonl"
    assert max(batches) <= 1000
    assert len(batches) <= 22
    assert len(files_of(tmp_path / "copy")) == 50


def test_one_file_that_cannot_be_read_does_not_hold_up_the_others(source: Path, tmp_path: Path) -> None:
    copy, link = tmp_path / "copy", LocalLink(tmp_path)

    def failing(reads: Sequence[Read]) -> list[bytes | None]:
        return [None if LOG in one else data for one, data in zip(reads, link.read(reads), strict=True)]

    problems = [one for one in pull(failing, listed(source, copy)) if one.error is not None]
    assert [(one.wanted.state.path, type(one.error)) for one in problems] == [(LOG, FileNotFoundError)]
    assert (copy / "attempts/0/result.json").exists()
    assert pull_run(source, copy) == {}
    assert (copy / LOG).read_bytes() == b"hello\n"


def test_a_link_in_a_run_directory_is_not_read(source: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (source / "attempts/0/rank-00001.log").symlink_to(tmp_path / "secret")
    assert pull_run(source, tmp_path / "copy") == {}
    assert not (tmp_path / "copy/attempts/0/rank-00001.log").exists()


def test_a_file_that_was_replaced_while_it_was_read_is_not_taken_by_halves(source: Path, tmp_path: Path) -> None:
    copy, link = tmp_path / "copy", LocalLink(tmp_path)
    wanted = [one for one in listed(source, copy) if one.state.path.endswith("result.json")]
    new = source / "attempts/0/new"
    new.write_bytes(b"[" * 500)
    new.replace(source / "attempts/0/result.json")
    (copied,) = pull(link.read, wanted)
    assert isinstance(copied.error, Conflict)
    assert not (copy / "attempts/0/result.json").exists()


def test_what_is_too_large_to_be_sent_whole_is_said(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulling, "LARGEST_WHOLE_BYTES", 1)
    problems = [one for one in pull(LocalLink(tmp_path).read, listed(source, tmp_path / "copy")) if one.error]
    assert [(one.wanted.state.path, type(one.error)) for one in problems] == [
        ("attempts/0/result.json", InvalidRequest)
    ]


def test_a_lost_connection_ends_it_and_the_copies_go_on_from_where_they_are(source: Path, tmp_path: Path) -> None:
    copy, link, left = tmp_path / "copy", LocalLink(tmp_path), [2]

    def read(reads: Sequence[Read]) -> list[bytes | None]:
        left[0] -= 1
        if left[0] < 0:
            raise ConnectionError
        return link.read(reads)

    with pytest.raises(ConnectionError):
        list(pull(read, listed(source, copy), piece_bytes=1, batch_bytes=lambda: 1))
    assert pull_run(source, copy) == {}
    assert files_of(copy) == {path: data for path, data in files_of(source).items() if is_mirrored(path)}
