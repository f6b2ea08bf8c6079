"""Submitting, finding, looking and resuming."""

import hashlib
import json
import os
import sys

import pytest

from gangline.domain.errors import Conflict, GanglineError, NotFound, SpecInvalid, StillEnding
from gangline.domain.spec import EntryKind, ResumeMode, SnapshotRef, Strategy
from gangline.rundir.journal import JournalWriter
from gangline.snapshot.manifest import FileEntry, Manifest
from gangline.snapshot.objects import ObjectStore
from gangline.testing import make_spec


def pack(plant, **files: bytes):
    objects, entries = ObjectStore(plant.home.path), []
    for name, content in files.items():
        digest = hashlib.sha256(content).hexdigest()
        objects.put_bytes(digest, [content])
        entries.append(FileEntry(path=name.replace("__", "/"), kind="file", size=len(content), digest=digest))
    manifest = Manifest(files=tuple(FileEntry(**_dotted(entry)) for entry in entries))
    return SnapshotRef(digest=objects.put_manifest(manifest))


def _dotted(entry):
    return {"path": f"{entry.path}.py", "kind": entry.kind, "size": entry.size, "digest": entry.digest}


def submit(plant, *, key="key", **spec):
    return plant.commands.submit(make_spec(**spec), client={"user": "alice"}, key=key)


def test_a_submit_freezes_code_and_spec_and_fills_in_defaults(plant):
    detail = submit(plant, snapshot=pack(plant, train=b"print(1)"))
    assert detail["name"] == "train"
    assert detail["user"] == "alice"
    assert detail["spec"]["resources"]["procs_per_node"] == 1
    assert detail["spec"]["environment"]["python"] == sys.executable
    assert detail["code"]["num_files"] == 1
    assert plant.pokes == ["poke"]
    assert json.loads((plant.home.run(detail["id"]).spec).read_text()) == detail["spec"]
    plant.tick()
    assert (plant.home.run(detail["id"]).code / "train.py").read_bytes() == b"print(1)"


def test_a_pool_that_serves_as_it_did_before_its_file_had_a_fault_is_told_of(plant):
    plant.commands._admission._fault_of = lambda name: SpecInvalid(f"`pools.{name}.wrk` (pools.yaml, line 2)")
    detail = submit(plant, snapshot=pack(plant, train=b""))
    told = [event.message for event in plant.store.events(detail["id"])]
    assert any("as it was before: `pools.local.wrk` (pools.yaml, line 2)" in text for text in told)


def test_a_submit_with_the_same_key_is_the_same_run(plant):
    first = submit(plant, snapshot=pack(plant, train=b""))
    second = submit(plant, snapshot=pack(plant, train=b""))
    assert first["id"] == second["id"]
    assert len(list(plant.home.runs.iterdir())) == 1


def test_a_wrong_entry_is_refused_and_the_near_one_named(plant):  # L3
    with pytest.raises(SpecInvalid, match=r"train\.py"):
        submit(plant, entry="trian.py", snapshot=pack(plant, train=b""))
    assert plant.commands.list_runs() == []
    assert not any(plant.home.runs.iterdir())


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"pool": "locla"}, "Did you mean `local`"),
        ({"project": ""}, "no name of a project"),
        ({"nodes": 100}, "can never start"),
        ({"procs_per_node": 9}, "can never start"),
        ({"gpus_per_node": 1}, "can never start"),
        ({"python": "/no/such/python"}, "no interpreter"),
        ({"python": "/etc/passwd"}, "cannot be executed"),
        ({"path": "relative/folder"}, "not absolute"),
        ({"path": "/proc/checkpoints"}, "Nothing can be written"),
        ({"strategy": Strategy.RAY, "procs_per_node": 2}, "one node of a Ray cluster"),
        ({"secrets": ("TOKEN",)}, "keeps no secrets yet"),
        ({"env": {"A": "x\0y"}}, "NUL"),
        ({"name": "x" * 201}, "201 characters"),
    ],
)
def test_what_cannot_be_run_is_refused_before_it_waits(plant, wrong, words):
    spec = {"entry": "sleep", "entry_kind": EntryKind.COMMAND, **wrong}
    for call in (lambda: submit(plant, **spec), lambda: plant.commands.check(make_spec(**spec))):
        with pytest.raises(GanglineError, match=words):
            call()
    assert plant.commands.list_runs() == []
    assert not any(plant.home.runs.iterdir())


