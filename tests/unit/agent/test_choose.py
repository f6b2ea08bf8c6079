from __future__ import annotations

import pytest

from gangline.agent.choose import StarterPlan, decide_modules


def plan(tmp_path, **changes):
    values = {
        "start": "auto",
        "entry_kind": "script",
        "entry": "train.py",
        "args": (),
        "python": "/usr/bin/python",
        "cwd": str(tmp_path),
        "preload": (),
        "env": {"OMP_NUM_THREADS": "1"},
        "folder": tmp_path,
    }
    return StarterPlan(**{**values, **changes})


@pytest.fixture
def torch_script(tmp_path):
    (tmp_path / "train.py").write_text("import torch")


@pytest.mark.usefixtures("torch_script")
def test_a_torch_script_starts_warm(tmp_path):
    modules, reason = decide_modules(plan(tmp_path), platform="linux")
    assert (modules[0], reason) == ("torch", None)
    assert "?torch.distributed" in modules


@pytest.mark.usefixtures("torch_script")
def test_exec_is_exec(tmp_path):
    assert decide_modules(plan(tmp_path, start="exec", preload=("x",)), platform="linux") == (None, None)


def test_nothing_heavy_starts_by_exec_unless_warm_is_asked_for(tmp_path):
    assert decide_modules(plan(tmp_path), platform="linux") == (None, None)
    assert decide_modules(plan(tmp_path, start="warm"), platform="linux") == ((), None)
    assert decide_modules(plan(tmp_path, preload=("mine",)), platform="linux") == (("+mine",), None)


@pytest.mark.usefixtures("torch_script")
def test_a_listed_module_is_imported_once_and_as_listed(tmp_path):
    modules, _ = decide_modules(plan(tmp_path, preload=("torch", "mine")), platform="linux")
    assert modules[-2:] == ("+torch", "+mine")
    assert "torch" not in modules


@pytest.mark.parametrize(
    ("changes", "platform", "reason"),
    [
        ({"entry_kind": "command"}, "linux", "a command cannot be started warm"),
        ({}, "darwin", "warm start needs Linux"),
    ],
)
def test_warm_start_that_cannot_be_is_explained_where_it_was_asked_for(tmp_path, changes, platform, reason):
    modules, said = decide_modules(plan(tmp_path, start="warm", **changes), platform=platform)
    assert modules is None
    assert reason in said
    assert decide_modules(plan(tmp_path, **changes), platform=platform) == (None, None)


def test_code_that_sets_what_torch_reads_at_import_starts_by_exec(tmp_path):
    (tmp_path / "train.py").write_text("import os\nos.environ['OMP_NUM_THREADS'] = '4'\nimport torch")
    modules, reason = decide_modules(plan(tmp_path), platform="linux")
    assert modules is None
    assert "sets OMP_NUM_THREADS before it imports torch" in reason
    assert decide_modules(plan(tmp_path, start="warm"), platform="linux")[0] is not None


def test_a_default_matters_only_where_nothing_is_set(tmp_path):
    (tmp_path / "train.py").write_text("import os\nos.environ.setdefault('OMP_NUM_THREADS', '4')\nimport torch")
    assert decide_modules(plan(tmp_path), platform="linux")[0] is not None
    assert decide_modules(plan(tmp_path, env={}), platform="linux")[0] is None
