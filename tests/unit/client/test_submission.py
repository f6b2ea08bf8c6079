from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

import pytest

import gangline.client
from gangline.client.embedded import server_environment
from gangline.client.shell import environment_prefix, find_python, inherited_variables
from gangline.client.submission import check, prepare, send, submit, upload
from gangline.domain.errors import SnapshotRefused, SpecInvalid
from gangline.domain.spec import CheckpointPolicy, EntryKind, Environment, Resources, RunSpec, StopPolicy
from gangline.testing import make_spec
from gangline.wire.spec import spec_from_mapping, spec_to_mapping

PATH = os.environ["PATH"]
HERE = Environment(python=sys.executable)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    for name, text in {
        "train.py": "print(1)\n",
        "pkg/__init__.py": "",
        "pkg/train.py": "",
        "pkg/tool/__init__.py": "",
        "pkg/tool/__main__.py": "",
        "jobs/deep/eval.py": "",
        "run.sh": "echo\n",
        "go.sh": "echo\n",
        ".gitignore": "secret.py\n",
        "secret.py": "",
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / "go.sh").chmod(0o755)
    (folder / "gangline.yaml").write_text("pool: local\n")
    return folder


def ready(project: Path, spec: RunSpec, cwd: str = ".", **environ: str):
    env = {"PATH": PATH, "HOME": "/nowhere", "GANGLINE_HOME": str(project.parent / "state"), **environ}
    return prepare(spec, root=project, cwd=project / cwd, environ=env)


# entries


@pytest.mark.parametrize(
    ("kind", "entry", "cwd"),
    [
        ("script", "train.py", "."),
        ("script", "./train.py", "."),
        ("script", "../train.py", "jobs"),
        ("script", "deep/eval.py", "jobs"),
        ("module", "pkg.train", "."),
        ("module", "pkg.tool", "."),
        ("module", "json.tool", "."),
        ("command", "./go.sh", "."),
        ("command", "sh", "."),
        ("command", "/bin/sh", "."),
    ],
)
def test_entries_that_ranks_will_find(project, kind, entry, cwd):
    spec = ready(project, RunSpec(entry=entry, entry_kind=EntryKind(kind)), cwd).spec
    assert spec.snapshot is not None
    assert spec.snapshot.workdir == cwd


@pytest.mark.parametrize(
    ("kind", "entry", "says"),
    [
        ("script", "trian.py", "Did you mean `train.py`?"),
        ("script", "eval.py", "Did you mean `jobs/deep/eval.py`?"),
        ("script", "xyz.py", "Valid: "),
        ("script", "pkg", "is a folder"),
        ("script", "../outside.py", "outside the project"),
        ("script", "/etc/passwd", "outside the project"),
        ("script", "secret.py", "--include secret.py"),
        ("notebook", "a.ipynb", "There is no notebook"),
        ("module", "pkg.trian", "There is no module `pkg.trian` in the project"),
        ("module", "no_such_module_anywhere", "nor in"),
        ("module", "pkg", "no __main__.py"),
        ("module", "train.py", "There is no module"),
        ("module", "pkg/train", "without .py"),
        ("command", "./run.sh", "chmod +x ./run.sh"),
        ("command", "./gone.sh", "There is no program"),
        ("command", "train.py", "is a Python script, not a program. Write gangline submit train.py"),
        ("command", "./train.py", "Write gangline submit ./train.py"),
        ("command", "no-such-program-anywhere", "on PATH"),
        ("command", "/no/such/program", "cannot be executed"),
    ],
)
def test_a_wrong_entry_is_refused_at_once(project, kind, entry, says):
    with pytest.raises(SpecInvalid) as raised:
        ready(project, RunSpec(entry=entry, entry_kind=EntryKind(kind)))
    assert says in str(raised.value)


def command(line: str, **resources: int) -> RunSpec:
    entry, *args = shlex.split(line)
    return RunSpec(
        entry=entry, entry_kind=EntryKind.COMMAND, args=tuple(args), resources=Resources(**resources), environment=HERE
    )


