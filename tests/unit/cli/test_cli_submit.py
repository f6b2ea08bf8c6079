"""`gangline submit` against a client that stores nothing: packing and checks are real."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gangline.wire.spec import list_keys

TRAIN = "import gangline\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text(TRAIN)
    (folder / "gangline.yaml").write_text("resources: {procs_per_node: 2}\nlabels: {team: nlp}\n")
    monkeypatch.chdir(folder)
    return folder


def spec_of(client: Any) -> dict[str, Any]:
    return next(value for name, value in client.calls if name == "submit")["spec"]


@pytest.mark.usefixtures("project")
def test_the_line_becomes_a_spec(gangline: Any, client: Any):
    options = "--nodes 2 --memory 16GB --time-limit 90m --env A=1 --env B=x=y --label run=7 --buffered"
    result = gangline("submit", *options.split(" "), "--name", "Ünï 🐕", "train.py", "--", "--lr", "3e-4")
    assert (result.code, result.err) == (0, "")
    spec = spec_of(client)
    assert (spec["entry"], spec["entry_kind"], spec["args"]) == ("train.py", "script", ["--lr", "3e-4"])
    assert (spec["resources"]["nodes"], spec["resources"]["procs_per_node"]) == (2, 2)
    assert spec["resources"]["memory_bytes"] == 16 * 10**9
    assert spec["stop"]["time_limit_s"] == 5400
    assert spec["environment"]["env"] == {"A": "1", "B": "x=y"}
    assert spec["environment"]["unbuffered"] is False
    assert spec["labels"] == {"team": "nlp", "run": "7"}
    assert spec["name"] == "Ünï 🐕"


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize("args", [["--lr", "3e-4"], ["--", "--lr", "3e-4"]])
def test_arguments_of_the_script(gangline: Any, client: Any, args: list[str]):
    assert gangline("submit", "train.py", *args).code == 0
    assert spec_of(client)["args"] == ["--lr", "3e-4"]


@pytest.mark.usefixtures("project")
def test_it_says_what_was_packed_and_what_is_next(gangline: Any, client: Any, make: Any):
    client.submitted = make.run(phase="queued", code=make.code())
    result = gangline("submit", "train.py")
    assert result.out.splitlines() == [
        "llama-7k3q queued: 2 nodes x 2 ranks = 4 ranks in pool local",
        "packed  12 files, 34.6 kB from /home/ada/project",
        "        commit 0123456789ab on main, with 1 changed file and 1 untracked file",
        "        left out data/ (3 files, 5.0 MB): .gitignore:3 data/",
        "next    gangline watch llama-7k3q          watch it live",
        "        gangline logs llama-7k3q --follow  follow its output",
        "        gangline stop llama-7k3q           end it",
    ]


@pytest.mark.usefixtures("project")
def test_what_is_always_left_out_takes_one_line(gangline: Any, client: Any, make: Any):
    def entry(path: str, rule: str, *examples: str) -> dict[str, Any]:
        return {"path": path, "rule": rule, "num_files": None, "size_bytes": None, "examples": list(examples)}

    code = make.code()
    code["excluded"] = [
        entry(".venv/", "built-in list: .venv", ".venv/"),
        entry("./", "built-in list: __pycache__", "a/__pycache__/", "b/__pycache__/"),
        entry("./", ".gitignore:3: *.bin", "a/1.bin", "b/2.bin"),
    ]
    client.submitted = make.run(phase="queued", code=code)
    lines = [line.strip() for line in gangline("submit", "train.py").out.splitlines() if "left out" in line]
    assert lines == ["left out a/1.bin and others: .gitignore:3: *.bin", "left out as always: .venv, __pycache__"]


def test_a_file_and_options_over_it(gangline: Any, client: Any, project: Path):
    (project / "run.yaml").write_text("script: train.py\nargs: [--a]\nresources: {nodes: 3, procs_per_node: 4}\n")
    assert gangline("submit", "-f", "run.yaml", "--nodes", "5").code == 0
    spec = spec_of(client)
    assert (spec["args"], spec["resources"]["nodes"], spec["resources"]["procs_per_node"]) == (["--a"], 5, 4)


@pytest.mark.usefixtures("project")
def test_a_variable_of_the_shell(gangline: Any, client: Any):
    assert gangline("submit", "--env", "MY_VALUE", "train.py", env={"MY_VALUE": "a'b\n$c"}).code == 0
    assert spec_of(client)["environment"]["env"] == {"MY_VALUE": "a'b\n$c"}
    result = gangline("submit", "--env", "NOT_SET_AT_ALL", "train.py")
    assert result.code == 64
    assert "NOT_SET_AT_ALL" in result.err


def test_an_include_wins_over_ignore_files(gangline: Any, client: Any, project: Path):
    (project / ".ganglineignore").write_text("config.yaml\n")
    (project / "config.yaml").write_text("x: 1\n")
    gangline("submit", "train.py")
    gangline("submit", "--include", "config.yaml", "train.py")
    packed = [{entry["path"] for entry in value["files"]} for name, value in client.calls if name == "put_snapshot"]
    assert [("config.yaml" in paths) for paths in packed] == [False, True]


@pytest.mark.usefixtures("project")
def test_a_template_runs_as_it_is(gangline: Any, client: Any):
    result = gangline("submit", "--template", "plain", "--nodes", "3", "--checkpoint-path", "ck", "--", "--steps", "9")
    assert result.code == 0, result.err
    spec = spec_of(client)
    assert (spec["entry"], spec["args"], spec["name"]) == ("train.py", ["--steps", "9"], "plain")
    assert (spec["resources"]["nodes"], spec["resources"]["procs_per_node"]) == (3, 2)
    assert spec["checkpoint"]["path"] == str(Path.cwd() / "ck")
    packed = [{entry["path"] for entry in value["files"]} for name, value in client.calls if name == "put_snapshot"]
    assert packed == [{"train.py", "run.yaml"}]


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("--env A=1 B=2 train.py", "--env B=2"),
        ("--nodez 2 train.py", "--nodes"),
        ("trian.py", "Did you mean `train.py`?"),
        ("python trian.py", "Did you mean `train.py`?"),
        ("-m trian", "trian"),
        ("-- ./trian.sh", "trian.sh"),
        ("--nodes 0 train.py", "--nodes"),
        ("--nodes two train.py", "--nodes"),
        ("--strategy dpp train.py", "Did you mean `ddp`?"),
        ("--memory 16XB train.py", "--memory"),
        ("--time-limit soon train.py", "--time-limit"),
        ("--env =1 train.py", "--env"),
        ("--env RANK=1 train.py", "RANK"),
        ("--python /nowhere/python train.py", "/nowhere/python"),
        ("--follow --detach train.py", "--detach contradicts"),
        ("--template gtp", "Did you mean `gpt`?"),
        ("--template gpt -f run.yaml", "--template contradicts --file"),
        ("--template gpt train.py", "A template brings its own script."),
        ("-f nowhere.yaml", "nowhere.yaml"),
        ("", "gangline submit train.py"),
    ],
)
def test_nothing_is_submitted_after_a_slip(gangline: Any, client: Any, line: str, says: str):
    result = gangline("submit", *line.split())
    assert result.code == 64
    assert says in result.err
    assert result.err.startswith("error: ")
    assert client.calls == []


def test_an_empty_folder(gangline: Any, client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.chdir(empty)
    assert "gangline init" in gangline("submit").err
    assert "gangline init" in gangline("submit", "train.py").err
    assert client.calls == []


@pytest.mark.usefixtures("project")
def test_errors_are_json_where_json_was_asked_for(gangline: Any):
    result = gangline("submit", "--json", "trian.py")
    assert json.loads(result.err)["error"]["code"] == "invalid_request"


@pytest.mark.usefixtures("project")
def test_json_of_the_script_is_not_ours(gangline: Any, client: Any):
    assert not gangline("submit", "train.py", "--json").out.startswith("{")
    assert spec_of(client)["args"] == ["--json"]


@pytest.mark.usefixtures("project")
def test_json_is_the_run(gangline: Any, client: Any):
    assert json.loads(gangline("submit", "--json", "train.py").out)["id"] == client.submitted["id"]


@pytest.mark.usefixtures("project")
def test_a_dry_run_stores_nothing_and_prints_what_the_backend_gets(gangline: Any, client: Any):
    result = gangline("submit", "--dry-run", "--nodes", "2", "train.py")
    assert [name for name, _ in client.calls] == ["check"]
    summary, _, exact = result.out.partition("\n\n")
    lines = [line.split(maxsplit=1) for line in summary.splitlines()]
    assert lines[0] == ["Nothing", "was queued. This would run:"]
    assert ["run", "train.py"] in lines
    assert ["gang", "2 nodes x 2 ranks = 4 ranks in pool local"] in lines
    assert next(line for line in lines if line[0] == "packed")[1].startswith("2 files")
    assert next(line for line in lines if line[0] == "set")[1] == "by  gangline.yaml: resources.procs_per_node, labels"
    assert "command line: resources.nodes, entry, entry_kind" in summary
    assert exact.splitlines()[:4] == [
        "backend local",
        "node 0: python 'an agent' --node 0",
        "env A='1 2'",
        "file launch.json",
    ]


@pytest.mark.usefixtures("project", "client")
def test_a_dry_run_in_json_has_no_json_in_texts(gangline: Any):
    launch = json.loads(gangline("submit", "--dry-run", "--json", "train.py").out)
    assert launch["backend"] == "local"
    assert isinstance(launch["files"]["launch.json"], dict)


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize("option", ["--dry-run", "--help"])
@pytest.mark.parametrize("entry", ["train.py", "python train.py", "-m train"])
def test_options_that_ask_for_no_run_start_none_wherever_they_stand(
    gangline: Any, client: Any, option: str, entry: str
):
    result = gangline("submit", *entry.split(), "--lr", "1", option)
    assert result.code == 64
    assert f"{option} train" in result.err
    assert f"-- {option}" in result.err
    assert client.calls == []
    assert gangline("submit", "train.py", "--", option).code == 0
    assert spec_of(client)["args"] == [option]


@pytest.mark.parametrize(
    ("line", "args"), [("-- --steps 3", ["--steps", "3"]), ("-- 3", ["3"]), ("--", []), ("", ["--a"])]
)
def test_arguments_beside_a_file_replace_the_files(
    gangline: Any, client: Any, project: Path, line: str, args: list[str]
):
    (project / "run.yaml").write_text("script: train.py\nargs: [--a]\n")
    assert gangline("submit", "-f", "run.yaml", *line.split()).code == 0
    assert (spec_of(client)["entry"], spec_of(client)["args"]) == ("train.py", args)


def test_beside_a_file_without_an_entry_a_command_may_stand(gangline: Any, client: Any, project: Path):
    (project / "run.yaml").write_text("resources: {nodes: 2}\n")
    assert gangline("submit", "-f", "run.yaml", "--", "echo", "x").code == 0
    assert (spec_of(client)["entry"], spec_of(client)["args"]) == ("echo", ["x"])


def test_a_files_command_is_replaced_as_a_whole(gangline: Any, client: Any, project: Path):
    (project / "run.yaml").write_text("command: [bash, -c, true]\n")
    result = gangline("submit", "-f", "run.yaml", "--", "--steps", "3")
    assert (result.code, client.calls) == (64, [])
    assert "replaced as a whole" in result.err
    assert gangline("submit", "-f", "run.yaml", "--", "echo", "x").code == 0
    assert spec_of(client)["entry"] == "echo"


def test_an_unknown_option_beside_a_file_says_how_to_reach_the_script(gangline: Any, project: Path):
    (project / "run.yaml").write_text("script: train.py\n")
    result = gangline("submit", "-f", "run.yaml", "--steps", "3")
    assert result.code == 64
    assert "gangline submit -f run.yaml -- --steps" in result.err


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(("phase", "code"), [("succeeded", 0), ("failed", 139), ("stopped", 130)])
def test_following_ends_as_the_run_did(gangline: Any, client: Any, make: Any, phase: str, code: int):
    client.stream = [make.chunk("hello\n", rank=1), {"end": make.run(phase=phase, exit_code=code)}]
    result = gangline("submit", "--follow", "train.py")
    assert result.code == code
    assert result.out == "rank 1 | hello\n"
    assert client.calls[-1][1][1]["attempt"] == 0
    assert "queued" in result.err
    assert result.err.splitlines()[-1].startswith(f"llama-7k3q {phase}")


@pytest.mark.usefixtures("project")
def test_waiting_ends_as_the_run_did(gangline: Any, client: Any, make: Any):
    client.runs = {"llama-7k3q": make.run(phase="failed", exit_code=3)}
    assert gangline("submit", "--wait", "train.py").code == 3


@pytest.mark.usefixtures("project")
def test_ctrl_c_while_following_detaches(gangline: Any, client: Any, make: Any):
    client.stream = [make.chunk("step 1", complete=False), KeyboardInterrupt()]
    result = gangline("submit", "--follow", "train.py")
    assert result.code == 130
    assert "detached; the run goes on. gangline stop llama-7k3q ends it" in result.err
    assert not [name for name, _ in client.calls if name == "stop"]


@pytest.mark.usefixtures("project")
def test_a_large_gang_is_followed_by_its_rank_0(gangline: Any, client: Any, make: Any):
    client.submitted = make.run(nodes=32, procs_per_node=8, phase="queued")
    client.stream = [{"end": make.run(phase="succeeded", exit_code=0)}]
    assert "Following rank 0 of 256" in gangline("submit", "--follow", "train.py").err
    assert client.calls[-1][1][1]["ranks"] == [0]


@pytest.mark.usefixtures("project")
def test_following_as_json_is_a_line_for_each_item(gangline: Any, client: Any, make: Any):
    client.stream = [make.chunk("x"), {"end": make.run(phase="succeeded", exit_code=0)}]
    lines = [json.loads(line) for line in gangline("submit", "--follow", "--json", "train.py").out.splitlines()]
    assert [min(line) for line in lines] == ["run", "attempt", "end"]


def test_a_path_that_the_system_cannot_follow_is_no_defect_of_ours(gangline: Any, project: Path):
    (project / "loop").symlink_to("loop")
    for options in (["--python", "x" * 5000], ["--python", "a/" * 3000 + "python"], ["-f", "x" * 300 + ".yaml"]):
        result = gangline("submit", *options, "train.py")
        assert result.code != 0
        assert "Gangline itself failed" not in result.err
        assert "cannot be" in result.err


SLURM = "resources: {procs_per_node: 2}\nslurm: {partition: gpu}\n"


def test_options_of_slurm_in_files_are_left_out_on_this_machine(gangline: Any, client: Any, project: Path):
    (project / "gangline.yaml").write_text(SLURM)
    assert gangline("submit", "train.py").err == ""
    assert spec_of(client)["slurm"]["partition"] is None
    client.calls.clear()
    gangline("submit", "--pool", "far", "train.py")
    assert spec_of(client)["slurm"]["partition"] == "gpu"
    assert spec_of(client)["environment"]["python"] is None
    client.calls.clear()
    (project / "run.yaml").write_text("script: train.py\npool: far\nslurm: {qos: high}\n")
    gangline("submit", "-f", "run.yaml")
    assert (spec_of(client)["slurm"]["partition"], spec_of(client)["slurm"]["qos"]) == ("gpu", "high")
    client.calls.clear()
    result = gangline("submit", "-f", "run.yaml", "--pool", "local")
    assert "are left out" in result.err
    assert spec_of(client)["slurm"]["qos"] is None
    client.calls.clear()
    gangline("submit", "--qos", "high", "train.py")  # said on the line, it is for the server to refuse
    assert spec_of(client)["slurm"]["qos"] == "high"


def test_python_on_the_line_is_no_interpreter_of_other_machines(gangline: Any, client: Any, project: Path):
    assert project.is_dir()
    gangline("submit", "--pool", "far", "python", "train.py")
    assert spec_of(client)["environment"]["python"] is None
    client.calls.clear()
    gangline("submit", "--pool", "far", "--python", "python3.11", "python", "train.py")
    assert spec_of(client)["environment"]["python"] == "python3.11"


def test_a_batch_script_takes_the_place_of_what_runs(gangline: Any, client: Any, project: Path):
    (project / "old.sbatch").write_text("#!/bin/bash\n#SBATCH --nodes=2\n")
    (project / "gangline.yaml").write_text("script: train.py\npool: far\n")
    assert gangline("submit", "--sbatch", "old.sbatch", "--", "a", "--b").code == 0
    spec = spec_of(client)
    assert (spec["entry"], spec["entry_kind"], spec["args"]) == ("./old.sbatch", "command", ["a", "--b"])
    assert spec["slurm"]["script"] == "old.sbatch"
    assert "For its arguments: gangline submit --sbatch FILE -- x" in gangline("submit", "--sbatch", "o", "x").err
    (project / "run.yaml").write_text("script: train.py\n")
    assert "takes the place of what runs" in gangline("submit", "-f", "run.yaml", "--sbatch", "old.sbatch").err


def test_a_file_that_says_nothing_of_the_fewest_nodes_is_not_said_to_set_them():
    assert list_keys({"resources": {"nodes": 2, "min_nodes": None}}) == ["resources.nodes"]
    assert list_keys({"resources": {"nodes": 4, "min_nodes": 2}}) == ["resources.nodes", "resources.min_nodes"]
    assert list_keys({"watch": {"hang_timeout_s": 9.0}, "slurm": {"qos": "x"}}) == ["watch.hang_timeout_s", "slurm.qos"]
