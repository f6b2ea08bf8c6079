"""Ended runs are removed: rows, folder, code that nobody else uses. Whoever is killed half-way can begin again."""

import hashlib
import json
import os
import sqlite3
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from gangline.control import removal
from gangline.control.adopt import adopt_runs
from gangline.control.removal import finish_removals
from gangline.domain.errors import Conflict, NotFound, StillEnding
from gangline.domain.spec import CheckpointPolicy, EntryKind, SnapshotRef
from gangline.snapshot.manifest import Manifest
from gangline.snapshot.objects import ObjectStore
from gangline.store.rows import NodeMark
from gangline.store.schema import metadata


@pytest.fixture
def ended(plant) -> str:
    run = plant.submit()
    plant.commands.stop(run, by="me", grace_s=None)
    folder = plant.home.run(run)
    folder.metrics(0).parent.mkdir()
    folder.metrics(0).write_text('{"k": "m", "a": 0, "t": 1.0, "s": 1, "v": {"loss": 1.0}}\n' * 500)
    save(folder.checkpoints, "step-0000000010.attempt-000")
    return run


def save(root: Path, name: str) -> None:
    (root / name).mkdir(parents=True)
    (root / name / "model.pt").write_bytes(b"x" * 8192)
    (root / name / "manifest.json").write_text("{}")


def rows_of(plant, run: str) -> dict[str, int]:
    with plant.store.reading() as conn:
        tables = {name: table for name, table in metadata.tables.items() if "run_id" in table.c}
        counts = {
            name: len(conn.execute(table.select().where(table.c.run_id == run)).all()) for name, table in tables.items()
        }
    return {name: count for name, count in counts.items() if count}


def test_nothing_of_a_removed_run_stays(plant, ended):
    size = plant.commands.measure(ended)
    assert (size["num_checkpoints"], size["checkpoint_path"]) == (1, None)
    assert size["size_bytes"] > size["checkpoints_bytes"] >= 8192
    removed = plant.commands.remove(ended, keep_checkpoints=False)
    assert removed == {"id": ended, "freed_bytes": size["size_bytes"], "kept": None, "left": []}
    assert list(plant.home.runs.iterdir()) == []
    assert rows_of(plant, ended) == {}
    with pytest.raises(NotFound):
        plant.commands.summary(ended)
    assert adopt_runs(plant.store, plant.home, plant.clock).runs == ()


def test_on_a_full_disk_the_files_go_first_as_the_rows_need_their_room(plant, ended, monkeypatch):
    remove_run, folders = plant.store.remove_run, []

    def only_with_room(run):
        folders.append(sorted(path.name for path in plant.home.runs.iterdir()))
        if folders[-1]:
            raise OperationalError("DELETE", {}, sqlite3.OperationalError("database or disk is full"))
        return remove_run(run)

    monkeypatch.setattr(plant.store, "remove_run", only_with_room)
    assert plant.commands.remove(ended, keep_checkpoints=False)["freed_bytes"] >= 8192
    assert folders == [[f".removed-{ended}"], []]
    assert rows_of(plant, ended) == {}


def test_other_trouble_of_the_database_leaves_the_files(plant, ended, monkeypatch):
    def broken(_run):
        raise OperationalError("DELETE", {}, sqlite3.OperationalError("no such table: runs"))

    monkeypatch.setattr(plant.store, "remove_run", broken)
    with pytest.raises(OperationalError):
        plant.commands.remove(ended, keep_checkpoints=False)
    assert (plant.home.runs / f".removed-{ended}" / "checkpoints").is_dir()


def test_metrics_go_and_those_of_other_runs_stay(plant):
    runs = [plant.submit(key="a"), plant.submit(key="b")]
    plant.tick()
    for run in runs:
        leader = plant.leader(run)
        leader.begin()
        leader.log({"loss": 1.0}, step=1)
        leader.end()
        plant.backend.kill(run)
    plant.clock.advance(5.0)
    plant.tick(5)
    assert [plant.commands.metrics(run) for run in runs] == [{"loss": 1.0}] * 2
    plant.commands.remove(runs[0], keep_checkpoints=False)
    assert plant.commands.metrics(runs[1]) == {"loss": 1.0}
    with plant.store.reading() as conn:
        counts = {name: len(conn.execute(metadata.tables[name].select()).all()) for name in ("series", "chunks")}
    assert counts == {"series": 1, "chunks": 1}


def test_what_a_run_says_against_a_machine_outlives_it(plant, ended):
    now = plant.clock.now()
    mark = NodeMark(pool="local", host="h1", run_id=ended, attempt=0, kind="hardware", time=now, detail="broken")
    plant.store.add_marks([mark])
    plant.commands.remove(ended, keep_checkpoints=False)
    assert plant.store.marks("local", since=0.0) == [mark]


