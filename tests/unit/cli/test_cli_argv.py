"""How the line of `gangline submit` is cut, and the slips that are refused before anything happens (U2, L3)."""

from __future__ import annotations

from pathlib import Path

import pytest

from gangline.cli.argv import Entry, parse_entry, split_line
from gangline.cli.specoptions import flag_table
from gangline.cli.submit import command
from gangline.domain.errors import InvalidRequest
from gangline.domain.spec import EntryKind

FLAGS = flag_table(command)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name in ("train.py", "evaluate.py", "look.ipynb", "run.yaml", "run.sh", "tool", "src/deep/finetune.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / "tool").chmod(0o755)
    return tmp_path


def entry_of(project: Path, *argv: str) -> Entry | None:
    return parse_entry(split_line(argv, FLAGS), flags=FLAGS, folder=project)


@pytest.mark.parametrize(
    ("argv", "kind", "entry", "args"),
    [
        (["train.py"], EntryKind.SCRIPT, "train.py", []),
        (["train.py", "--lr", "3e-4"], EntryKind.SCRIPT, "train.py", ["--lr", "3e-4"]),
        (["train.py", "--", "--lr", "3e-4"], EntryKind.SCRIPT, "train.py", ["--lr", "3e-4"]),
        (["train.py", "a", "--", "b"], EntryKind.SCRIPT, "train.py", ["a", "--", "b"]),
        (["train.py", "--", "--"], EntryKind.SCRIPT, "train.py", ["--"]),
        (["--nodes", "2", "--follow", "train.py", "-x"], EntryKind.SCRIPT, "train.py", ["-x"]),
        (["--nodes=2", "-F", "./train.py"], EntryKind.SCRIPT, "./train.py", []),
        (["--env", "A=1", "--env=B=x y", "train.py"], EntryKind.SCRIPT, "train.py", []),
        (["--name", "-odd-", "train.py"], EntryKind.SCRIPT, "train.py", []),
        (["look.ipynb", "p=1"], EntryKind.NOTEBOOK, "look.ipynb", ["p=1"]),
        (["-m", "pkg.train", "--", "--lr", "1"], EntryKind.MODULE, "pkg.train", ["--lr", "1"]),
        (["-m", "pkg.train", "-m", "x"], EntryKind.MODULE, "pkg.train", ["-m", "x"]),
        (["--", "./tool", "--", "-m"], EntryKind.COMMAND, "./tool", ["--", "-m"]),
        (["--", "tool with space"], EntryKind.COMMAND, "bash", ["-eo", "pipefail", "-c", "tool with space"]),
        (["python", "train.py", "-c", "1"], EntryKind.SCRIPT, "train.py", ["-c", "1"]),
        (["python3", "-u", "train.py"], EntryKind.SCRIPT, "train.py", []),
        (["--", "python", "train.py", "--lr", "1"], EntryKind.SCRIPT, "train.py", ["--lr", "1"]),
        (["--", "python3", "-m", "pkg", "x"], EntryKind.MODULE, "pkg", ["x"]),
        (["--", "python", "-c", "print(1)"], EntryKind.COMMAND, "python", ["-c", "print(1)"]),
        (["--", "python", "-X", "dev", "train.py"], EntryKind.COMMAND, "python", ["-X", "dev", "train.py"]),
    ],
)
def test_what_runs_with_which_arguments(project: Path, argv: list[str], kind: EntryKind, entry: str, args: list[str]):
    found = entry_of(project, *argv)
    assert found is not None
    assert (found.kind, found.entry, list(found.args)) == (kind, entry, args)
    assert found.notes == ()


def test_without_anything_to_run_there_is_no_entry(project: Path):
    assert entry_of(project, "-f", "run.yaml", "--nodes", "2") is None


def test_a_named_python_is_the_one_that_runs(project: Path, monkeypatch: pytest.MonkeyPatch):
    folder = project / "bin"
    folder.mkdir()
    (folder / "python3").write_text("#!/bin/sh\n")
    (folder / "python3").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    found = entry_of(project, "python3", "train.py")
    assert found is not None
    assert found.python == str(folder / "python3")


@pytest.mark.parametrize(
    ("argv", "what", "fix"),
    [
        # U2: a second value for an option that takes one
        ("--env A=1 B=2 train.py", "`B=2` stands where the script should be", "--env B=2"),
        ("--label a=1 b=2 train.py", "`b=2` stands where the script should be", "--label b=2"),
        ("A=1 train.py", "`A=1` stands where the script should be", "--env A=1"),
        ("--nodes 2 3 train.py", "`3` stands where the script should be", "Remove `3`; --nodes takes one value"),
        ("--secret a b train.py", "`b` stands where the script should be", "--secret takes one value"),
        ("first.py train.py", "There is no file `first.py`", "Remove `first.py`?"),
        # options
        ("--nodez 2 train.py", "no option `--nodez`", "--nodes"),
        ("--gpus-per-nod=2 train.py", "no option `--gpus-per-nod`", "--gpus-per-node"),
        ("--xyzzy train.py", "no option `--xyzzy`", "--help"),
        ("-z train.py", "no option `-z`", "--help"),
        ("--name --follow train.py", "`--name` needs a value", "--name=VALUE"),
        ("train.py --nodes", None, None),
        ("--nodes", "`--nodes` needs a value", "--nodes=VALUE"),
        ("--name -- train.py", "`--name` needs a value", "--name=VALUE"),
        # L3: the script is not there
        ("trian.py", "There is no file `trian.py`", "Did you mean `train.py`?"),
        ("python trian.py", "There is no file `trian.py`", "Did you mean `train.py`?"),
        ("-- python trian.py", "There is no file `trian.py`", "Did you mean `train.py`?"),
        ("finetune.py", "There is no file `finetune.py`", "Did you mean `src/deep/finetune.py`?"),
        ("src/deep/fintune.py", "There is no file", "Did you mean `src/deep/finetune.py`?"),
        ("zzzz.py", "There is no file `zzzz.py`", "Scripts in that folder: evaluate.py, look.ipynb, train.py."),
        # things that are something else
        ("src", "`src` is a folder", "src/deep/finetune.py"),
        ("run.yaml", "`run.yaml` is no script", "gangline submit -f run.yaml"),
        ("run.sh", "`run.sh` is neither", "gangline submit -- bash run.sh"),
        ("tool", "`tool` is neither", "gangline submit -- ./tool"),
        ("/etc/passwd", "`/etc/passwd` is neither", "gangline init"),
        ("sh -c true", "`sh` is a program, not a script", "gangline submit -- sh -c true"),
        ("-m train.py", "is a file, not a module", "-m train"),
        ("-m", "`-m` needs a module", "-m package.train"),
        ("--", "There is no command after `--`", "gangline submit --"),
    ],
)
def test_slips_are_refused_with_the_likely_meaning(project: Path, argv: str, what: str | None, fix: str | None):
    if what is None:
        found = entry_of(project, *argv.split())
        assert found is not None
        assert found.notes
        return
    with pytest.raises(InvalidRequest) as caught:
        entry_of(project, *argv.split())
    assert what in caught.value.what
    assert fix is not None
    assert fix in caught.value.fix
    assert caught.value.exit_code == 64


def test_an_option_after_the_script_is_the_scripts_and_is_said(project: Path):
    found = entry_of(project, "train.py", "--nodes", "2", "--lr", "1", "--follow")
    assert found is not None
    assert found.args == ("--nodes", "2", "--lr", "1", "--follow")
    assert found.notes == (
        "note: --nodes, --follow after train.py go to the script; options of gangline stand before it",
    )


def test_nothing_is_said_of_options_behind_two_dashes(project: Path):
    found = entry_of(project, "train.py", "--", "--nodes", "2")
    assert found is not None
    assert (found.args, found.notes) == (("--nodes", "2"), ())


@pytest.mark.parametrize("words", ["torchrun --nproc-per-node 4 train.py --lr 1", "accelerate launch train.py"])
def test_a_launcher_where_the_script_should_be_is_told_what_to_type(project: Path, words: str):
    with pytest.raises(InvalidRequest, match="is a launcher") as caught:
        entry_of(project, "--nodes", "2", *words.split())
    assert caught.value.fix.startswith("Write gangline submit --nodes 2 ")
    assert "train.py" in caught.value.fix


def test_a_script_of_a_parent_folder_of_the_project_is_named_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    here = tmp_path / "project/a/b"
    here.mkdir(parents=True)
    for name in ("train.py", "project/train.py", "project/a/other.py"):
        (tmp_path / name).write_text("")
    monkeypatch.chdir(here)
    with pytest.raises(InvalidRequest) as caught:
        entry_of(here, "train.py")
    assert caught.value.fix == "There is no Python script in that folder; `gangline init` writes one."
    (tmp_path / "project/gangline.yaml").write_text("")
    with pytest.raises(InvalidRequest) as caught:
        entry_of(here, "train.py")
    assert caught.value.fix == "Did you mean `../../train.py`?"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["python train.py"], "Without quotes: gangline submit python train.py"),
        (["folder"], "such as folder/eval.py"),
        (["package"], "gangline submit -m package"),
        (["bare"], "There is no Python script in it."),
        (["notes.txt"], "cannot be executed"),
        (["nb"], "Did you mean `nb.ipynb`?"),
        (["tool"], "As a command: gangline submit -- ./tool"),
        (["run.sh"], "As a command: gangline submit -- bash run.sh"),
    ],
)
def test_what_newcomers_type(project: Path, words: list[str], says: str):
    for name in (
        "folder/eval.py",
        "folder/__init__.py",
        "package/__main__.py",
        "bare/x",
        "notes.txt",
        "nb.ipynb",
        "tool",
        "run.sh",
    ):
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).touch()
    (project / "tool").chmod(0o755)
    with pytest.raises(InvalidRequest) as caught:
        entry_of(project, *words)
    assert says in str(caught.value)


def test_a_file_named_like_an_assignment_is_a_file(project: Path):
    (project / "a=1.py").touch()
    found = entry_of(project, "a=1.py")
    assert found is not None
    assert found.entry == "a=1.py"


def test_an_empty_folder_says_how_to_begin(tmp_path: Path):
    with pytest.raises(InvalidRequest) as caught:
        entry_of(tmp_path, "train.py")
    assert "gangline init" in caught.value.fix


@pytest.mark.parametrize("word", ["trian.py", "loop", "loop.py", "loop/x.py", "x" * 300, "x" * 300 + ".py", "x" * 5000])
def test_what_cannot_be_looked_up_is_a_file_that_is_not_there(project: Path, word: str):
    for name in ("loop", "loop.py"):
        (project / name).symlink_to(name)
    with pytest.raises(InvalidRequest, match="There is no file"):
        entry_of(project, word)
