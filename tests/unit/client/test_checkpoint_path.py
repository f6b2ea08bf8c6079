"""A checkpoint path is made absolute by the client: where it is typed, or where the file lies that holds it."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from gangline.client.submission import prepare
from gangline.domain.check import check_spec, resolve_checkpoints
from gangline.domain.errors import SpecInvalid
from gangline.domain.spec import CheckpointPolicy, RunSpec
from gangline.wire.spec import partial_from_yaml, spec_from_yaml


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "project" / "jobs").mkdir(parents=True)
    (tmp_path / "project" / "train.py").write_text("")
    (tmp_path / "project" / "jobs" / "train.py").write_text("")
    return tmp_path / "project"


@pytest.mark.parametrize("cwd", [".", "jobs"])
@pytest.mark.parametrize(("given", "means"), [("ckpts", "ckpts"), ("./a/../ckpts/", "ckpts"), (".", "")])
def test_a_relative_path_starts_where_it_is_typed(project: Path, cwd: str, given: str, means: str):
    folder = (project / cwd).resolve()
    env = {"PATH": os.environ["PATH"], "HOME": "/nowhere", "GANGLINE_HOME": str(project.parent / "state")}
    spec = RunSpec(entry="train.py", checkpoint=CheckpointPolicy(path=given))
    prepared = prepare(spec, root=project, cwd=folder, environ=env).spec
    assert prepared.checkpoint.path == str(folder / means)
    check_spec(replace(prepared, snapshot=None))


def test_a_home_folder_is_expanded_and_an_absolute_path_stays(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", "/home/ada")
    assert resolve_checkpoints("~/ckpts", folder="/work") == "/home/ada/ckpts"
    assert resolve_checkpoints("/data/ckpts", folder="/work") == "/data/ckpts"


@pytest.mark.parametrize("name", ["run.yaml", "gangline.yaml"])
def test_a_path_in_a_file_starts_from_its_folder(project: Path, monkeypatch: pytest.MonkeyPatch, name: str):
    (project / "jobs" / name).write_text("script: train.py\ncheckpoint: {path: ../ckpts}\n")
    monkeypatch.chdir(project)
    assert partial_from_yaml(Path("jobs", name))["checkpoint"]["path"] == str(project / "ckpts")
    assert spec_from_yaml(project / "jobs" / name).checkpoint.path == str(project / "ckpts")


@pytest.mark.parametrize("url", ["s3://bucket/ckpts", "gs://bucket", "az://a/b", "file:///data"])
def test_an_object_store_is_not_taken_for_a_folder(url: str):
    with pytest.raises(SpecInvalid, match="object stores are not supported yet"):
        resolve_checkpoints(url, folder="/work")
    with pytest.raises(SpecInvalid, match="object stores are not supported yet"):
        check_spec(RunSpec(entry="train.py", checkpoint=CheckpointPolicy(path=url)))


def test_an_empty_path_is_not_the_current_folder():
    with pytest.raises(SpecInvalid, match="empty"):
        resolve_checkpoints(" ", folder="/work")


def test_the_server_still_refuses_what_is_relative():
    with pytest.raises(SpecInvalid, match="not absolute"):
        check_spec(RunSpec(entry="train.py", checkpoint=CheckpointPolicy(path="ckpts")))