def test_a_script_is_looked_for_where_the_ranks_start_and_that_folder_is_named(project):
    with pytest.raises(SpecInvalid) as raised:
        ready(project, RunSpec(entry="train.py"), "jobs")
    assert f"There is no script `train.py` in {project}/jobs" in str(raised.value)
    assert raised.value.fix.startswith("Did you mean `../train.py`? Paths start from the folder in which you submit")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("bash rnu.sh", "There is no script for `bash` `rnu.sh`"),
        ("bash -c 'python trian.py | tee log'", "Did you mean `train.py`?"),
        ("sh secret.sh", "--include secret.sh"),
        ("python -m torch.distributed.run --nproc-per-node 2 trian.py", "Did you mean `train.py`?"),
        ("env A=1 python pkg", ""),
        ("sh jobs/eval.sh", "There is no script"),
        ("sh ../run.sh", "There is no script"),
    ],
)
def test_a_script_behind_a_command_is_looked_up_too(project, line, says):
    (project / ".gitignore").write_text("secret.sh\n")
    (project / "secret.sh").write_text("")
    if not says:
        assert ready(project, command(line)).warnings == ()
        return
    with pytest.raises(SpecInvalid) as raised:
        ready(project, command(line))
    assert says in str(raised.value)


def test_a_script_behind_a_link_to_a_folder_is_there(project):
    (project / "link").symlink_to("jobs")
    assert ready(project, command("sh link/deep/x.sh")).warnings == ()
    assert ready(project, RunSpec(entry="link/deep/eval.py")).spec.entry == "link/deep/eval.py"


def test_what_is_not_sure_is_said_and_done(project):
    (warning,) = ready(project, command("bash -c './go.sh; python made.py'")).warnings
    assert warning == "made.py is not in the snapshot; python finds it only if the command makes it first"
    (warning,) = ready(project, command(f"sh {project}/run.sh")).warnings
    assert warning.startswith(f"{project}/run.sh is run from where it lies")


def test_a_launcher_inside_a_gang_is_told_what_to_type_instead(project):
    line = f"{sys.executable} -m torch.distributed.run --nproc-per-node 4 train.py --lr 1"
    (warning,) = ready(project, command(line, nodes=2, procs_per_node=2)).warnings
    assert warning == (
        "torchrun starts 4 processes inside each of the 4 ranks, which Gangline neither sees nor restarts; "
        "instead, type: gangline submit --nodes 2 --procs-per-node 4 train.py --lr 1"
    )


def test_an_absolute_script_is_named_from_where_ranks_start(project):
    spec = ready(project, RunSpec(entry=str(project / "train.py")), "jobs").spec
    assert spec.entry == "../train.py"


def test_a_folder_outside_the_project_is_refused(project):
    with pytest.raises(SnapshotRefused, match="not inside the project"):
        ready(project, RunSpec(entry="train.py"), "..")


def test_a_project_that_is_named_may_be_submitted_from_anywhere(project, tmp_path, monkeypatch):
    env = {"PATH": PATH, "HOME": "/nowhere", "GANGLINE_HOME": str(tmp_path / "state")}
    monkeypatch.chdir(tmp_path)
    assert prepare(RunSpec(entry="train.py"), root=project, environ=env).spec.snapshot.workdir == "."
    monkeypatch.chdir(project / "jobs")
    assert prepare(RunSpec(entry="deep/eval.py"), root=project, environ=env).spec.snapshot.workdir == "jobs"


def test_a_folder_that_is_not_packed_is_no_place_to_start_in(project):
    (project / ".gitignore").write_text("scratch/\n")
    (project / "scratch").mkdir()
    (project / "scratch" / "train.py").write_text("")
    with pytest.raises(SnapshotRefused, match="scratch in which the run would start is left out"):
        ready(project, RunSpec(entry="echo", entry_kind=EntryKind.COMMAND), "scratch")


# the interpreter


def make_environment(folder: Path) -> Path:
    (folder / "bin").mkdir(parents=True)
    (folder / "pyvenv.cfg").write_text("")
    (folder / "bin" / "python").symlink_to(sys.executable)
    return folder


