from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from gangline.domain.errors import SnapshotRefused
from gangline.snapshot import hashing
from gangline.snapshot.hashing import HashCache, cache_path_for, hash_file


@pytest.fixture
def cache(tmp_path):
    return cache_path_for(tmp_path / "home", tmp_path / "project")


@pytest.fixture
def reads(monkeypatch) -> list[str]:
    """Names of the files that were read."""
    found: list[str] = []
    real = hashing._read

    def note(where):
        found.append(Path(where).name)
        return real(where)

    monkeypatch.setattr(hashing, "_read", note)
    return found


@pytest.fixture
def later(monkeypatch) -> None:
    """As if every file had last been changed a minute ago."""
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() + 60 * 10**9)


@pytest.mark.usefixtures("later")
def test_the_second_pack_reads_what_changed(project, packed, cache, reads) -> None:
    for name in ("a", "b"):
        (project / name).write_text(name)
    first = packed(project, cache_path=cache)
    assert sorted(reads) == ["a", "b"]
    reads.clear()
    assert packed(project, cache_path=cache).manifest == first.manifest
    assert reads == []
    (project / "a").write_text("changed")
    assert packed(project, cache_path=cache).manifest.digest != first.manifest.digest
    assert reads == ["a"]


def test_a_file_that_was_just_changed_is_read_again(project, packed, cache, reads) -> None:
    """Racily clean: it could be changed once more with the same size and times."""
    (project / "a").write_text("one")
    packed(project, cache_path=cache)
    status = (project / "a").stat()
    (project / "a").write_text("two")
    os.utime(project / "a", ns=(status.st_atime_ns, status.st_mtime_ns))
    second = packed(project, cache_path=cache)
    assert reads == ["a", "a"]
    assert second.sources[second.manifest.find("a").digest].read_text() == "two"


@pytest.mark.usefixtures("later")
def test_a_change_that_hides_behind_its_times_is_seen(project, packed, cache) -> None:
    (project / "a").write_text("one")
    first = packed(project, cache_path=cache)
    status = (project / "a").stat()
    time.sleep(0.02)  # the change time of a file system moves in steps
    (project / "a").write_text("two")
    os.utime(project / "a", ns=(status.st_atime_ns, status.st_mtime_ns))
    assert packed(project, cache_path=cache).manifest.digest != first.manifest.digest


@pytest.mark.usefixtures("later")
@pytest.mark.parametrize(
    "damage", [b"", b"{", b"[]", b'{"version": 1}', b'{"version": 99, "root": "", "files": {}}', b"\xff"]
)
def test_a_damaged_cache_is_empty(project, packed, cache, damage) -> None:
    (project / "a").write_text("one")
    first = packed(project, cache_path=cache)
    cache.write_bytes(damage)
    assert packed(project, cache_path=cache).manifest == first.manifest
    assert HashCache.load(cache, root=str(project)).marks.keys() == {"a"}


@pytest.mark.usefixtures("later")
def test_what_is_gone_is_forgotten(project, packed, cache) -> None:
    for name in ("a", "b"):
        (project / name).write_text(name)
    packed(project, cache_path=cache)
    (project / "b").unlink()
    packed(project, cache_path=cache)
    assert json.loads(cache.read_text())["files"].keys() == {"a"}


@pytest.mark.usefixtures("later")
def test_a_cache_of_another_tree_does_not_count(project, packed, cache, tmp_path, reads) -> None:
    (project / "a").write_text("one")
    packed(project, cache_path=cache)
    project.rename(tmp_path / "moved")
    packed(tmp_path / "moved", cache_path=cache)
    assert reads == ["a", "a"]


@pytest.mark.usefixtures("later")
def test_a_cache_that_cannot_be_written_is_no_error(project, packed, tmp_path) -> None:
    (tmp_path / "file").write_text("")
    (project / "a").write_text("one")
    assert packed(project, cache_path=tmp_path / "file/cache").manifest.num_files == 1


@pytest.mark.usefixtures("later")
def test_names_that_are_not_utf8_are_remembered(project, packed, cache, reads) -> None:
    (project / os.fsdecode(b"\xff")).write_text("x")
    packed(project, cache_path=cache)
    packed(project, cache_path=cache)
    assert len(reads) == 1


def test_a_file_that_never_holds_still_is_named(project, monkeypatch) -> None:
    path = project / "growing.log"
    path.write_text("x")
    real = hashing._read

    def grow(where):
        digest, before, _ = real(where)
        with path.open("a") as log:
            log.write("y")
        return digest, before, path.stat()

    monkeypatch.setattr(hashing, "_read", grow)
    with pytest.raises(SnapshotRefused, match=r"growing\.log changes while"):
        hash_file("growing.log", str(path))


def test_a_file_that_changes_once_is_read_again(project, monkeypatch) -> None:
    path = project / "a"
    path.write_text("x")
    real = hashing._read
    calls = []

    def change_once(where):
        digest, before, after = real(where)
        if not calls:
            path.write_text("longer")
        calls.append(1)
        return digest, before, path.stat() if len(calls) == 1 else after

    monkeypatch.setattr(hashing, "_read", change_once)
    digest, status = hash_file("a", str(path))
    assert (len(calls), status.st_size) == (2, 6)
    assert digest == real(str(path))[0]


def test_a_file_that_is_gone_is_left_out(project, packed, monkeypatch) -> None:
    for name in ("a", "b"):
        (project / name).write_text(name)
    real = hashing._read

    def lose(where):
        (project / "b").unlink(missing_ok=True)
        return real(where)

    monkeypatch.setattr(hashing, "_read", lose)
    assert [entry.path for entry in packed(project).manifest.files] == ["a"]
