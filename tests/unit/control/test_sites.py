"""What of a run needs the machines of its pool is asked there; a pool that cannot be asked keeps nobody waiting."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gangline.control.again import DebugRequest, RerunRequest
from gangline.control.commands import Commands
from gangline.domain.errors import AuthFailed, NotFound, SpecInvalid
from gangline.domain.pool import PoolState, PoolStatus
from gangline.domain.spec import CheckpointPolicy, EntryKind, Environment, SlurmOptions
from gangline.store.rows import CheckpointRow, IngestBatch
from gangline.testing import FakeBackend, make_capacity, make_spec

LOGIN = AuthFailed("Pool `far` needs a login", fix="gangline pools login far")


@pytest.fixture
def far(plant) -> FakeBackend:
    """A second pool beside the plant's own."""
    backend = FakeBackend(make_capacity(ranks=8), home="/far")
    plant.commands = Commands(
        store=plant.store,
        backends={"local": plant.backend, "far": backend},
        home=plant.home,
        clock=plant.clock,
        poke=lambda: None,
    )
    return backend


def submit(plant, **spec) -> str:
    command = make_spec(**{"entry": "sleep", "entry_kind": EntryKind.COMMAND, **spec})
    return plant.commands.submit(command, client={}, key=str(spec))["id"]


def test_a_pool_that_needs_a_login_lets_the_run_wait_and_says_what_was_not_looked_at(plant, far):
    far.site.fault = LOGIN
    run = submit(
        plant,
        pool="far",
        environment=Environment(python="/far/python"),
        checkpoint=CheckpointPolicy(path="/far/ckpt", start_from="/far/ckpt/step-0000000001.attempt-000"),
    )
    assert plant.phase(run) == "queued"
    told = [event.message for event in plant.store.events(run) if event.kind == "warning"]
    assert len(told) == 1
    assert "were not looked at" in told[0]
    assert "gangline pools login far" in told[0]
    spec = plant.commands.detail(run)["spec"]
    assert spec["environment"]["python"] == "/far/python"
    assert spec["checkpoint"]["start_from"] == "/far/ckpt/step-0000000001.attempt-000"


def test_a_run_whose_interpreter_nobody_could_look_for_has_the_one_that_its_pool_names(plant, far):
    far.site.fault = LOGIN
    run = submit(plant, pool="far")
    assert plant.commands.detail(run)["spec"]["environment"]["python"] == sys.executable


def test_a_checkpoint_that_only_the_pool_can_name_needs_the_pool(plant, far):
    first = submit(plant, pool="far")
    far.site.fault = LOGIN
    with pytest.raises(AuthFailed, match="needs a login"):
        submit(plant, pool="far", checkpoint=CheckpointPolicy(start_from=f"{first}:latest"))


@pytest.mark.usefixtures("far")
def test_what_the_pool_says_is_wrong_is_refused(plant, tmp_path: Path):
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(SpecInvalid, match="Nothing can be written"):
        submit(plant, pool="far", checkpoint=CheckpointPolicy(path=str(file / "x")))
    with pytest.raises(SpecInvalid, match="There is no interpreter"):
        submit(plant, pool="far", environment=Environment(python="/far/python"))


def test_checkpoints_that_nobody_can_look_at_are_shown_as_recorded(plant, far):
    run = submit(plant, pool="far")
    folder = "/far/c/step-0000000003.attempt-000"
    row = CheckpointRow(path=folder, step=3, attempt=0, size_bytes=5, num_files=1, time=1.0, duration_s=None)
    plant.store.ingest(run, IngestBatch(cursors={}, checkpoints=[row]))
    far.site.fault = LOGIN
    (seen,) = plant.commands.checkpoints(run)
    assert (seen["step"], seen["state"], seen["size_bytes"]) == (3, "unseen", 5)
    assert "Pool `far` needs a login" in seen["why"]


def test_a_pool_that_was_removed_takes_no_new_runs_and_its_old_ones_can_be_shown(plant, far):
    run = submit(plant, pool="far")
    far.pool_state = PoolState(status=PoolStatus.REMOVED, text="gone")
    with pytest.raises(SpecInvalid, match=r"There is no pool `far`\. Valid: local"):
        submit(plant, pool="far", name="x")
    assert [pool["state"] for pool in plant.commands.pools()] == ["ready", "removed"]
    alone = Commands(
        store=plant.store, backends={"local": plant.backend}, home=plant.home, clock=plant.clock, poke=lambda: None
    )
    assert alone.detail(run)["pool"] == "far"


@pytest.mark.usefixtures("far")
def test_a_run_that_goes_to_another_pool_leaves_behind_what_means_nothing_there(plant):
    run = submit(plant, pool="far", slurm=SlurmOptions(partition="gpu"), environment=Environment(python="/usr/bin/env"))
    moved = plant.commands.rerun(run, RerunRequest(changes={"pool": "local"}), client={}, key="k2")
    assert moved["spec"]["slurm"]["partition"] is None
    assert moved["spec"]["environment"]["python"] != "/usr/bin/env"
    same = plant.commands.rerun(run, RerunRequest(), client={}, key="k3")
    assert same["spec"]["slurm"]["partition"] == "gpu"
    small = plant.commands.debug(run, DebugRequest(fresh=True), client={}, key="k4")
    assert (small["pool"], small["spec"]["slurm"]["partition"]) == ("local", None)


def test_a_checkpoint_of_another_pool_is_refused_where_the_machines_do_not_see_it(plant, far, tmp_path: Path):
    far.site.checkpoint = lambda _: None
    folder = tmp_path / "c"
    saved = folder / "step-0000000004.attempt-000"
    saved.mkdir(parents=True)
    (saved / "a").touch()
    (saved / "manifest.json").write_text(
        '{"version": 1, "step": 4, "attempt": 0, "world_size": 1, "run_id": "", "time": 0, "files": {"a": {"size": 0}}}'
    )
    run = submit(plant, checkpoint=CheckpointPolicy(path=str(folder)))
    with pytest.raises(NotFound, match="Pool `far` does not have the checkpoint"):
        submit(plant, pool="far", checkpoint=CheckpointPolicy(start_from=f"{run}:4"))
    assert submit(plant, checkpoint=CheckpointPolicy(start_from=f"{run}:4"))
