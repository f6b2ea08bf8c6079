from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from gangline.domain.errors import InvalidRequest
from gangline.rundir.confined import UnsafePath
from gangline.rundir.mirror import Gap, Piece, apply, apply_whole

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
