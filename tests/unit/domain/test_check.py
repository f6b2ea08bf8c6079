"""What a spec must be before it may wait."""

import math
from dataclasses import replace

import pytest

from gangline.domain.check import check_entry, check_spec, complete_spec, doubt_gpus
from gangline.domain.errors import SpecInvalid
from gangline.domain.spec import EntryKind, ResumeMode, SlurmOptions, SnapshotRef, Strategy
from gangline.testing import make_capacity, make_spec

TREE = {"train.py", "lib/model.py", "lib/__init__.py", "lib/run/__main__.py", "note.ipynb", "data.csv", "run.sh"}


def in_folder(workdir, **spec):
    return make_spec(**spec, snapshot=SnapshotRef(digest="0" * 64, workdir=workdir))


def test_a_plain_spec_is_accepted():
    check_spec(make_spec())
    check_spec(
        make_spec(nodes=4, procs_per_node=8, gpus_per_node=8, time_limit_s=60.0, path="/x", env={"A": "=$'\"\n ü"})
    )


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"entry": " "}, "nothing to run"),
        ({"name": ""}, "name is empty"),
        ({"name": "a\nb"}, "control characters"),
        ({"project": "a/b"}, "no name of a project"),
        ({"project": "../x"}, "no name of a project"),
        ({"nodes": 0}, "--nodes is 0"),
        ({"procs_per_node": 0}, "--procs-per-node is 0"),
        ({"gpus_per_node": -1}, "--gpus-per-node is -1"),
        ({"cpus_per_rank": 0}, "--cpus-per-rank is 0"),
        ({"memory_bytes": 0}, "--memory is 0"),
        ({"keep_last": -1}, "--keep-last is -1"),
        ({"max_restarts": -1}, "--max-restarts is -1"),
        ({"max_infrastructure_restarts": -1}, "--max-infra-restarts is -1"),
        ({"max_preemptions": -1}, "--max-preemptions is -1"),
        ({"time_limit_s": 0.0}, "--time-limit is 0"),
        ({"time_limit_s": 9.0, "time_limit_notice_s": 9.0}, "--time-limit-notice is 9 seconds, and --time-limit 9"),
        ({"max_continuations": -1}, "--max-continuations is -1"),
        ({"signatures": {"(": "storage: x"}}, "no regular expression"),
        ({"start_timeout_s": 0.0}, "--start-timeout is 0"),
        ({"grace_s": -1.0}, "--stop-grace is -1"),
        ({"grace_s": math.nan}, "--stop-grace is nan"),
        ({"failure_grace_s": math.inf}, "--failure-grace is inf"),
        ({"backoff_s": -1.0}, "--restart-backoff is -1"),
        ({"max_backoff_s": -1.0}, "--restart-max-backoff is -1"),
        ({"env": {"": "x"}}, "without a name"),
        ({"env": {"A=B": "x"}}, "the variable `A=B`"),
        ({"env": {"A B": "x"}}, "letters, digits and underscores"),
        ({"env": {"1X": "x"}}, "begin with a digit"),
        ({"labels": {"a=b": "x"}}, "holds a `=`"),
        ({"inherited_env": {"": "x"}}, "no name of a variable"),
        ({"env": {"A": "a\0b"}}, "NUL"),
        ({"env": {"A": "x" * 200_000}}, "bytes"),
        ({"env": {"RANK": "3"}}, "its own value"),
        ({"env": {"GANGLINE_RUN_ID": "3"}}, "its own value"),
        ({"inherited_env": {"A": "\0"}}, "NUL"),
        ({"args": ("a\0",)}, "NUL"),
        ({"args": ("x" * 200_000,)}, "bytes"),
        ({"outputs": ("",)}, "empty"),
        ({"labels": {"": "x"}}, "empty"),
        ({"data_version": "\0"}, "NUL"),
        ({"secrets": ("S",)}, "secrets"),
        ({"preload": ("torch; rm",)}, "no name of a module"),
        ({"path": "checkpoints"}, "not absolute"),
        ({"resume": ResumeMode.REQUIRED}, "--checkpoint-path"),
        ({"snapshot": SnapshotRef(digest="0" * 64, workdir="../up")}, "outside the packed tree"),
        ({"snapshot": SnapshotRef(digest="0" * 64, workdir="/abs")}, "outside the packed tree"),
    ],
)
def test_what_is_wrong_is_named(wrong, words):
    with pytest.raises(SpecInvalid, match=words):
        check_spec(make_spec(**wrong))