def test_a_required_checkpoint_is_looked_for_before_the_run_waits(plant, tmp_path):  # C5
    folder = tmp_path / "checkpoints"
    with pytest.raises(SpecInvalid, match=f"--resume required finds no complete checkpoint in `{folder}`"):
        plant.submit(path=str(folder), resume=ResumeMode.REQUIRED)
    assert not folder.exists()
    folder.mkdir()
    with pytest.raises(SpecInvalid, match="There is no checkpoint at all"):
        plant.submit(path=str(folder), resume=ResumeMode.REQUIRED)
    cut = folder / "step-0000000007.attempt-000"
    cut.mkdir()
    with pytest.raises(SpecInvalid, match=r"step-0000000007\.attempt-000 is not: "):
        plant.submit(path=str(folder), resume=ResumeMode.REQUIRED)
    assert list(plant.home.runs.iterdir()) == []
    manifest = {
        "version": 1,
        "step": 7,
        "attempt": 0,
        "world_size": 1,
        "run_id": "r",
        "time": 0.0,
        "files": {"a": {"size": 0}},
    }
    (cut / "a").touch()
    (cut / "manifest.json").write_text(json.dumps(manifest))
    assert plant.phase(plant.submit(path=str(folder), resume=ResumeMode.REQUIRED)) == "queued"


def test_a_snapshot_that_was_not_uploaded_is_refused(plant):
    with pytest.raises(NotFound):
        submit(plant, snapshot=SnapshotRef(digest="0" * 64))


def test_a_submit_that_fails_half_way_leaves_nothing(plant, monkeypatch):
    monkeypatch.setattr(plant.store, "add_run", _fail)
    with pytest.raises(RuntimeError):
        plant.submit()
    assert not any(plant.home.runs.iterdir())


def _fail(*_args):
    raise RuntimeError("no")


def test_a_check_shows_what_the_backend_would_get_and_stores_nothing(plant):
    launch = plant.commands.check(make_spec(entry="sleep", entry_kind=EntryKind.COMMAND, nodes=2, env={"K": "V"}))
    assert len(launch.commands) == 2
    told = json.loads(launch.files["launches/000/launch.json"])
    assert told["env"] == {"K": "V"}
    assert "made at launch" in told["token"]
    assert plant.commands.list_runs() == []
    assert not any(plant.home.runs.iterdir())


def test_names_of_any_kind_are_kept_and_get_a_plain_id(plant):
    run = plant.submit(name="Grüße 'n' \"quotes\" 🚀 $HOME")
    assert plant.commands.summary(run)["name"] == "Grüße 'n' \"quotes\" 🚀 $HOME"
    assert run.isascii()


def test_bytes_that_are_no_text_reach_the_launch_file(plant):
    run = plant.submit(env={"RAW": os.fsdecode(b"\xff\xfe")}, args=(os.fsdecode(b"a\xffb"),))
    plant.tick()
    told = plant.leader(run).told
    assert os.fsencode(told["env"]["RAW"]) == b"\xff\xfe"
    assert os.fsencode(told["args"][0]) == b"a\xffb"


def test_find_takes_ids_prefixes_names_and_latest(plant):
    first = plant.submit(name="alpha")
    plant.clock.advance(1)
    second = plant.submit(name="beta", key="2")
    assert plant.commands.find("latest") == second
    assert plant.commands.find(first) == first
    assert plant.commands.find("alp") == first
    assert plant.commands.find("beta") == second
    plant.submit(name="beta", key="3")
    with pytest.raises(Conflict, match="several runs"):
        plant.commands.find("beta")
    with pytest.raises(NotFound, match=first):
        plant.commands.find(first.replace("alpha", "alhpa"))
    with pytest.raises(NotFound):
        plant.commands.find("%")


def test_find_without_any_run_says_so(plant):
    with pytest.raises(NotFound, match="no runs yet"):
        plant.commands.find("latest")


def test_runs_are_listed_newest_first_and_filtered(plant):
    first = plant.submit(name="a")
    plant.clock.advance(1)
    second = plant.submit(name="b", key="2", project="other")
    assert [run["id"] for run in plant.commands.list_runs()] == [second, first]
    assert [run["id"] for run in plant.commands.list_runs(project="other")] == [second]
    assert [run["id"] for run in plant.commands.list_runs(name="a")] == [first]
    plant.commands.stop(first, grace_s=None, by="x")
    assert [run["id"] for run in plant.commands.list_runs(phase="stopped")] == [first]
    assert len(plant.commands.list_runs(limit=1)) == 1
    assert plant.commands.counts() == (0, 1)


def test_a_run_that_was_asked_to_stop_can_be_resumed_once_it_has_ended(plant):
    run = plant.submit()
    plant.tick()
    with pytest.raises(Conflict, match="is starting") as refused:
        plant.commands.resume(run, by="bob")
    assert not isinstance(refused.value, StillEnding)
    plant.commands.stop(run, grace_s=None, by="bob")
    with pytest.raises(StillEnding):
        plant.commands.resume(run, by="bob")


