from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from gangline.bridge.workfolder import WorkFolder, probe, upload_path
from gangline.domain.errors import InvalidRequest
from gangline.rundir.confined import UnsafePath
from gangline.rundir.mirror import Gap


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def work(tmp_path: Path) -> WorkFolder:
    (tmp_path / "work").mkdir()
    return WorkFolder(str(tmp_path / "work"))


def test_a_file_is_replaced_as_a_whole_with_its_mode(work: WorkFolder) -> None:
    for data in (b"one", b"two"):
        work.write("runs/r/launches/000/launch.json", data, 0o600)
    path = Path(work.root, "runs/r/launches/000/launch.json")
    assert path.read_bytes() == b"two"
    assert path.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["launch.json"]


def test_absolute_paths_have_to_lie_in_the_work_folder(work: WorkFolder) -> None:
    work.write(f"{work.root}/runs/r/x", b"x", 0o600)
    assert work.read("r", "x", 0, 10) == b"x"
    for path in ("/etc/passwd", f"{work.root}-other/x", work.root, "../x", "runs/../../x", ""):
        with pytest.raises(UnsafePath):
            work.write(path, b"x", 0o600)
        with pytest.raises(UnsafePath):
            work.append(path, 0, b"x")


def test_no_link_leads_out(work: WorkFolder, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    runs = Path(work.root, "runs/r")
    runs.mkdir(parents=True)
    (runs / "out").symlink_to(tmp_path)
    (runs / "file.log").symlink_to(tmp_path / "secret")
    assert work.read("r", "out/secret", 0, 100) is None
    assert work.read("r", "file.log", 0, 100) is None
    assert work.read("r", "../../../secret", 0, 100) is None
    with pytest.raises(UnsafePath):
        work.read("../r", "file.log", 0, 100)
    with pytest.raises(UnsafePath):
        work.write("runs/r/out/new", b"x", 0o600)
    with pytest.raises(UnsafePath):
        work.append("runs/r/file.log", 0, b"x")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["secret", "work"]


def test_appending_twice_does_no_harm_and_a_gap_is_refused(work: WorkFolder) -> None:
    assert work.append("runs/r/control.jsonl", 0, b"abc") == 3
    assert work.append("runs/r/control.jsonl", 1, b"bcd") == 4
    assert work.append("runs/r/control.jsonl", 0, b"") == 4
    with pytest.raises(Gap) as caught:
        work.append("runs/r/control.jsonl", 9, b"x")
    assert caught.value.size == 4
    assert work.read("r", "control.jsonl", 1, 2) == b"bc"


def test_only_contents_that_are_what_they_are_called_are_kept(work: WorkFolder) -> None:
    good, empty = digest_of(b"good"), digest_of(b"")
    assert work.missing([good, empty, good]) == [good, empty]
    work.store(good, b"good")
    work.store(empty, b"")
    assert work.missing([good, empty]) == []
    assert Path(work.root, "objects", good[:2], good[2:]).read_bytes() == b"good"
    bad = digest_of(b"bad")
    with pytest.raises(InvalidRequest):
        work.store(bad, b"good")
    with pytest.raises(InvalidRequest):
        work.store("../../x", b"good")
    with pytest.raises(InvalidRequest):
        work.missing(["x"])
    torn = Path(work.root, "objects", bad[:2], bad[2:])
    torn.parent.mkdir(parents=True, exist_ok=True)
    torn.touch()
    assert work.missing([bad]) == [bad]


def test_a_large_content_counts_once_it_is_whole(work: WorkFolder) -> None:
    data = os.urandom(3000)
    digest = digest_of(data)
    work.append(upload_path(digest), 0, data[:2000])
    assert work.missing([digest]) == [digest]
    work.append(upload_path(digest), 2000, data[2000:])
    work.adopt(digest)
    work.adopt(digest)  # somebody else did the same
    assert work.missing([digest]) == []
    wrong = digest_of(b"wrong")
    work.append(upload_path(wrong), 0, b"other bytes")
    with pytest.raises(InvalidRequest):
        work.adopt(wrong)
    assert not Path(work.root, upload_path(wrong)).exists()
    with pytest.raises(FileNotFoundError):
        work.adopt(wrong)


def test_a_probe_says_what_is_wrong_with_a_folder(tmp_path: Path) -> None:
    good = probe(f"{tmp_path}/a/b")
    assert good["exists"]
    assert good["writable"]
    assert good["free_bytes"] > 0
    assert list((tmp_path / "a/b").iterdir()) == []
    (tmp_path / "file").touch()
    bad = probe(f"{tmp_path}/file/c")
    assert not bad["exists"]
    assert not bad["writable"]
    assert f"{tmp_path}/file" in bad["why_not"]
