"""Resume with a choice, rerun, debug: what the server makes of a run."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from pathlib import Path

import pytest

from gangline.control.again import DebugRequest, RerunRequest, ResumeRequest
from gangline.domain.errors import InvalidRequest, NotFound, SnapshotRefused, SpecInvalid
from gangline.domain.spec import EntryKind, SnapshotRef
from gangline.rundir.commits import commit, open_folder
from gangline.snapshot.manifest import FileEntry, Manifest
from gangline.snapshot.objects import ObjectStore
from gangline.testing import make_spec

ME = {"user": "bob", "folder": "/home/bob"}


def submit(plant, *, key="key", **spec):
    objects = ObjectStore(plant.home.path)
    content = b"print(1)"
    digest = hashlib.sha256(content).hexdigest()
    objects.put_bytes(digest, [content])
    manifest = Manifest(files=(FileEntry(path="train.py", kind="file", size=len(content), digest=digest),))
    snapshot = SnapshotRef(digest=objects.put_manifest(manifest))
    made = make_spec(**{"entry": "train.py", "args": ("--lr", "1"), "snapshot": snapshot, **spec})
    return plant.commands.submit(made, client=ME, key=key)["id"]


def save(plant, run, step, attempt=0, *, run_id=None, world_size=1) -> Path:
    root = plant.home.run(run).checkpoints
    owner = {"run_id": run_id or run, "numbered_by_platform": True}
    folder = open_folder(root, step, attempt, owner=owner)
    (folder / "model.pt").write_bytes(b"weights")
    commit(folder, step=step, attempt=attempt, world_size=world_size, run_id=run_id or run)
    return folder


def fail(plant, run, rank=1):
    plant.tick()
    leader = plant.leader(run, plant.store.run(run).launch)
    leader.begin()
    failure = {"rank": rank, "node": 0, "host": "h", "exit_code": 1}
    leader.end("failed", first_failure=failure)
    plant.tick()
    plant.backend.kill(run)
    plant.tick(3)
    assert plant.phase(run) == "failed"


def history(plant, run, kind):
    return [event for event in plant.store.events(run) if event.kind == kind]


# resume


def test_resume_from_a_step_tells_the_agents_where_the_branch_begins(plant):
    run = submit(plant, procs_per_node=2)
    fail(plant, run)
    chosen = save(plant, run, 200)
    save(plant, run, 300)
    plant.commands.resume(run, ResumeRequest(checkpoint="200"), by="bob")
    plant.tick()
    told = plant.leader(run, 1).told
    assert told["checkpoint"]["start_from"] == str(chosen)
    assert told["branch_attempt"] == told["first_attempt"] == 1
    said = [event.message for event in history(plant, run, "phase") if "Resumed" in event.message]
    assert said == ["Resumed by bob. It goes on from the checkpoint of step 200, which 1 ranks saved; there are 2 now."]


def test_a_later_resume_stays_on_the_branch_and_latest_is_what_it_saved(plant):
    run = submit(plant)
    fail(plant, run)
    save(plant, run, 200)
    save(plant, run, 300)
    plant.commands.resume(run, ResumeRequest(checkpoint="200"), by="bob")
    fail(plant, run)
    newest = save(plant, run, 210, attempt=1)
    plant.commands.resume(run, ResumeRequest(), by="bob")
    plant.tick()
    assert plant.leader(run, 2).told["branch_attempt"] == 1
    plant.commands.stop(run, grace_s=None, by="bob")
    plant.backend.kill(run)
    plant.tick(3)
    plant.commands.resume(run, ResumeRequest(checkpoint="latest"), by="bob")
    assert plant.commands.detail(run)["spec"]["checkpoint"]["start_from"] == str(newest)


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("250", r"step 250 of run .* is not there.*Complete ones of run .*: 100, 200\."),
        ("300", r"step 300 of run .* is not complete.*It has no manifest.*: 100, 200\."),
        ("newest", r"`newest` is no checkpoint.*RUN:STEP.*: 100, 200\."),
        ("/nowhere/step-0000000001.attempt-000", r"is no complete checkpoint.*no such folder"),
        ("/etc", r"is no complete checkpoint.*not that of a checkpoint folder"),
        ("nobody:3", "There is no run `nobody`"),
    ],
)
def test_only_a_complete_checkpoint_can_be_chosen_and_the_error_names_them(plant, word, says):
    run = submit(plant)
    fail(plant, run)
    save(plant, run, 100)
    save(plant, run, 200)
    (save(plant, run, 300) / "manifest.json").unlink()
    before = plant.store.run(run)
    with pytest.raises((NotFound, InvalidRequest)) as caught:
        plant.commands.resume(run, ResumeRequest(checkpoint=word), by="bob")
    assert re.search(says, str(caught.value), re.DOTALL), str(caught.value)
    assert plant.store.run(run) == before


def test_resume_on_other_sizes_is_a_revision_that_the_history_keeps(plant):
    run = submit(plant, nodes=2, procs_per_node=2)
    fail(plant, run)
    changes = {"resources": {"nodes": 1, "procs_per_node": 4}, "restarts": {"max_restarts": 5}}
    summary = plant.commands.resume(run, ResumeRequest(changes=changes), by="bob")
    assert (summary["nodes"], summary["procs_per_node"], summary["revision"]) == (1, 4, 1)
    event = history(plant, run, "revised")[0]
    assert "resources.nodes 2 → 1" in event.message
    assert {"key": "restarts.max_restarts", "values": [0, 5]} in event.data["changes"]
    folder = plant.home.run(run)
    assert json.loads(folder.spec.read_text())["resources"]["nodes"] == 2
    assert json.loads(folder.spec_revision(1).read_text())["resources"]["nodes"] == 1
    plant.restart_server()
    plant.tick()
    told = plant.leader(run, 1).told
    assert (told["nodes"], told["procs_per_node"], told["restarts"]["max_restarts"]) == (1, 4, 5)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"environment": {"env": {"A": "1"}}}, "`environment.env.A` of a run cannot change"),
        ({"args": ["--lr"]}, "`args` of a run cannot change"),
        ({"resources": {"nodes": 100}}, "can never start"),
        ({"resources": {"nodez": 1}}, "nodez"),
        ({"stop": {"time_limit_s": -1}}, "time_limit"),
    ],
)
def test_what_may_not_change_is_refused_and_the_run_stays_as_it_was(plant, changes, says):
    run = submit(plant)
    fail(plant, run)
    before = plant.store.run(run)
    with pytest.raises(InvalidRequest, match=says):
        plant.commands.resume(run, ResumeRequest(changes=changes), by="bob")
    assert plant.store.run(run) == before


def test_a_run_whose_interpreter_is_gone_is_told_apart(plant, tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)
    run = submit(plant, python=str(python))
    fail(plant, run)
    python.unlink()
    with pytest.raises(SpecInvalid, match=f"`{run}` cannot go on: There is no interpreter") as caught:
        plant.commands.resume(run, by="bob")
    assert f"gangline rerun {run} --python" in caught.value.fix


# rerun


def test_a_rerun_is_a_new_run_with_the_same_spec_and_code_that_starts_afresh(plant):
    run = submit(plant, procs_per_node=2, env={"A": "1"})
    fail(plant, run)
    save(plant, run, 200)
    again = plant.commands.rerun(run, RerunRequest(), client=ME, key="other")
    assert again["id"] != run
    assert again["rerun_of"] == run
    assert again["spec"] == plant.commands.detail(run)["spec"]
    plant.tick()
    told = plant.leader(again["id"]).told
    assert told["checkpoint"]["start_from"] is None
    assert told["checkpoint"]["path"] == str(plant.home.run(again["id"]).checkpoints)
    assert (plant.home.run(again["id"]).code / "train.py").read_bytes() == b"print(1)"


def test_a_rerun_takes_other_values_and_arguments(plant):
    run = submit(plant, env={"A": "1", "B": "2"})
    request = RerunRequest(changes={"environment": {"env": {"A": "9"}}, "name": "second"}, args=["--lr", "2"])
    spec = plant.commands.rerun(run, request, client=ME, key="other")["spec"]
    assert (spec["args"], spec["environment"]["env"], spec["name"]) == (["--lr", "2"], {"A": "9", "B": "2"}, "second")


def test_a_rerun_leaves_checkpoints_in_a_shared_folder_alone(plant, tmp_path):
    run = submit(plant, path=str(tmp_path / "shared"))
    spec = plant.commands.rerun(run, RerunRequest(), client=ME, key="other")["spec"]
    assert (spec["checkpoint"]["path"], spec["checkpoint"]["resume"]) == (str(tmp_path / "shared"), "never")


def test_a_rerun_can_begin_at_a_checkpoint_of_the_other_run(plant):
    run = submit(plant)
    chosen = save(plant, run, 200)
    for number, word in enumerate(("200", "latest", f"{run}:200", str(chosen))):
        request = RerunRequest(changes={"checkpoint": {"start_from": word}})
        spec = plant.commands.rerun(run, request, client=ME, key=f"again {number}")["spec"]
        assert spec["checkpoint"]["start_from"] == str(chosen)


def test_a_submit_can_begin_at_a_checkpoint_of_another_run(plant):
    run = submit(plant)
    chosen = save(plant, run, 200)
    second = submit(plant, key="second", start_from=f"{run}:latest")
    assert plant.commands.detail(second)["spec"]["checkpoint"]["start_from"] == str(chosen)
    with pytest.raises(InvalidRequest, match="does not say of which run"):
        submit(plant, key="third", start_from="200")


def test_the_same_key_makes_one_rerun(plant):
    run = submit(plant)
    ids = {plant.commands.rerun(run, RerunRequest(), client=ME, key="other")["id"] for _ in range(2)}
    assert len(ids) == 1


def test_code_that_is_not_stored_any_more_is_one_clear_error(plant):
    run = submit(plant)
    shutil.rmtree(plant.home.path / "objects")
    with pytest.raises(SnapshotRefused, match=f"code of run `{run}` is not stored any more") as caught:
        plant.commands.rerun(run, RerunRequest(), client=ME, key="other")
    assert "train.py" in caught.value.why
    assert len(plant.commands.list_runs()) == 1


def test_the_code_is_that_of_the_run_even_where_its_manifest_is_lost_elsewhere(plant):
    run = submit(plant)
    shutil.rmtree(plant.home.path / "snapshots")
    assert plant.commands.rerun(run, RerunRequest(), client=ME, key="other")["code"]["num_files"] == 1


# debug


def test_a_debug_run_is_a_smaller_world_that_cannot_harm_the_original(plant, tmp_path):
    run = submit(plant, nodes=2, procs_per_node=4, path=str(tmp_path / "shared"), env={"A": "1"}, data_version="v3")
    fail(plant, run)
    owner = {"run_id": run, "numbered_by_platform": True}
    folder = open_folder(tmp_path / "shared", 200, 0, owner=owner)
    (folder / "model.pt").write_bytes(b"weights")
    commit(folder, step=200, attempt=0, world_size=8, run_id=run)
    made = plant.commands.debug(run, DebugRequest(pdb=True), client=ME, key="debug")
    spec = made["spec"]
    assert (made["debug_of"], made["labels"], made["nodes"], made["procs_per_node"]) == (run, {"debug": run}, 1, 2)
    assert (spec["checkpoint"]["path"], spec["checkpoint"]["start_from"]) == (None, str(folder))
    assert spec["restarts"]["max_restarts"] == spec["restarts"]["max_infrastructure_restarts"] == 0
    assert (spec["pdb_rank"], spec["data_version"], spec["args"]) == (1, "v3", ["--lr", "1"])
    assert spec["environment"]["env"] == {"A": "1"}
    assert spec["watch"]["on_hang"] == "warn"
    plant.tick()
    assert plant.leader(made["id"]).told["pdb_rank"] == 1


def test_the_smaller_world_has_the_rank_that_failed(plant):
    run = submit(plant, nodes=2, procs_per_node=4)
    fail(plant, run, rank=3)
    made = plant.commands.debug(run, DebugRequest(pdb=True), client=ME, key="debug")
    assert (made["procs_per_node"], made["spec"]["pdb_rank"]) == (4, 3)
    with pytest.raises(InvalidRequest, match="Rank 3, which failed first, is not in a world of 2") as refused:
        plant.commands.debug(run, DebugRequest(pdb=True, procs_per_node=2), client=ME, key="small")
    assert "--rank 1" in str(refused.value)
    assert plant.commands.debug(run, DebugRequest(), client=ME, key="plain")["procs_per_node"] == 2


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (DebugRequest(rank=1), "no debugger is asked for"),
        (DebugRequest(rank=2, pdb=True), "Rank 2 is not in a world of 2"),
        (DebugRequest(checkpoint="7"), "step 7"),
        (DebugRequest(procs_per_node=50), "can never start"),
    ],
)
def test_a_debug_run_that_cannot_be_is_refused(plant, request_, says):
    run = submit(plant, procs_per_node=2)
    with pytest.raises((InvalidRequest, NotFound), match=says):
        plant.commands.debug(run, request_, client=ME, key="debug")


def test_only_python_is_debugged(plant):
    run = plant.submit(entry="sleep", entry_kind=EntryKind.COMMAND)
    with pytest.raises(InvalidRequest, match="is a command, and --pdb needs"):
        plant.commands.debug(run, DebugRequest(pdb=True), client=ME, key="debug")
    assert plant.commands.debug(run, DebugRequest(), client=ME, key="debug")["spec"]["pdb_rank"] is None