def test_a_node_of_a_ray_cluster_is_one_rank():
    check_spec(make_spec(strategy=Strategy.RAY))
    with pytest.raises(SpecInvalid, match="--procs-per-node is 2, and --strategy is ray"):
        check_spec(make_spec(strategy=Strategy.RAY, procs_per_node=2))
    capacity = make_capacity(devices=tuple(map(str, range(8))))
    resources = complete_spec(make_spec(strategy=Strategy.RAY, gpus_per_node=4), capacity).resources
    assert (resources.procs_per_node, resources.gpus_per_node) == (1, 4)


def test_variables_of_the_shell_may_have_any_name_that_a_shell_can_pass():
    check_spec(make_spec(inherited_env={"BASH_FUNC_x%%": "() { :; }", "RANK": "7"}))


@pytest.mark.parametrize(
    ("asked", "devices", "expected"),
    [
        ({}, 0, (1, 0)),
        ({}, 4, (1, 1)),
        ({"gpus_per_node": 4}, 8, (4, 4)),
        ({"procs_per_node": 2}, 0, (2, 0)),
        ({"procs_per_node": 2}, 8, (2, 2)),
        ({"procs_per_node": 2, "gpus_per_node": 0}, 8, (2, 0)),
        ({"procs_per_node": 2, "gpus_per_node": 4}, 8, (2, 4)),
    ],
)
def test_ranks_and_gpus_follow_from_one_another(asked, devices, expected):
    capacity = make_capacity(devices=tuple(map(str, range(devices))))
    resources = complete_spec(make_spec(**asked), capacity).resources
    assert (resources.procs_per_node, resources.gpus_per_node) == expected


def test_a_default_of_gpus_for_a_pool_that_has_not_said_what_it_has_is_warned_of():
    unknown = make_capacity(devices=(), knows_devices=False)
    assert "asks for no GPU. Say how many" in doubt_gpus(make_spec(), unknown)
    for plain in (make_spec(gpus_per_node=0), make_spec(gpus_per_node=4), make_spec(slurm=SlurmOptions(gres="gpu:2"))):
        assert doubt_gpus(plain, unknown) is None
    assert doubt_gpus(make_spec(), make_capacity(devices=())) is None


def shell(line: str) -> dict[str, object]:
    """As `submit -- "a line"` makes it."""
    return {"entry": "bash", "entry_kind": EntryKind.COMMAND, "args": ("-eo", "pipefail", "-c", line)}


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ({"entry": "a/train.py"}, "train"),
        ({"entry": "note.ipynb"}, "note"),
        ({"entry": "pkg.train", "entry_kind": EntryKind.MODULE}, "pkg.train"),
        ({"entry": "/usr/bin/env", "entry_kind": EntryKind.COMMAND}, "env"),
        ({"entry": "./run.sh", "entry_kind": EntryKind.COMMAND}, "run"),
        (shell("./tool.sh a | tee log"), "tool"),
        (shell("A=1 python -u sub/eval.py --x"), "eval"),
        (shell("(./prepare && ./train)"), "prepare"),
        (shell(" "), "bash"),
        ({"entry": "bash", "entry_kind": EntryKind.COMMAND, "args": ("run.sh", "x")}, "run"),
        ({"entry": "torchrun", "entry_kind": EntryKind.COMMAND, "args": ("train.py",)}, "train"),
        ({"entry": "torch.distributed.run", "entry_kind": EntryKind.MODULE, "args": ("train.py",)}, "train"),
        ({"entry": "train.py", "name": "mine"}, "mine"),
    ],
)
def test_a_run_is_named_after_what_it_runs(spec, name):
    assert complete_spec(make_spec(**spec), make_capacity()).name == name


