"""Random trees come back byte for byte, with the modes of files and folders."""
# ruff: noqa: PTH101, PTH103, PTH115, PTH123, PTH211
# Names are bytes here, which pathlib does not take.

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from gangline.snapshot.manifest import Manifest
from gangline.snapshot.objects import ObjectStore
from gangline.snapshot.pack import pack
from gangline.snapshot.restore import restore

NAME = st.binary(min_size=1, max_size=12).filter(
    lambda name: b"/" not in name and b"\0" not in name and name not in {b".", b"..", b".git", b".gitignore"}
)
FILE = st.tuples(st.just("file"), st.binary(max_size=64), st.sampled_from([0o644, 0o600, 0o755, 0o444]))
LINK = st.tuples(st.just("link"), NAME)
FOLDER_MODES = st.sampled_from([0o755, 0o700, 0o750, 0o777])


def folders(inside: st.SearchStrategy) -> st.SearchStrategy:
    return st.tuples(st.dictionaries(NAME, inside, max_size=4), FOLDER_MODES)


TREE = st.recursive(folders(FILE | LINK), lambda inner: folders(FILE | LINK | inner), max_leaves=12)


def build(folder: bytes, tree: tuple) -> None:
    os.makedirs(folder)
    for name, node in tree[0].items():
        path = folder + b"/" + name
        if isinstance(node[0], dict):
            build(path, node)
        elif node[0] == "link":
            os.symlink(node[1], path)
        else:
            with open(path, "wb") as file:
                file.write(node[1])
            os.chmod(path, node[2])
    os.chmod(folder, tree[1])


def read(folder: bytes) -> dict:
    found: dict = {}
    for entry in os.scandir(folder):
        if entry.is_symlink():
            found[entry.name] = ("link", os.readlink(entry.path))
        elif entry.is_dir():
            found[entry.name] = (read(entry.path), entry.stat().st_mode & 0o777)
        else:
            with open(entry.path, "rb") as file:
                found[entry.name] = ("file", file.read(), entry.stat().st_mode & 0o777)
    return found


@settings(max_examples=150, deadline=None)
@given(TREE)
def test_pack_json_restore(tree: tuple) -> None:
    with tempfile.TemporaryDirectory() as name:
        base = Path(os.path.realpath(name))
        build(os.fsencode(base / "project"), tree)
        packed = pack(base / "project", home=base / "home", include=["*"])
        store = ObjectStore(base / "home")
        for digest in store.missing(packed.manifest.digests()):
            store.put_file(digest, packed.sources[digest])
        manifest = Manifest.from_dict(json.loads(json.dumps(packed.manifest.to_dict(), ensure_ascii=False)))
        assert manifest == packed.manifest
        restored = restore(manifest, store, base / "copy")
        assert read(os.fsencode(restored)) == read(os.fsencode(base / "project"))
        assert pack(restored, home=base / "home", include=["*"]).manifest.digest == manifest.digest
