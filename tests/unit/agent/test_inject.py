from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gangline.agent.failure import describe
from gangline.agent.inject import bundle_root, render_helper_environment, render_injection, write_injected
from gangline.agent.starter import RankStart
from gangline.agent.warm import HelperPlan, decide_helper_environment, render_interpreter_argv, render_request

RANK = RankStart(
    rank=1,
    local_rank=1,
    env={"A": "x=y", "RANK": "1"},
    cwd="/code",
    log_path="/logs/1.log",
    error_path="/logs/1.error",
    stacks_path="/logs/1.stacks",
    entry_kind="script",
    entry="train.py",
    args=("--lr", "1"),
    python="/bin/python3",
)
PLAN = HelperPlan(
    argv=("/bin/python3", "train.py", "--lr", "1"),
    cwd="/code",
    env={"A": "x=y"},
    path_start="/code",
    modules=("torch",),
    folder=Path("/launch"),
)


def settings_of(env):
    return dict(field.split("=", 1) for field in env["GANGLINE_INJECTED"].split("\x1f"))


@pytest.mark.parametrize(("old", "new", "noted"), [(None, "/i", ""), ("", "/i", "empty"), ("lib:x", "/i:lib:x", "")])
def test_the_folder_stands_in_front_of_the_path(old, new, noted):
    rank = RANK if old is None else replace(RANK, env={**RANK.env, "PYTHONPATH": old})
    env = render_injection(rank, folder=Path("/i"))
    assert env["PYTHONPATH"] == new
    assert settings_of(env) == {
        "pythonpath": noted,
        "mode": "exec",
        "bundle": bundle_root(),
        "offered": "/i/offered",
        "error": "/logs/1.error",
        "stacks": "/logs/1.stacks",
        "signal": "62",
        "descriptor": "250",
    }
    assert {name: env[name] for name in ("A", "RANK")} == RANK.env


def test_the_helper_is_told_what_to_import():
    env = render_helper_environment(
        {}, folder=Path("/i"), socket=5, start="/code", modules=["torch", "?x"], timeout_s=9
    )
    assert settings_of(env) == {
        "pythonpath": "",
        "mode": "probe",
        "bundle": bundle_root(),
        "offered": "/i/offered",
        "socket": "5",
        "start": "/code",
        "modules": "torch ?x",
        "timeout_s": "9",
    }


def test_what_is_injected_is_there(tmp_path):
    write_injected(tmp_path)
    write_injected(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "debugger.py",
        "failure.py",
        "offered",
        "sitecustomize.py",
        "warmchild.py",
        "warmhelper.py",
    ]


def test_what_is_offered_is_the_package_itself(tmp_path):
    write_injected(tmp_path)
    code = "import gangline, gangline.rundir.layout as l; print(gangline.__file__, l.__file__, gangline.current().rank)"
    said = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.append({str(tmp_path / 'offered')!r}); {code}"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    own = Path(bundle_root(), "gangline", "rundir", "layout.py")
    assert said == [str(tmp_path / "offered" / "gangline" / "__init__.py"), str(own), "0"]


def test_the_bundle_holds_the_package():
    assert (Path(bundle_root()) / "gangline" / "agent" / "inject.py").exists()
    assert bundle_root("/x/agent.pyz/gangline/agent/inject.py") == "/x/agent.pyz"


def test_a_request_carries_any_bytes():
    name = "/logs/\udcff ü"
    request = json.loads(render_request(replace(RANK, log_path=name), parent=7))
    assert request["log_path"].encode("latin-1") == os.fsencode(name)
    assert request["parent"] == 7
    assert request["env"] == RANK.env


def test_a_helper_is_started_without_what_differs_between_ranks():
    env = {"RANK": "3", "LOCAL_RANK": "1", "MASTER_PORT": "1", "GANGLINE_ATTEMPT": "0", "WORLD_SIZE": "4", "A": "b"}
    assert decide_helper_environment(env) == {"WORLD_SIZE": "4", "A": "b"}


@pytest.mark.parametrize(
    ("changes", "suits"),
    [
        ({}, True),
        ({"env": {"RANK": "9", "ANY": "thing"}}, True),
        ({"env": {"OMP_NUM_THREADS": "2"}}, False),
        ({"env": {"PYTHONHASHSEED": "2"}}, False),
        ({"args": ("--lr", "2")}, False),
        ({"cwd": "/other"}, False),
        ({"entry_kind": "module"}, False),
    ],
)
def test_which_ranks_a_helper_can_fork(changes, suits):
    assert PLAN.suits(replace(RANK, **changes)) == suits


def test_how_an_interpreter_is_started():
    assert render_interpreter_argv("py", "script", "a.py", ["x"]) == ("py", "a.py", "x")
    assert render_interpreter_argv("py", "module", "a.b", ["x"]) == ("py", "-m", "a.b", "x")
    assert render_interpreter_argv("py", "script", "-a.py", ["x"]) == ("py", "./-a.py", "x")


def raised(error):
    try:
        raise error
    except type(error) as caught:
        return caught


def test_an_error_is_described_as_it_is_printed():
    told = describe(raised(ValueError("wörds")))
    assert (told["type"], told["message"]) == ("ValueError", "wörds")
    assert told["traceback"].startswith("Traceback (most recent call last):")
    assert told["traceback"].endswith("ValueError: wörds\n")


def test_an_error_of_a_library_is_named_with_its_module():
    assert describe(json.JSONDecodeError("m", "", 0))["type"] == "json.decoder.JSONDecodeError"


def test_a_description_is_bounded():
    told = describe(raised(ValueError("x" * 100_000)))
    assert "in raised" in told["traceback"], "the message leaves room for the frames"
    assert len(told["message"]) == 4_000
    assert len(told["traceback"]) < 5_000
