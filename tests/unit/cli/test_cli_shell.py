"""`gangline shell`: where it opens, and the exact command."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any

import pytest

from gangline.agent.rankshell import Beside
from gangline.rundir.layout import RunDir

FAR = {
    "job": "12",
    "log": "/w/job.log",
    "queue": "squeue --jobs=12",
    "reach": "ssh -F '/a b' login",
    "step": "srun --jobid=12 '--chdir=/w x'",
    "shell": "/w x/shell.sh",
}


def rank(number: int, node: int, **keys: Any) -> dict[str, Any]:
    return {"rank": number, "node": node, "pid": os.getpid(), "ended": None, **keys}


def make_live(make: Any, client: Any, **keys: Any) -> dict[str, Any]:
    nodes = [{"node": 0, "host": "n1.site.org"}, {"node": 1, "host": "n2"}]
    plain = {"address": "", "agent_pid": 1, "devices": [], "environment": None, "machines": [], "tasks": None}
    attempt = make.attempt(
        outcome=None, ended=None, ranks=[rank(0, 0), rank(1, 1)], nodes=[{**plain, **node} for node in nodes]
    )
    run = make.run(phase="running", attempts=[attempt], **keys)
    client.runs[run["id"]] = run
    return run


def test_on_a_cluster_it_is_a_step_of_the_runs_own_job(gangline: Any, client: Any, make: Any):
    run = make_live(make, client, pool="far", backend=FAR)

    def typed(*options: str) -> tuple[list[str], list[str]]:
        *reach, step = shlex.split(gangline("shell", run["id"], *options, "--print").out)
        return reach, shlex.split(step)

    begin = ["srun", "--jobid=12", "--chdir=/w x"]
    first = [*begin, "--nodelist=n1", "--pty", "/bin/bash", "/w x/shell.sh", "0", "--rank", "0"]
    second = [*begin, "--nodelist=n2", "--pty", "/bin/bash", "/w x/shell.sh", "1", "--rank", "1"]
    assert typed() == (["ssh", "-t", "-F", "/a b", "login"], first)
    assert typed("--rank", "1")[1] == typed("--node", "1")[1] == second
    wrong = gangline("shell", run["id"], "--rank", "7", "--print")
    assert (wrong.code, "Its nodes: 0 (n1.site.org), 1 (n2)" in wrong.err) == (64, True)
    assert gangline("shell", run["id"], "--rank", "1", "--node", "1").code == 64
    run["backend"] = {**FAR, "reach": ""}
    assert shlex.split(gangline("shell", run["id"], "--print").out) == first


def test_beside_a_rank_that_has_ended_there_is_none(gangline: Any, client: Any, make: Any):
    run = make_live(make, client, pool="far", backend=FAR)
    run["attempts"][-1]["ranks"][1] = rank(1, 1, ended=5.0, exit_code=3, signal=None)
    refused = gangline("shell", run["id"], "--rank", "1")
    assert (refused.code, refused.out) == (75, "")
    assert f"Rank 1 of `{run['id']}` does not run any more: it ended with exit code 3." in refused.err


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the agent's rules make for a program beside a rank of this machine; its folder."""
    folder = tmp_path / "code" / "sub"
    folder.mkdir(parents=True)

    def find(run: RunDir, *, launch: int, node: int, rank: int) -> Beside:
        env = {"PATH": os.environ["PATH"], "PLACE": f"{run.path} {launch} {node} {rank}"}
        return Beside(run_name="r", rank=rank, folder=folder, env=env)

    monkeypatch.setattr("gangline.cli.shell.find_beside", find)
    return folder


def test_here_it_has_the_folder_and_the_environment_of_the_rank(
    gangline: Any, client: Any, make: Any, tmp_path: Path, beside: Path, monkeypatch: pytest.MonkeyPatch
):
    run = make_live(make, client, pool="local", run_dir=str(tmp_path))
    shell = tmp_path / "shell"
    shell.write_text(f'#!/bin/sh\npwd >{tmp_path}/said\necho "$PLACE $SECOND" >>{tmp_path}/said\nexit 3\n')
    shell.chmod(0o755)
    monkeypatch.setenv("SHELL", str(shell))
    monkeypatch.setenv("SECOND", "of the one who types")
    assert gangline("shell", run["id"], "--node", "1").code == 3
    assert (tmp_path / "said").read_text() == f"{beside}\n{tmp_path} 0 1 1 \n"
    assert gangline("shell", run["id"], "--print").out == f"cd {beside} && {shell}\n"
    assert "There is no rank 9 in this attempt" in gangline("shell", run["id"], "--rank", "9").err


def test_where_nothing_runs_there_is_no_shell(gangline: Any, client: Any, make: Any):
    over = make.run(phase="succeeded", attempts=[make.attempt(outcome="succeeded")])
    client.runs[over["id"]] = over
    assert "has no rank that runs" in gangline("shell", over["id"]).err


def test_show_names_job_and_log(gangline: Any, client: Any, make: Any):
    run = make_live(make, client, pool="far", backend=FAR)
    out = gangline("show", run["id"], "--full").out
    assert "/w/job.log" in out
    assert "squeue --jobs=12" in out


def test_a_command_runs_there_and_its_exit_code_is_passed_on(
    gangline: Any, client: Any, make: Any, tmp_path: Path, beside: Path
):
    run = make_live(make, client, pool="local", run_dir=str(tmp_path))
    wanted = ["sh", "-c", 'pwd >said; echo "$PLACE $1" >>said; exit 5', "x", "a b; $HOME"]
    assert gangline("shell", run["id"], "--rank", "1", "--", *wanted).code == 5
    assert (beside / "said").read_text() == f"{beside}\n{tmp_path} 0 1 1 a b; $HOME\n"
    (beside / "said").unlink()
    assert gangline("shell", run["id"], "--", "sh", "-c", "kill -9 $$").code == 137
    absent = gangline("shell", run["id"], "--", "no-such-program", "--flag")
    assert (absent.code, absent.out, absent.err) == (127, "", "gangline: no-such-program: No such file or directory\n")
    assert gangline("shell", run["id"], "--", str(tmp_path)).code == 126
    shown = gangline("shell", run["id"], "--print", "--", "echo", "a b").out
    assert shown == f"cd {beside} && echo 'a b'\n"
    beside.rmdir()
    assert gangline("shell", run["id"], "--", "true").code == 75


def test_on_a_cluster_a_command_needs_no_terminal(gangline: Any, client: Any, make: Any):
    run = make_live(make, client, pool="far", backend=FAR)
    *reach, step = shlex.split(gangline("shell", run["id"], "--print", "--", "nvidia-smi", "-q", "a b").out)
    assert reach == ["ssh", "-F", "/a b", "login"]
    program = ["/bin/bash", "/w x/shell.sh", "0", "--rank", "0", "--", "nvidia-smi", "-q", "a b"]
    assert shlex.split(step)[3:] == ["--nodelist=n1", *program]
