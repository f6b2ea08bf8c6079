"""The restored tree before each attempt: put right where it changed, left alone where it did not."""

from __future__ import annotations

import os
import shutil
import time

import pytest

from gangline.agent.changes import ChangeWatch
from gangline.agent.source import SourceTree
from gangline.rundir.files import write_json
from gangline.rundir.layout import RunDir
from gangline.snapshot.objects import ObjectStore
from gangline.snapshot.pack import pack
from gangline.snapshot.restore import restore


@pytest.fixture
def run(tmp_path):
    """A run whose code was restored as the server does it."""
    project = tmp_path / "project"
    (project / "pkg" / "deep").mkdir(parents=True)
    (project / "empty").mkdir()
    (project / "private").mkdir(mode=0o700)
    (project / "private" / "key.py").write_text("")
    (project / "train.py").write_text("print('as submitted')\n")
    (project / "tool.sh").write_text("#!/bin/sh\n")
    (project / "tool.sh").chmod(0o755)
    (project / "pkg" / "deep" / "model.py").write_text("layers = 1\n")
    (project / "link.py").symlink_to("train.py")
    packed = pack(project, cache_path=None, home=tmp_path / "home")
    store, run = ObjectStore(tmp_path / "home"), RunDir(tmp_path / "run")
    for digest, path in packed.sources.items():
        store.put_file(digest, path)
    run.path.mkdir()
    write_json(run.code_manifest, packed.manifest.to_dict())
    restore(packed.manifest, store, run.code)
    time.sleep(0.02)  # past the tick of the file system's clock
    run.code_restored.touch()
    return run


@pytest.fixture
def objects(tmp_path):
    return tmp_path / "home" / "objects"


@pytest.fixture(params=["watched", "without inotify", "another launch"])
def tree(request, run, objects, monkeypatch):
    if request.param == "without inotify":
        monkeypatch.setattr(ChangeWatch, "_open", lambda _self: None)
    tree = SourceTree(run, objects, fresh=request.param != "another launch")
    yield tree
    tree.close()


def everything(folder):
    return {
        str(path.relative_to(folder)): (
            path.lstat().st_mode,
            str(path.readlink()) if path.is_symlink() else path.read_bytes() if path.is_file() else None,
        )
        for path in sorted(folder.rglob("*"))
    }


def test_a_tree_that_was_not_touched_is_left_alone(run, tree):
    before = everything(run.code)
    for attempt in range(3):
        looked = tree.look(attempt)
        assert (looked.restored, looked.refused, looked.describe()) == ((), "", "")
    assert everything(run.code) == before
    assert not run.changed(0).exists()


def replace_by_folder(code):
    (code / "train.py").unlink()
    (code / "train.py").mkdir()
    (code / "train.py" / "mine").write_text("mine")


def link_outside(code):
    shutil.move(code / "pkg", code.parent / "elsewhere")
    (code / "pkg").symlink_to(code.parent / "elsewhere")


def rewrite_with_its_times(code):
    """Same size, same modification time: only the time of the last change tells."""
    old = (code / "train.py").stat()
    (code / "train.py").write_text("print('as_submitted')\n")
    os.utime(code / "train.py", ns=(old.st_atime_ns, old.st_mtime_ns))


@pytest.mark.parametrize(
    ("harm", "names"),
    [
        (lambda code: (code / "train.py").write_text("print('rewritten')\n"), ["train.py"]),
        (rewrite_with_its_times, ["train.py"]),
        (lambda code: (code / "train.py").unlink(), ["train.py"]),
        (lambda code: (code / "tool.sh").chmod(0o644), ["tool.sh"]),
        (lambda code: shutil.rmtree(code / "pkg"), ["pkg/deep/model.py"]),
        (lambda code: (code / "empty").rmdir(), ["empty"]),
        (lambda code: (code / "empty").chmod(0o700), ["empty"]),
        (lambda code: (code / "pkg").chmod(0o700), ["pkg"]),
        (lambda code: (code / "private").chmod(0o755), ["private"]),
        (lambda code: shutil.rmtree(code / "private"), ["private/key.py", "private"]),
        (lambda code: (code / "link.py").unlink(), ["link.py"]),
        (lambda code: ((code / "link.py").unlink(), (code / "link.py").write_text("x")), ["link.py"]),
        (replace_by_folder, ["train.py"]),
        (link_outside, ["pkg/deep/model.py"]),
    ],
)
def test_what_changed_or_is_gone_comes_back(run, tree, harm, names):
    before = everything(run.code)
    harm(run.code)
    (run.code / "results.txt").write_text("made by the run")
    looked = tree.look(1)
    assert (list(looked.restored), looked.refused) == (names, "")
    assert names[0] in looked.describe()
    after = everything(run.code)
    assert after.pop("results.txt")[1] == b"made by the run"
    assert after == before
    assert tree.look(2).restored == ()


def test_what_the_run_made_of_a_file_is_kept(run, tree):
    (run.code / "train.py").write_text("print('rewritten')\n")
    looked = tree.look(3)
    assert (run.changed(3) / "train.py").read_text() == "print('rewritten')\n"
    assert str(run.changed(3)) in looked.describe()


def test_a_file_that_was_only_touched_is_no_news(run, tree):
    (run.code / "train.py").touch()
    assert tree.look(1).restored == ()


def test_nothing_is_written_through_a_link(run, tree):
    link_outside(run.code)
    (run.path / "elsewhere" / "deep" / "model.py").write_text("outside")
    tree.look(1)
    assert (run.path / "elsewhere" / "deep" / "model.py").read_text() == "outside"
    assert (run.code / "pkg" / "deep" / "model.py").read_text() == "layers = 1\n"


@pytest.mark.parametrize("damage", ["gone", "wrong"])
def test_where_the_store_cannot_help_the_attempt_is_refused_and_nothing_is_lost(run, tree, objects, damage):
    for path in objects.rglob("*"):
        if path.is_file():
            path.unlink() if damage == "gone" else path.write_text("wrong")
    (run.code / "train.py").write_text("print('rewritten')\n")
    looked = tree.look(1)
    assert looked.refused.startswith("train.py differs from the snapshot and cannot be restored")
    assert (run.code / "train.py").read_text() == "print('rewritten')\n"
    assert tree.look(2).refused, "said again"


def test_more_events_than_the_system_keeps_are_no_trouble(run, objects, monkeypatch):
    tree = SourceTree(run, objects, fresh=True)
    monkeypatch.setattr(ChangeWatch, "_read", lambda _self, _data, _found: False)
    (run.code / "train.py").write_text("x")
    assert tree.look(1).restored == ("train.py",)
    tree.close()


def test_files_that_the_run_makes_cost_no_look_at_all_others(run, objects, monkeypatch):
    tree = SourceTree(run, objects, fresh=True)
    monkeypatch.setattr(tree, "_look_at_all", lambda _attempt: pytest.fail("it looked"))
    (run.code / "out.txt").write_text("x")
    (run.code / "pkg" / "__pycache__").mkdir()
    (run.code / "outputs").mkdir()
    assert tree.look(1).restored == ()
    tree.close()
