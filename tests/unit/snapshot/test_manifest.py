from __future__ import annotations

import json
import os

import pytest

from gangline.domain.errors import SnapshotRefused
from gangline.snapshot.diff import diff, render_unified
from gangline.snapshot.manifest import CodeInfo, Excluded, FileEntry, Manifest, is_digest, printable

A, B = "a" * 64, "b" * 64


def file(path: str, digest: str = A, *, mode: int = 0o644) -> FileEntry:
    return FileEntry(path=path, kind="file", mode=mode, size=1, digest=digest)


def link(path: str, target: str) -> FileEntry:
    return FileEntry(path=path, kind="link", mode=0, target=target)


def test_json_form_comes_back_and_is_plain_utf8() -> None:
    odd = os.fsdecode(b"\xff\n")
    code = CodeInfo(
        root="/p",
        commit="c",
        untracked=("u",),
        excluded=(Excluded(path="x", rule="r", num_files=None, size_bytes=3, examples=("x",)),),
    )
    files = (file(odd), link("l", odd), FileEntry(path="d", kind="dir", mode=0o755))
    manifest = Manifest(files=files, code=code)
    text = json.dumps(manifest.to_dict(), ensure_ascii=False)
    text.encode("utf-8")
    again = Manifest.from_dict(json.loads(text))
    assert again == manifest
    assert again.digest == manifest.digest
    assert again.find(odd) is not None


def test_digest_covers_the_tree_alone() -> None:
    tree = (file("a"), file("b", B))
    assert Manifest(files=tree).digest == Manifest(files=tree[::-1], code=CodeInfo(commit="x")).digest
    assert Manifest(files=tree).digest != Manifest(files=(file("a"), file("b", B, mode=0o755))).digest
    assert is_digest(Manifest(files=()).digest)


def test_counts() -> None:
    manifest = Manifest(files=(file("a"), file("b"), link("c", "a")))
    assert (manifest.num_files, manifest.size_bytes, manifest.digests()) == (2, 2, {A})


@pytest.mark.parametrize(
    "path", ["", "/etc/passwd", "..", "a/../b", "a//b", "./a", "a/", "a\0b", "../../x", "a/./b", "."]
)
def test_paths_that_leave_the_tree_are_refused(path: str) -> None:
    with pytest.raises(SnapshotRefused, match="plain relative path"):
        Manifest(files=(file(path),))


@pytest.mark.parametrize(
    "files",
    [
        (file("a"), file("a", B)),
        (link("a", "b"), file("a/x")),
        (file("a"), file("a/b/c")),
        (link("a", "../x"),),
        (link("d/a", "../../x"),),
        (link("p/q/s", "../.."), link("t", "p/q/s/..")),
        (link("a", ""),),
        (file("a", "no digest"),),
        (file("a", "A" * 64),),
        (file("a", mode=0o4755),),
        (FileEntry(path="a", kind="file", size=-1, digest=A),),
        (FileEntry(path="a", kind="device", digest=A),),  # type: ignore[arg-type]
    ],
)
def test_trees_that_contradict_themselves_are_refused(files: tuple[FileEntry, ...]) -> None:
    with pytest.raises(SnapshotRefused):
        Manifest(files=files)


@pytest.mark.parametrize("target", ["b", "../a/b", "./b/../c", "loop", "/abs"])
def test_links_that_stay_are_taken(target: str) -> None:
    manifest = Manifest(files=(link("a/l", target), link("a/loop", "loop")))
    assert [entry.target for entry in manifest.files] == [target, "loop"]


@pytest.mark.parametrize(
    "raw",
    [
        {},
        {"files": [{}]},
        {"files": [{"path": "a", "kind": "file"}]},
        {"files": [{"path_hex": "zz", "kind": "dir", "mode": 0}]},
        {"files": [{"path": 3, "kind": "dir", "mode": 0}]},
        {"files": [{"path": "\udc80", "kind": "dir", "mode": 0}]},
        {"files": 7},
        {"files": [], "code": {"excluded": [{}]}},
        {"files": [], "digest": A},
    ],
)
def test_json_that_is_no_manifest_is_refused(raw: dict) -> None:
    with pytest.raises(SnapshotRefused):
        Manifest.from_dict(raw)


def test_printable() -> None:
    assert printable("é 🐕") == "é 🐕"
    assert printable(os.fsdecode(b"a\xff")) == "a\\xff"


def test_diff() -> None:
    old = Manifest(files=(file("same"), file("gone"), file("text"), file("mode")))
    new = Manifest(files=(file("same"), file("text", B), file("new"), file("mode", mode=0o755)))
    found = diff(old, new)
    assert (found.added, found.removed, found.changed) == (("new",), ("gone",), ("mode", "text"))
    assert found
    assert not diff(old, old)


def test_unified_diff_of_text() -> None:
    assert render_unified("a.py", b"one\ntwo\n", b"one\n2") == (
        "--- a/a.py\n+++ b/a.py\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n\\ No newline at end of file\n"
    )
    assert render_unified("a", b"x", b"x") == ""
    assert render_unified("a", b"\0", b"x") == "Binary files a/a and b/a differ\n"
