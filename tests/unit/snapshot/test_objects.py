from __future__ import annotations

import hashlib
import os

import pytest

from gangline.domain.errors import NotFound, SnapshotRefused
from gangline.snapshot.manifest import CodeInfo, FileEntry, Manifest
from gangline.snapshot.objects import EMPTY_DIGEST, ObjectStore


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def store(tmp_path) -> ObjectStore:
    return ObjectStore(tmp_path / "home")


def leftovers(tmp_path) -> list[str]:
    return [name for _, _, names in os.walk(tmp_path / "home") for name in names if name.startswith(".")]


def test_put_and_open(store, tmp_path) -> None:
    digest = sha(b"content")
    assert store.missing([digest, digest, EMPTY_DIGEST]) == [digest, EMPTY_DIGEST]
    assert store.put_bytes(digest, [b"con", b"tent"])
    assert not store.put_bytes(digest, iter(()))
    assert store.put_bytes(EMPTY_DIGEST, [])
    assert store.missing([digest, EMPTY_DIGEST]) == []
    with store.open(digest) as source:
        assert source.read() == b"content"
    assert leftovers(tmp_path) == []


def test_put_file(store, tmp_path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"x" * 3_000_000)
    assert store.put_file(sha(path.read_bytes()), path)
    assert not store.put_file(sha(path.read_bytes()), path)


def test_bytes_that_are_others_are_not_stored(store, tmp_path) -> None:
    digest = sha(b"right")
    with pytest.raises(SnapshotRefused, match="are others"):
        store.put_bytes(digest, [b"wrong"])
    assert store.missing([digest]) == [digest]
    assert leftovers(tmp_path) == []


def test_a_transfer_that_breaks_leaves_nothing(store, tmp_path) -> None:
    def broken():
        yield b"half"
        raise ConnectionError

    with pytest.raises(ConnectionError):
        store.put_bytes(sha(b"whole"), broken())
    assert leftovers(tmp_path) == []


def test_a_file_that_was_emptied_by_a_power_cut_counts_as_missing(store, tmp_path) -> None:
    digest = sha(b"content")
    store.put_bytes(digest, [b"content"])
    (path,) = [path for path in (tmp_path / "home/objects").rglob("*") if path.is_file()]
    path.write_bytes(b"")
    assert store.missing([digest]) == [digest]
    assert store.put_bytes(digest, [b"content"])


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "", "a", "A" * 64, "g" * 64, "a" * 63 + "\n", "a/" * 32, "a" * 65]
)
def test_names_that_are_no_digests_are_refused(store, name) -> None:
    for call in (
        lambda: store.put_bytes(name, [b""]),
        lambda: store.open(name),
        lambda: store.get_manifest(name),
        lambda: store.missing([name]),
        lambda: store.discard(name),
    ):
        with pytest.raises(SnapshotRefused, match="not a digest"):
            call()


def test_what_is_not_there(store) -> None:
    with pytest.raises(NotFound):
        store.open(EMPTY_DIGEST)
    with pytest.raises(NotFound):
        store.get_manifest(EMPTY_DIGEST)
    store.discard(EMPTY_DIGEST)


def test_manifests(store) -> None:
    files = (FileEntry(path="d", kind="dir", mode=0o755),)
    first, second = (Manifest(files=files, code=CodeInfo(commit=commit)) for commit in ("a", "b"))
    assert store.put_manifest(first) == store.put_manifest(second) == first.digest
    assert store.get_manifest(first.digest) == second
