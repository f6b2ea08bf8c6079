from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from gangline.domain.errors import InvalidRequest
from gangline.rundir.confined import UnsafePath
from gangline.rundir.mirror import Gap, LocalSource, Piece, apply, apply_whole, is_mirrored, pull

LOG = "attempts/0/rank-00000.log"


def whole(path: str, data: bytes, version: int) -> Piece:
    return Piece(path, 0, data, version, hashlib.sha256(data).hexdigest())


def test_pieces_add_up_and_repeats_and_overlaps_do_no_harm(tmp_path: Path) -> None:
    assert apply(tmp_path, LOG, 0, b"abc") == 3
    assert apply(tmp_path, LOG, 0, b"abc") == 3
    assert apply(tmp_path, LOG, 1, b"bcdef") == 6
    assert apply(tmp_path, LOG, 2, b"c") == 6
    assert (tmp_path / LOG).read_bytes() == b"abcdef"


def test_a_gap_is_refused_and_names_where_to_go_on(tmp_path: Path) -> None:
    apply(tmp_path, LOG, 0, b"abc")
    with pytest.raises(Gap) as caught:
        apply(tmp_path, LOG, 4, b"e")
    assert caught.value.size == 3
    assert (tmp_path / LOG).read_bytes() == b"abc"
    with pytest.raises(Gap):
        apply(tmp_path, LOG, -1, b"e")


@pytest.mark.parametrize(
    "path", ["", "/etc/passwd", "../x", "a/../../x", "a//b", "./a", "a/.", "a\0b", "a/" * 2000 + "b", ".."]
)
def test_paths_cannot_leave_the_root(tmp_path: Path, path: str) -> None:
    root = tmp_path / "root"
    root.mkdir()
    with pytest.raises(UnsafePath):
        apply(root, path, 0, b"x")
    with pytest.raises(UnsafePath):
        apply_whole(root, whole(path, b"x", 1))
    assert [path.name for path in tmp_path.iterdir()] == ["root"]
    assert [path.name for path in root.iterdir()] == []


def test_links_are_not_followed(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (outside / "file").write_text("keep")
    (root / "folder").symlink_to(outside)
    (root / "file.log").symlink_to(outside / "file")
    for path in ("folder/file", "folder/new", "file.log", "file.log/x"):
        with pytest.raises(UnsafePath):
            apply(root, path, 0, b"overwrite")
    assert apply_whole(root, whole("file.log", b"new", 1))  # takes the link's place, not that of its target
    assert (outside / "file").read_text() == "keep"
    assert [path.name for path in outside.iterdir()] == ["file"]


def test_pipes_and_folders_are_not_written_to(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.log")
    (tmp_path / "folder.log").mkdir()
    for path in ("pipe.log", "folder.log"):
        with pytest.raises(UnsafePath):
            apply(tmp_path, path, 0, b"x")


def test_whole_files_are_replaced_only_by_newer_ones(tmp_path: Path) -> None:
    assert apply_whole(tmp_path, whole("attempts/0/gang.json", b"two", 2))
    assert not apply_whole(tmp_path, whole("attempts/0/gang.json", b"one", 1))
    assert not apply_whole(tmp_path, whole("attempts/0/gang.json", b"two", 2))
    assert apply_whole(tmp_path, whole("attempts/0/gang.json", b"2.1", 2))
    assert apply_whole(tmp_path, whole("attempts/0/gang.json", b"three", 3))
    assert [path.name for path in (tmp_path / "attempts/0").iterdir()] == ["gang.json"]
    assert (tmp_path / "attempts/0/gang.json").read_bytes() == b"three"


def test_bytes_that_were_damaged_on_the_way_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="digest"):
        apply_whole(tmp_path, Piece("a.json", 0, b"x", 1, hashlib.sha256(b"y").hexdigest()))
    assert [path.name for path in tmp_path.iterdir()] == []


def run_directory(root: Path) -> Path:
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


def test_a_pull_copies_what_agents_and_ranks_write_and_no_secrets(tmp_path: Path) -> None:
    source = run_directory(tmp_path / "source")
    report = pull(LocalSource(source), tmp_path / "copy")
    assert report.problems == {}
    expected = {path: data for path, data in files_of(source).items() if is_mirrored(path)}
    assert files_of(tmp_path / "copy") == expected
    assert set(expected) == {
        LOG,
        "attempts/0/result.json",
        "attempts/0/node-000/events.jsonl",
        "metrics/rank-00000.jsonl",
        "launches/000/node-000.log",
    }


def test_a_pull_goes_on_where_the_last_one_stopped_with_or_without_its_cursor(tmp_path: Path) -> None:
    source = run_directory(tmp_path / "source")
    first = pull(LocalSource(source), tmp_path / "copy")
    assert pull(LocalSource(source), tmp_path / "copy", first.cursor).num_bytes == 0
    with (source / LOG).open("ab") as file:
        file.write(b"more\n")
    for cursor in (first.cursor, None):
        report = pull(LocalSource(source), tmp_path / "copy", cursor, piece_bytes=2)
        assert (tmp_path / "copy" / LOG).read_bytes() == b"hello\nmore\n"
        assert report.num_bytes == (5 if cursor else 0)


def test_a_source_that_is_not_there_yet_has_no_files(tmp_path: Path) -> None:
    assert pull(LocalSource(tmp_path / "none"), tmp_path / "copy").cursor == {}


def test_a_link_in_a_run_directory_is_not_read(tmp_path: Path) -> None:
    source = run_directory(tmp_path / "source")
    (tmp_path / "secret").write_text("secret")
    (source / "attempts/0/rank-00001.log").symlink_to(tmp_path / "secret")
    pull(LocalSource(source), tmp_path / "copy")
    assert not (tmp_path / "copy/attempts/0/rank-00001.log").exists()
    with pytest.raises((UnsafePath, OSError)):
        LocalSource(source).read("attempts/0/rank-00001.log", 0, 10)


def test_one_file_that_cannot_be_read_does_not_hold_up_the_others(tmp_path: Path) -> None:
    source = run_directory(tmp_path / "source")

    class Failing(LocalSource):
        def read(self, path: str, offset: int, num_bytes: int) -> bytes:
            if path == LOG:
                raise OSError("input/output error")
            return super().read(path, offset, num_bytes)

    report = pull(Failing(source), tmp_path / "copy")
    assert list(report.problems) == [LOG]
    assert (tmp_path / "copy/attempts/0/result.json").exists()
    assert pull(LocalSource(source), tmp_path / "copy", report.cursor).problems == {}
    assert (tmp_path / "copy" / LOG).read_bytes() == b"hello\n"