def test_checkpoints_can_be_kept(plant, ended):
    kept = Path(plant.commands.remove(ended, keep_checkpoints=True)["kept"])
    assert kept == plant.home.kept / ended
    assert (kept / "step-0000000010.attempt-000" / "model.pt").stat().st_size == 8192


def test_checkpoints_in_a_folder_of_its_own_stay_and_are_named(plant, tmp_path):
    elsewhere = tmp_path / "models"
    run = plant.submit(checkpoint=CheckpointPolicy(path=str(elsewhere)))
    plant.commands.stop(run, by="me", grace_s=None)
    save(elsewhere, "step-0000000010.attempt-000")
    assert plant.commands.measure(run)["checkpoint_path"] == str(elsewhere)
    plant.commands.remove(run, keep_checkpoints=False)
    assert (elsewhere / "step-0000000010.attempt-000" / "model.pt").exists()


def test_only_what_is_over_is_removed(plant):
    run = plant.submit()
    with pytest.raises(Conflict, match=f"gangline stop {run}"):
        plant.commands.remove(run, keep_checkpoints=False)
    plant.tick()
    leader = plant.leader(run)
    leader.begin()
    plant.tick()
    with pytest.raises(Conflict, match="is running"):
        plant.commands.remove(run, keep_checkpoints=False)
    leader.end()
    plant.tick()
    with pytest.raises(StillEnding):
        plant.commands.remove(run, keep_checkpoints=False)
    plant.backend.kill(run)
    plant.tick(4)
    plant.commands.remove(run, keep_checkpoints=False)
    assert not plant.home.run(run).path.exists()


def test_a_run_whose_checkpoint_another_one_starts_from_stays(plant, ended):
    start = plant.home.run(ended).checkpoints / "step-0000000010.attempt-000"
    manifest = {"version": 1, "step": 10, "attempt": 0, "world_size": 1, "run_id": ended, "time": 0.0}
    manifest["files"] = {"model.pt": {"size": 8192, "crc32": None}}
    (start / "manifest.json").write_text(json.dumps(manifest))
    other = plant.submit(key="other", checkpoint=CheckpointPolicy(start_from=str(start)))
    with pytest.raises(Conflict, match=f"`{other}` starts from a checkpoint"):
        plant.commands.remove(ended, keep_checkpoints=True)
    plant.commands.stop(other, by="me", grace_s=None)
    plant.commands.remove(ended, keep_checkpoints=False)


class Killed(BaseException):
    """As kill -9 does: no handler runs."""


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("at", ["rename", "rows", "files"])
def test_a_second_removal_finishes_one_that_was_killed(plant, ended, monkeypatch, at, keep):
    def die(*_args, **_options):
        raise Killed

    with monkeypatch.context() as patch:
        if at == "rename":
            patch.setattr(removal, "_move_away", die)
        elif at == "rows":
            patch.setattr(plant.store, "remove_run", die)
        else:
            patch.setattr(removal.shutil, "rmtree", die)
        with pytest.raises(Killed):
            plant.commands.remove(ended, keep_checkpoints=keep)
    if at == "files":
        with pytest.raises(NotFound):
            plant.commands.remove(ended, keep_checkpoints=keep)
    else:
        assert plant.commands.remove(ended, keep_checkpoints=keep)["left"] == []
    assert adopt_runs(plant.store, plant.home, plant.clock).refused == ()
    finish_removals(plant.home)  # as the next server does when it starts
    assert list(plant.home.runs.iterdir()) == []
    assert rows_of(plant, ended) == {}
    assert (plant.home.kept / ended / "step-0000000010.attempt-000").exists() is keep


def test_a_run_that_is_resumed_at_that_moment_keeps_its_folder(plant, ended, monkeypatch):
    monkeypatch.setattr(plant.store, "remove_run", lambda _run: False)
    with pytest.raises(Conflict, match="changed by somebody else"):
        plant.commands.remove(ended, keep_checkpoints=False)
    assert plant.home.run(ended).spec.exists()


