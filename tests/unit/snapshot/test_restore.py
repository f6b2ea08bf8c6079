from __future__ import annotations

import os
from pathlib import Path

import pytest

from gangline.domain.errors import Conflict, NotFound, SnapshotRefused
from gangline.snapshot import restore as restore_module
from gangline.snapshot.objects import ObjectStore
from gangline.snapshot.restore import restore


@pytest.fixture
def store(tmp_path) -> ObjectStore:
    return ObjectStore(tmp_path / "home")


@pytest.fixture
def stored(project, packed, store):
    (project / "src/inner").mkdir(parents=True)
    (project / "src/inner/model.py").write_text("")
    (project / "src/inner").chmod(0o500)
    (project / "src").chmod(0o700)
    (project / "src/train.py").write_text("print(1)\n")
    (project / "run.sh").write_text("x")
    (project / "run.sh").chmod(0o750)
    (project / "link").symlink_to("src")
    (project / "empty").mkdir(mode=0o700)
    result = packed(project)
    for digest, path in result.sources.items():
        store.put_file(digest, path)
    return result.manifest


def tree_of(folder: Path) -> dict[str, tuple]:
    found: dict[str, tuple] = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        content = str(path.readlink()) if path.is_symlink() else path.read_bytes() if path.is_file() else None
        mode = None if path.is_symlink() else status.st_mode
        found[str(path.relative_to(folder))] = (mode, content)
    return found


def test_byte_for_byte(stored, store, project, tmp_path) -> None:
    dest = restore(stored, store, tmp_path / "deep/copy")
    assert tree_of(dest) == tree_of(project)
    assert sorted(path.name for path in dest.parent.iterdir()) == ["copy"]


@pytest.mark.parametrize("umask", [0o077, 0o002])
def test_modes_are_those_of_the_project_whoever_restores(stored, store, project, tmp_path, umask) -> None:
    old = os.umask(umask)
    try:
        dest = restore(stored, store, tmp_path / "copy")
    finally:
        os.umask(old)
    assert tree_of(dest) == tree_of(project)


def test_what_runs_is_what_was_submitted(stored, store, project, tmp_path) -> None:
    """Case E1, the storage side."""
    before = tree_of(project)
    (project / "src/train.py").write_text("raise SystemExit('edited')\n")
    (project / "run.sh").unlink()
    assert tree_of(restore(stored, store, tmp_path / "copy")) == before


def test_edits_of_a_copy_do_not_reach_the_store(stored, store, project, tmp_path) -> None:
    (restore(stored, store, tmp_path / "one") / "src/train.py").write_text("spoilt")
    assert tree_of(restore(stored, store, tmp_path / "two")) == tree_of(project)


def test_an_empty_folder_is_taken_and_a_full_one_is_not(stored, store, tmp_path) -> None:
    (tmp_path / "copy").mkdir()
    restore(stored, store, tmp_path / "copy")
    with pytest.raises(Conflict, match="already"):
        restore(stored, store, tmp_path / "copy")
    (tmp_path / "aside").symlink_to(tmp_path / "copy")
    with pytest.raises(Conflict):
        restore(stored, store, tmp_path / "aside")


def test_a_damaged_content_is_named_and_asked_for_again(stored, store, tmp_path) -> None:
    digest = stored.find("src/train.py").digest
    path = tmp_path / "home/objects" / digest[:2] / digest[2:]
    path.write_bytes(b"print(2)\n")
    with pytest.raises(SnapshotRefused, match=r"src/train\.py is damaged"):
        restore(stored, store, tmp_path / "copy")
    assert store.missing([digest]) == [digest]
    assert not (tmp_path / "copy").exists()
    with pytest.raises(NotFound):
        restore(stored, store, tmp_path / "copy")
    assert [path.name for path in tmp_path.iterdir() if "restore-" in path.name] == []


def test_an_abandoned_folder_is_removed_and_a_live_one_is_not(stored, store, tmp_path, monkeypatch) -> None:
    (tmp_path / ".copy.restore-dead").mkdir()
    (tmp_path / ".copy.restore-dead/half").write_text("x")
    seen = []

    def look():
        seen.extend(path.name for path in tmp_path.glob(".copy.restore-*"))
        if len(seen) == 1:
            restore(stored, store, tmp_path / "copy")

    real = restore_module._write_files
    monkeypatch.setattr(restore_module, "_write_files", lambda *args: (look(), real(*args)))
    with pytest.raises(Conflict):
        restore(stored, store, tmp_path / "copy")
    assert len(seen) == 3, "the second restore saw its own folder and the first one's, not the abandoned one"
    assert (tmp_path / "copy/run.sh").exists()


def test_large_trees_are_written_in_parallel(project, packed, store, tmp_path) -> None:
    for number in range(12):
        (project / f"f{number}").write_bytes(bytes([number]) * 1_000_000)
    result = packed(project)
    for digest, path in result.sources.items():
        store.put_file(digest, path)
    assert tree_of(restore(result.manifest, store, tmp_path / "copy")) == tree_of(project)
