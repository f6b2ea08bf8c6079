from __future__ import annotations

from pathlib import Path

import pytest

from gangline.rundir.files import Unreadable, read_json, write_json, write_text


def test_written_json_is_read_again_and_its_folder_is_made(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "x.json"
    write_json(path, {"ü": [1, None]}, durable=True)
    assert read_json(path) == {"ü": [1, None]}
    assert [one.name for one in path.parent.iterdir()] == ["x.json"]


def test_names_that_are_no_utf8_are_read_again(tmp_path: Path) -> None:
    write_json(tmp_path / "x.json", {"message": "no such file: tr\udce4in.py"})
    assert read_json(tmp_path / "x.json") == {"message": "no such file: tr\udce4in.py"}


def test_the_mode_holds_from_the_first_moment(tmp_path: Path) -> None:
    write_json(tmp_path / "secret", {}, mode=0o600)
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600


def test_a_failed_write_changes_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "inside").touch()
    with pytest.raises(OSError, match="directory"):
        write_text(tmp_path / "x", "text")
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_replacing_is_by_rename_so_that_readers_never_see_half(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_json(path, {"n": 1})
    with path.open() as earlier:
        write_json(path, {"n": 2})
        assert earlier.read() == '{"n": 1}\n'


def test_a_missing_file_is_none(tmp_path: Path) -> None:
    assert read_json(tmp_path / "none") is None
    assert read_json(tmp_path / "none" / "deeper") is None


@pytest.mark.parametrize("garbage", [b"", b"{", b"\xff\xfe", b"[1]", b"[" * 100_000, b"\x00" * 10])
def test_garbage_is_named(tmp_path: Path, garbage: bytes) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(garbage)
    with pytest.raises(Unreadable, match=r"x\.json"):
        read_json(path)