@pytest.mark.parametrize(
    ("workdir", "entry", "kind"),
    [
        (".", "train.py", EntryKind.SCRIPT),
        (".", "./lib/../train.py", EntryKind.SCRIPT),
        ("lib", "model.py", EntryKind.SCRIPT),
        ("lib", "../train.py", EntryKind.SCRIPT),
        (".", "note.ipynb", EntryKind.NOTEBOOK),
        (".", "lib.model", EntryKind.MODULE),
        (".", "lib.run", EntryKind.MODULE),
        (".", "bash", EntryKind.COMMAND),
        (".", "/bin/bash", EntryKind.COMMAND),
        (".", "./run.sh", EntryKind.COMMAND),
    ],
)
def test_entries_that_are_in_the_tree(workdir, entry, kind):
    assert check_entry(in_folder(workdir, entry=entry, entry_kind=kind), TREE) is None


@pytest.mark.parametrize(
    ("workdir", "entry", "kind", "words"),
    [
        (".", "trian.py", EntryKind.SCRIPT, "Did you mean `train.py`"),
        ("lib", "train.py", EntryKind.SCRIPT, r"Did you mean `\.\./train\.py`"),
        (".", "lib", EntryKind.SCRIPT, "is a folder"),
        (".", "/abs/train.py", EntryKind.SCRIPT, "absolute path"),
        (".", "../train.py", EntryKind.SCRIPT, "has no"),
        (".", "./rnu.sh", EntryKind.COMMAND, "run.sh"),
        (".", "lib/model.py", EntryKind.MODULE, "no name of a module"),
    ],
)
def test_entries_that_are_not(workdir, entry, kind, words):
    with pytest.raises(SpecInvalid, match=words):
        check_entry(in_folder(workdir, entry=entry, entry_kind=kind), TREE)


@pytest.mark.parametrize("words", ["bash rnu.sh", "torchrun --nproc-per-node 2 trian.py", "python -u trian.py"])
def test_a_script_behind_a_launcher_is_looked_up_too(words):
    entry, *args = words.split()
    spec = {"entry": entry, "entry_kind": EntryKind.COMMAND}
    right = tuple(word.replace("rnu", "run").replace("trian", "train") for word in args)
    assert check_entry(in_folder(".", **spec, args=right), TREE) is None
    with pytest.raises(SpecInvalid, match="Did you mean"):
        check_entry(in_folder(".", **spec, args=tuple(args)), TREE)


def test_what_lies_behind_a_link_to_a_folder_may_be_there():
    assert check_entry(make_spec(entry="link/train.py"), {"link"}) is None


def test_modules_that_may_be_installed_are_warned_about_only():
    module = replace(make_spec(), entry_kind=EntryKind.MODULE)
    assert "has to be installed" in (check_entry(replace(module, entry="torch.run"), TREE) or "")
    assert "but not the module" in (check_entry(replace(module, entry="lib.nothing"), TREE) or "")


def test_an_empty_tree_has_nothing_to_suggest():
    with pytest.raises(SpecInvalid, match="no script at all"):
        check_entry(make_spec(), set())


@pytest.mark.parametrize(
    ("entry", "name"),
    [("\udcff.py", "_"), ("tr\udce4in\x07.py", "tr_in_"), ("x" * 250 + ".py", "x" * 200), (" .py", "run")],
)
def test_a_name_that_nobody_gave_is_legal(entry, name):
    completed = complete_spec(make_spec(entry=entry, name=None), make_capacity())
    assert completed.name == name
    check_spec(completed)


def test_all_that_no_pool_could_run_is_said_at_once():
    spec = make_spec(name="\0")
    resources = replace(spec.resources, nodes=0, procs_per_node=-1)
    spec = replace(spec, resources=resources, stop=replace(spec.stop, grace_s=-1.0))
    with pytest.raises(SpecInvalid) as caught:
        check_spec(spec)
    assert caught.value.what == "The spec has 4 faults"
    assert [fault.what.partition(" is ")[0] for fault in caught.value.faults[1:]] == [
        "--nodes",
        "--procs-per-node",
        "--stop-grace",
    ]