def test_the_interpreter_is_looked_for_in_this_order(tmp_path, monkeypatch):
    def found(**environ: str) -> Path:
        return find_python(None, cwd=tmp_path, root=tmp_path, environ={"PATH": PATH, **environ})

    monkeypatch.setattr(sys, "prefix", str(tmp_path / "own"))
    monkeypatch.setattr(sys, "base_prefix", "/usr")
    active, conda = make_environment(tmp_path / "active"), make_environment(tmp_path / "conda")
    assert found() == Path(sys.executable)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "pipx_metadata.json").write_text("")
    assert found().name == "python3"
    own = make_environment(tmp_path / ".venv")
    assert found() == own / "bin" / "python"
    assert found(CONDA_PREFIX=str(conda)) == conda / "bin" / "python"
    assert found(CONDA_PREFIX=str(conda), VIRTUAL_ENV=str(active)) == active / "bin" / "python"


@pytest.mark.parametrize("asked", ["envs/one", "envs/one/bin/python", "./envs/one/"])
def test_an_interpreter_may_be_named_by_its_environment(tmp_path, asked):
    folder = make_environment(tmp_path / "envs" / "one")
    python = find_python(asked, cwd=tmp_path, root=tmp_path, environ={})
    assert python == folder / "bin" / "python"
    assert environment_prefix(python) == folder


def test_an_interpreter_may_be_named_by_its_name_on_path(tmp_path):
    assert find_python("python3", cwd=tmp_path, root=tmp_path, environ={"PATH": PATH}).is_absolute()


@pytest.mark.parametrize(
    ("asked", "environ", "says"),
    [
        ("nowhere", {}, "`--python` is `nowhere`, and there is no"),
        ("file", {}, "cannot be executed"),
        ("folder", {}, "bin/python"),
        (None, {"VIRTUAL_ENV": "/gone/env"}, "The active environment (VIRTUAL_ENV) is `/gone/env`"),
    ],
)
def test_an_interpreter_that_is_not_there_is_an_error_at_once(tmp_path, asked, environ, says):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    with pytest.raises(SpecInvalid) as raised:
        find_python(asked, cwd=tmp_path, root=tmp_path, environ={"PATH": PATH, **environ})
    assert says in str(raised.value)


def test_the_chosen_environment_is_active_for_programs_too(project):
    folder = make_environment(project.parent / "chosen")
    spec = RunSpec(entry="train.py", environment=Environment(python=str(folder)))
    found = ready(project, spec, VIRTUAL_ENV="/another").spec
    assert found.environment.python == str(folder / "bin" / "python")
    assert found.inherited_env["VIRTUAL_ENV"] == str(folder)
    assert found.inherited_env["PATH"].split(":")[0] == str(folder / "bin")


# variables


def test_only_harmless_variables_are_taken_from_the_shell():
    environ = {
        "PATH": "p",
        "NCCL_DEBUG": "INFO",
        "OMP_NUM_THREADS": "4",
        "LC_ALL": "C",
        "TOKENIZERS_PARALLELISM": "false",
        "https_proxy": "http://proxy:3128",
        "HF_HOME": "/hf",
    }
    secrets = {
        "HF_TOKEN": "x",
        "HUGGINGFACE_API_KEY": "x",
        "CONDA_PASSWORD": "x",
        "HTTP_PROXY": "http://user:pass@proxy",
        "AWS_SECRET_ACCESS_KEY": "x",
        "HOME": "x",
        "RANK": "3",
        "SLURM_JOB_ID": "1",
    }
    assert inherited_variables({**environ, **secrets}) == environ


def test_another_pool_gets_nothing_of_this_shell(project):
    assert ready(project, RunSpec(entry="train.py", pool="cluster"), NCCL_DEBUG="INFO").spec.inherited_env == {}


def test_a_server_has_what_ssh_needs_of_a_person():
    of_ssh = {"SSH_AUTH_SOCK": "/run/agent", "KRB5CCNAME": "FILE:/tmp/cc", "KRB5_CONFIG": "/etc/mine.conf"}
    assert server_environment(of_ssh) == of_ssh