def test_resume_queues_the_next_attempt_with_fresh_budgets(plant):
    run = plant.submit(max_restarts=1)
    plant.tick()
    leader = plant.leader(run)
    leader.begin()
    leader.end("failed", next_step="restart", budget="user", restart_message="restart 1 of 1 (user)")
    leader.begin()
    leader.end("failed", restart_message="no restarts left")
    plant.tick()
    with pytest.raises(StillEnding):
        plant.commands.resume(run, by="bob")
    plant.backend.kill(run)
    plant.tick(2)
    assert plant.commands.resume(run, by="bob")["phase"] == "queued"
    plant.tick()
    told = plant.leader(run, 1).told
    assert told["first_attempt"] == 2
    assert told["restarts_used"]["user"] == 0
    plant.leader(run, 1).begin()
    plant.tick()
    summary = plant.commands.summary(run)
    assert (summary["phase"], summary["attempt"], summary["ended"]) == ("running", 2, None)


def test_what_has_succeeded_or_still_runs_is_not_resumed(plant):
    run = plant.submit()
    with pytest.raises(Conflict, match="Stop it first"):
        plant.commands.resume(run, by="bob")
    plant.tick()
    leader = plant.leader(run)
    leader.begin()
    leader.end("succeeded")
    plant.tick()
    plant.backend.kill(run)
    plant.tick(2)
    with pytest.raises(Conflict, match=f"Run `{run}` has succeeded"):
        plant.commands.resume(run, by="bob")


def test_pools_say_what_is_free(plant):
    plant.submit(procs_per_node=6)
    plant.tick()
    plant.submit(procs_per_node=6, key="2")
    (pool,) = plant.commands.pools()
    assert (pool["name"], pool["ranks"], pool["running"], pool["queued"]) == ("local", 8, 1, 1)


def test_a_waiting_run_says_why_it_waits(plant):
    first = plant.submit(procs_per_node=6)
    plant.clock.advance(1)
    second = plant.submit(procs_per_node=6, key="2")
    plant.tick()
    assert first in plant.commands.summary(second)["message"]


def test_a_metric_that_is_not_there_is_answered_with_those_that_are(plant):
    run = plant.submit()
    plant.tick()
    leader = plant.leader(run)
    leader.begin()
    leader.log({"loss": 1.0}, step=0)
    plant.tick()
    with pytest.raises(NotFound, match="Did you mean `loss`"):
        plant.commands.metric(run, "lss", rank=0, buckets=10)
    with pytest.raises(NotFound):
        plant.commands.metric(run, "loss", rank=5, buckets=10)


def test_values_that_are_not_finite_become_null(plant):
    run = plant.submit()
    plant.tick()
    leader = plant.leader(run)
    leader.begin()
    leader.log({"loss": float("nan"), "big": 10**400, "text": "no", "flag": True}, step=0)
    plant.tick()
    assert plant.commands.metrics(run) == {"loss": None, "big": None}
    (bucket,) = plant.commands.metric(run, "loss", rank=0, buckets=10)["buckets"]
    assert (bucket["count"], bucket["min"], bucket["mean"]) == (1, None, None)
    json.dumps(plant.commands.detail(run), allow_nan=False)


def test_a_name_wins_over_ids_that_begin_with_it(plant):
    run = plant.submit(name="ks")
    other = plant.submit(key="other", name="ksub")
    assert plant.commands.find("ks") == run
    assert plant.commands.find("ksub") == other
    assert plant.commands.find(run) == run


@pytest.mark.parametrize("text", ["{", "[]", '{"version": 1}', "\x00"])
def test_a_damaged_manifest_of_the_code_is_said_and_stops_no_look(plant, text):
    run = plant.submit()
    plant.home.run(run).code_manifest.write_text(text)
    code = plant.commands.detail(run)["code"]
    assert "code.json cannot be read" in code["fault"]


def test_system_serves_the_newest_samples_of_each_node(plant):
    run_id = plant.submit()
    assert plant.commands.system(run_id, attempt=None, samples=5) == []
    plant.tick()
    plant.leader(run_id).begin()
    plant.tick()
    path = plant.home.run(run_id).attempt(0).system(0)
    journal = JournalWriter(path)
    for number in range(2000):
        journal.write("sample", number=number, padding="x" * 200)
    journal.close()
    with path.open("ab") as file:
        file.write(b'{"kind": "sample", "num')
    (view,) = plant.commands.system(run_id, attempt=0, samples=700)
    assert [sample["number"] for sample in view["samples"]] == list(range(1300, 2000))
    assert (view["node"], view["attempt"]) == (0, 0)
    with pytest.raises(NotFound, match="no attempt 7"):
        plant.commands.system(run_id, attempt=7, samples=1)