def test_links_are_removed_and_what_they_lead_to_stays(plant, ended, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("mine")
    folder = plant.home.run(ended).path
    (folder / "data").symlink_to(outside)
    (folder / "file").symlink_to(outside / "precious")
    plant.commands.remove(ended, keep_checkpoints=False)
    other = plant.submit(key="b")
    plant.commands.stop(other, by="me", grace_s=None)
    plant.home.run(other).path.rename(outside / "run")
    plant.home.run(other).path.symlink_to(outside / "run")
    plant.commands.remove(other, keep_checkpoints=False)
    assert not os.path.lexists(plant.home.run(other).path)
    assert (outside / "precious").read_text() == "mine"
    assert (outside / "run" / "spec.json").exists()


@pytest.mark.parametrize("word", ["..", ".", "", "../runs", "latest", "nowhere"])
def test_a_word_that_is_no_run_removes_nothing(plant, ended, word):
    with pytest.raises(NotFound):
        plant.commands.remove(word, keep_checkpoints=False)
    assert plant.home.run(ended).spec.exists()


def test_read_only_folders_are_removed(plant, ended):
    folder = plant.home.run(ended).path / "locked" / "deep"
    folder.mkdir(parents=True)
    (folder / "x").touch()
    folder.chmod(0o500)
    folder.parent.chmod(0o500)
    assert plant.commands.remove(ended, keep_checkpoints=False)["left"] == []
    assert list(plant.home.runs.iterdir()) == []


# code


@pytest.fixture
def code(plant):
    """Store a tree of files that was last asked for a day ago; its digest."""
    store = ObjectStore(plant.home.path)

    def put(**files: str) -> str:
        entries = []
        for name, text in sorted(files.items()):
            data = text.encode()
            digest = sha256(data)
            store.put_bytes(digest, [data])
            entries.append({"path": name, "kind": "file", "mode": 0o644, "size": len(data), "digest": digest})
        return store.put_manifest(make_manifest(entries))

    return put


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def make_manifest(entries) -> Manifest:
    digest = sha256(json.dumps(entries, sort_keys=True, separators=(",", ":")).encode())
    return Manifest.from_dict({"version": 1, "digest": digest, "files": entries, "code": {}})


def age(plant, seconds: float) -> None:
    """Everything stored so far was last asked for that long ago, by the clock of the server."""
    for path in [*plant.home.objects.rglob("*"), *plant.home.snapshots.iterdir()]:
        os.utime(path, (plant.clock.now() - seconds,) * 2)


def stored(plant) -> set[str]:
    return {path.read_text() for path in plant.home.objects.rglob("*") if path.is_file()}


def submit_code(plant, digest: str, key: str) -> str:
    ref = SnapshotRef(digest=digest)
    run = plant.submit(key=key, entry="train.py", entry_kind=EntryKind.SCRIPT, snapshot=ref)
    plant.commands.stop(run, by="me", grace_s=None)
    return run


def test_code_is_freed_once_no_run_uses_it(plant, code):
    first = submit_code(plant, code(**{"train.py": "one", "shared.py": "both"}), "a")
    second = submit_code(plant, code(**{"train.py": "two", "shared.py": "both"}), "b")
    age(plant, 86_400)
    assert plant.commands.free()["num_objects"] == 0
    plant.commands.remove(first, keep_checkpoints=False)
    freed = plant.commands.free()
    assert (freed["num_objects"], freed["num_snapshots"]) == (1, 1)
    assert stored(plant) == {"two", "both"}
    plant.commands.remove(second, keep_checkpoints=False)
    plant.commands.free()
    assert stored(plant) == set()


def test_code_of_a_submit_under_way_is_spared(plant, code):
    digest = code(**{"train.py": "new", "old.py": "uploaded long ago"})
    age(plant, 86_400)
    store = ObjectStore(plant.home.path)
    store.missing([sha256(b"new")])
    for path in plant.home.objects.rglob("*"):
        if path.is_file() and path.read_text() == "new":
            os.utime(path, (plant.clock.now(),) * 2)  # the clock of these tests stands elsewhere
    freed = plant.commands.free()
    assert (freed["num_objects"], freed["num_snapshots"]) == (1, 1)
    assert stored(plant) == {"new"}
    assert digest not in {path.stem for path in plant.home.snapshots.iterdir()}


def test_what_is_asked_for_counts_as_used_from_then_on(tmp_path):
    store = ObjectStore(tmp_path)
    (tmp_path / "objects").mkdir()
    digest = sha256(b"x")
    store.put_bytes(digest, [b"x"])
    [(path, _)] = store.object_files()
    os.utime(path, (0, 0))
    assert store.missing([digest, sha256(b"y")]) == [sha256(b"y")]
    assert path.stat().st_mtime > 1_000_000_000


@pytest.mark.parametrize("where", ["manifest", "folder"])
def test_nothing_is_freed_while_it_cannot_be_told_what_is_used(plant, code, where):
    run = submit_code(plant, code(**{"train.py": "one"}), "a")
    unused = code(**{"train.py": "unused"})
    age(plant, 86_400)
    digest = plant.store.run(run).snapshot
    if where == "manifest":
        (plant.home.snapshots / f"{digest}.json").write_text("torn")
    else:
        (plant.home.snapshots / f"{digest}.json").unlink()
        plant.home.run(run).code_manifest.write_text("torn")
    with pytest.raises(Conflict, match="Nothing of the stored code was freed"):
        plant.commands.free()
    assert (plant.home.snapshots / f"{unused}.json").exists()
    assert stored(plant) == {"one", "unused"}


def test_code_of_a_folder_that_the_store_does_not_know_stays(plant, code):
    run = submit_code(plant, code(**{"train.py": "one"}), "a")
    plant.home.run(run).path.rename(plant.home.runs / "strange-0000")
    plant.store.remove_run(plant.store.run(run))
    age(plant, 86_400)
    assert plant.commands.free()["num_objects"] == 0
    assert stored(plant) == {"one"}