def test_the_server_gets_no_more_than_it_needs():
    found = server_environment({"PATH": "p", "HOME": "h", "LC_CTYPE": "C", "WANDB_API_KEY": "x", "RANK": "1"})
    assert found == {"PATH": "p", "HOME": "h", "LC_CTYPE": "C"}


# sending


def test_a_second_submit_sends_only_what_changed(project, api):
    first = ready(project, RunSpec(entry="train.py"))
    assert upload(api.client, first.packed) == len(first.packed.manifest.digests())
    (project / "train.py").write_text("print(2)\n")
    assert upload(api.client, ready(project, RunSpec(entry="train.py")).packed) == 1


def test_large_and_many_files_are_sent(project, api, monkeypatch):
    monkeypatch.setattr("gangline.client.submission._BATCH_BYTES", 5000)
    (project / "large.bin").write_bytes(os.urandom(20_000))
    for number in range(20):
        (project / f"part-{number}.bin").write_bytes(os.urandom(1000))
    prepared = ready(project, RunSpec(entry="train.py"))
    upload(api.client, prepared.packed)
    assert api.client.missing_objects(sorted(prepared.packed.manifest.digests())) == []


def test_a_file_that_vanished_while_it_was_sent_is_named(project, api):
    prepared = ready(project, RunSpec(entry="train.py"))
    (project / "train.py").unlink()
    with pytest.raises(SnapshotRefused, match=r"train\.py could not be read.*Submit again"):
        upload(api.client, prepared.packed)


@pytest.mark.parametrize("large", [False, True])
def test_of_a_file_that_grows_what_was_packed_is_sent_and_one_that_changed_is_named(project, api, monkeypatch, large):
    if large:
        monkeypatch.setattr("gangline.client.submission._BATCH_BYTES", 3)
    log = project / "run.out"
    log.write_text("step 1\n")
    prepared = ready(project, RunSpec(entry="train.py"))
    log.write_text("step 1\nstep 2\n")
    upload(api.client, prepared.packed)
    assert api.client.missing_objects(sorted(prepared.packed.manifest.digests())) == []
    log.write_text("step 3\n")
    prepared = ready(project, RunSpec(entry="train.py"))
    log.write_text("step 4\n")
    with pytest.raises(SnapshotRefused, match=r"run\.out was changed.*\.ganglineignore"):
        upload(api.client, prepared.packed)


def test_who_submits_is_recorded(project, api):
    run = send(ready(project, RunSpec(entry="train.py")), client=api.client, command=["gangline", "submit", "a b"])
    assert run["client"]["command"] == "gangline submit 'a b'"
    assert run["client"]["folder"] == str(project)
    assert run["client"]["user"]
    assert run["spec"]["snapshot"]["workdir"] == "."


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        (
            {"script": "train.py", "nodez": 2},
            "`nodez` is not a key of the spec. Did you mean `nodes` under `resources:`?",
        ),
        ({"script": "train.py", "nodes": 2}, "It belongs under `resources:`."),
        ({"scirpt": "train.py"}, "Did you mean `script`?"),
        ({"script": "train.py", "resources": {"node": 2}}, "Did you mean `nodes`?"),
        ({"script": "train.py", "stop": {"time_limit": "soon"}}, "`stop.time_limit` is `soon`"),
        ({"script": "train.py", "environment": {"env": {"A B": "1"}}}, "letters, digits and underscores"),
        ({}, "nothing to run"),
    ],
)
def test_a_slip_in_python_is_answered_like_one_in_a_file(keys, says, api):
    for refuse in (lambda: gangline.client.spec(**keys), lambda: submit(keys, client=api.client)):
        with pytest.raises(SpecInvalid) as raised:
            refuse()
        assert says in str(raised.value)


