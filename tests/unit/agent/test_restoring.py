"""The tree where the agents run: byte for byte what was submitted, or a word about why not."""

from __future__ import annotations

import os
import threading

import pytest

from gangline.agent.restoring import await_tree, restore_tree
from gangline.agent.source import SourceTree, folders_of
from gangline.rundir.files import write_json
from gangline.rundir.layout import RunDir
from gangline.snapshot.manifest import FOLDER_MODE
from gangline.snapshot.objects import ObjectStore
from gangline.snapshot.pack import pack

ODD = os.fsdecode(b"caf\xe9 \xff.txt")


@pytest.fixture
def project(tmp_path):
    project = tmp_path / "project"
    (project / "pkg" / "deep").mkdir(parents=True)
    (project / "empty").mkdir(mode=0o750)
    (project / "train.py").write_text("print('as submitted')\n")
    (project / "none.txt").touch()
    (project / "tool.sh").write_text("#!/bin/sh\n")
    (project / "tool.sh").chmod(0o755)
    (project / ODD).write_bytes(b"\0\xff")
    (project / "pkg" / "deep" / "model.bin").write_bytes(os.urandom(3_000_001))
    (project / "pkg" / "link.py").symlink_to("../train.py")
    (project / "pkg" / "deep").chmod(0o500)
    (project / "pkg").chmod(0o700)
    return project


@pytest.fixture
def run(tmp_path, project):
    packed = pack(project, cache_path=None, home=tmp_path / "home")
    store, run = ObjectStore(tmp_path / "home"), RunDir(tmp_path / "run")
    for digest, path in packed.sources.items():
        store.put_file(digest, path)
    run.path.mkdir()
    write_json(run.code_manifest, packed.manifest.to_dict())
    return run


@pytest.fixture
def objects(tmp_path):
    return tmp_path / "home" / "objects"


def everything(folder):
    found = {}
    for path in folder.rglob("*"):
        mode = path.lstat().st_mode
        if path.is_dir():
            found[path.relative_to(folder)] = mode
        else:
            found[path.relative_to(folder)] = (mode, str(path.readlink()) if path.is_symlink() else path.read_bytes())
    return found


def test_folders_that_no_manifest_lists_have_the_mode_that_the_snapshot_takes_for_granted():
    assert folders_of([("a/b", {"kind": "file"})]) == {"a": FOLDER_MODE}


@pytest.mark.parametrize("umask", [0o077, 0o002])
def test_modes_are_those_of_the_project_whoever_restores(run, objects, project, umask):
    old = os.umask(umask)
    try:
        assert restore_tree(run, objects) == ""
    finally:
        os.umask(old)
    assert everything(run.code) == everything(project)


@pytest.mark.parametrize("shares", [True, False])
def test_the_tree_is_what_was_submitted(run, objects, project, monkeypatch, shares):
    if not shares:
        monkeypatch.setattr(os, "copy_file_range", lambda *_: (_ for _ in ()).throw(OSError(18, "cross-device")))
    assert restore_tree(run, objects) == ""
    assert everything(run.code) == everything(project)
    assert run.code_restored.exists()
    assert [path.name for path in run.path.iterdir() if path.name.startswith(".")] == []


def test_a_tree_that_is_there_is_left_alone(run, objects):
    run.code.mkdir()
    (run.code / "mine.txt").write_text("of an earlier launch")
    assert restore_tree(run, objects) == ""
    assert [path.name for path in run.code.iterdir()] == ["mine.txt"]


def test_without_a_snapshot_there_is_a_folder(tmp_path):
    run = RunDir(tmp_path)
    assert restore_tree(run, None) == ""
    assert run.code.is_dir()


def test_what_a_killed_agent_left_is_removed(run, objects, project):
    (run.path / ".code.0a0b.restoring").mkdir()
    (run.path / ".code.0a0b.restoring" / "half").write_text("")
    assert restore_tree(run, objects) == ""
    assert not (run.path / ".code.0a0b.restoring").exists()
    assert everything(run.code) == everything(project)


@pytest.mark.parametrize("harm", ["missing", "zeros", "cut"])
def test_a_damaged_store_is_told_and_the_first_attempt_refuses(run, objects, harm):
    victim = max((path for path in objects.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    size = victim.stat().st_size
    if harm == "missing":
        victim.unlink()
    else:
        victim.write_bytes(bytes(size) if harm == "zeros" else victim.read_bytes()[: size // 2])
    assert "cannot be restored" in restore_tree(run, objects)
    assert run.code.is_dir()
    assert not run.code_restored.exists()
    tree = SourceTree(run, objects, fresh=False)
    assert "model.bin" in tree.look(0).refused
    tree.close()


def test_others_wait_for_the_tree(run, objects):
    thread = threading.Timer(0.05, restore_tree, (run, objects))
    thread.start()
    assert await_tree(run, patience_s=30)
    assert (run.code / "train.py").exists()
    thread.join()


def test_nobody_waits_for_ever(tmp_path):
    moments = iter(range(100))
    assert not await_tree(RunDir(tmp_path / "gone"), patience_s=5, sleep=lambda _: None, now=lambda: next(moments))