def test_a_spec_by_keys_takes_tables_and_objects():
    limits = {"time_limit": "1h"}
    by_keys = gangline.client.spec(script="train.py", resources=Resources(nodes=2, procs_per_node=3), stop=limits)
    assert by_keys == RunSpec(
        entry="train.py", resources=Resources(nodes=2, procs_per_node=3), stop=StopPolicy(time_limit_s=3600.0)
    )


def test_files_that_ignore_rules_leave_out_are_packed_where_the_spec_includes_them(project):
    spec = RunSpec(entry="secret.py", include=("secret.py",))
    assert ready(project, spec).packed.manifest.find("secret.py") is not None


def test_a_check_sends_nothing(project, api, monkeypatch):
    monkeypatch.chdir(project)
    assert check(RunSpec(entry="train.py"), client=api.client)["backend"] == "fake"
    assert api.commands.runs == {}
    assert not any(api.home.objects.iterdir())


@pytest.mark.parametrize("kind", ["script", "notebook"])
@pytest.mark.parametrize("prefix", ["", "./", "absolute"])
def test_a_script_that_looks_like_an_option_keeps_its_folder(project, kind, prefix):
    name = "-dash.py" if kind == "script" else "-dash.ipynb"
    (project / name).write_text("{}")
    entry = str(project / name) if prefix == "absolute" else f"{prefix}{name}"
    assert ready(project, RunSpec(entry=entry, entry_kind=EntryKind(kind))).spec.entry == f"./{name}"


def test_a_run_for_other_machines_takes_nothing_of_this_one(tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)
    environ = {"PATH": PATH, "VIRTUAL_ENV": "/no/such/venv", "HF_HOME": "/x", "GANGLINE_HOME": str(tmp_path / "home")}
    prepared = prepare(make_spec(entry="train.py", pool="far"), root=tmp_path, cwd=tmp_path, environ=environ)
    assert prepared.spec.environment.python is None
    assert prepared.spec.inherited_env == {}
    named = make_spec(entry="train.py", pool="far", environment=Environment(python="/far/python"))
    assert prepare(named, root=tmp_path, cwd=tmp_path, environ=environ).spec.environment.python == "/far/python"
    for kind, entry in [(EntryKind.COMMAND, "far-program"), (EntryKind.COMMAND, "/far/x"), (EntryKind.MODULE, "far.m")]:
        prepare(make_spec(entry=entry, entry_kind=kind, pool="far"), root=tmp_path, cwd=tmp_path, environ=environ)
    with pytest.raises(SpecInvalid, match="There is no script"):
        prepare(make_spec(entry="trian.py", pool="far"), root=tmp_path, cwd=tmp_path, environ=environ)


@pytest.mark.parametrize("policy", [{"path": "ckpt"}, {"path": "~/ckpt"}, {"start_from": "ckpt/step-1"}])
def test_paths_of_this_machine_are_not_sent_to_others(tmp_path, policy):
    (tmp_path / "train.py").write_text("")
    spec = make_spec(entry="train.py", pool="far", checkpoint=CheckpointPolicy(**policy))
    with pytest.raises(SpecInvalid, match="starts from a folder of this machine"):
        prepare(spec, root=tmp_path, cwd=tmp_path, environ={"GANGLINE_HOME": str(tmp_path / "home")})


def test_a_batch_script_is_named_by_its_place_in_the_project(tmp_path):
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "old.sbatch").write_text("#!/bin/bash\n")
    environ = {"GANGLINE_HOME": str(tmp_path / "home")}
    spec = spec_from_mapping({"slurm": {"script": str(tmp_path / "jobs" / "old.sbatch")}, "pool": "far"})
    found = prepare(spec, root=tmp_path, cwd=tmp_path / "jobs", environ=environ).spec
    assert (found.entry, found.entry_kind, found.slurm.script) == ("./old.sbatch", EntryKind.COMMAND, "old.sbatch")
    assert spec_from_mapping(spec_to_mapping(found)) == found
    missing = spec_from_mapping({"slurm": {"script": "olld.sbatch"}, "pool": "far"})
    with pytest.raises(SpecInvalid, match="cannot be read"):
        prepare(missing, root=tmp_path, cwd=tmp_path / "jobs", environ=environ)
