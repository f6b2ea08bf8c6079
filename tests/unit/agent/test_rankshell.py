"""A shell beside a rank: whose environment it has, and what it says where there is no such rank."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gangline.agent.inject import write_injected
from gangline.agent.rankshell import find_beside, run_shell
from gangline.control.launchfile import LaunchTerms, render_launch_text
from gangline.domain.errors import Conflict, InvalidRequest
from gangline.domain.spec import Environment, Resources
from gangline.rundir.files import write_json, write_text
from gangline.rundir.journal import JournalWriter
from gangline.rundir.layout import RunDir
from gangline.testing import make_spec
from gangline.training.context import parse_context

SECRET = "s3cr3t"


class Scene:
    """Node 1 of a gang of two nodes, whose agent and ranks are one process here."""

    def __init__(self, folder: Path, agent: subprocess.Popen[bytes]) -> None:
        self.run, self.agent = RunDir(folder), agent
        self.attempt = self.run.attempt(2)
        (folder / "code").mkdir()
        for path in (self.run.launch(0).path, self.attempt.node(1)):
            path.mkdir(parents=True)
        write_text(self.run.launch(0).lock(1), f"{agent.pid}\n")
        members = [{"node": node, "address": f"10.0.0.{node}", "ranks": [2 * node, 2 * node + 1]} for node in (0, 1)]
        gang = {
            "version": 1,
            "attempt": 2,
            "launch": 0,
            "master_addr": "10.0.0.1",
            "master_port": 4,
            "members": members,
        }
        write_json(self.attempt.gang, gang)

    def tell(self, kind: str, **keys: Any) -> None:
        with JournalWriter(self.attempt.events(1)) as journal:
            journal.write(kind, **keys)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    folder = tmp_path / "llama-7k3q"
    folder.mkdir()
    env = {"PATH": "/conda/bin:/bin", "FROM_SETUP": "a\nb", "SLURM_JOB_ID": "7", "CUDA_VISIBLE_DEVICES": "4,5"}
    words = [sys.executable, "-S", "-c", "print(flush=True); input()", "agent", str(folder)]
    spec = make_spec(
        name="llama",
        resources=Resources(nodes=2, procs_per_node=2),
        environment=Environment(env={"SECRET": SECRET}, python=sys.executable),
    )
    terms = LaunchTerms(run_id="llama-7k3q", token="t", default_checkpoints="/ckpt")
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env) as agent:
        assert agent.stdout is not None
        agent.stdout.readline()
        scene = Scene(folder, agent)
        write_text(scene.run.launch(0).spec, render_launch_text(spec, terms))
        yield scene
        agent.kill()


def test_it_has_what_the_rank_was_started_with(scene: Scene) -> None:
    scene.tell("rank_started", rank=3, local_rank=1, pid=os.getpid())
    beside = find_beside(scene.run, launch=0, node=1, rank=3)
    assert (beside.run_name, beside.folder) == ("llama", scene.run.code)
    found = {
        name: beside.env.get(name) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "NODE_RANK", "GANGLINE_ATTEMPT")
    }
    assert list(found.values()) == ["3", "1", "4", "1", "2"], found
    assert (beside.env["FROM_SETUP"], beside.env["PATH"]) == ("a\nb", "/conda/bin:/bin")
    assert (beside.env["CUDA_VISIBLE_DEVICES"], beside.env["SECRET"]) == ("4,5", SECRET)
    assert beside.env["GANGLINE_RUN_DIR"] == str(scene.run.path)
    assert "SLURM_JOB_ID" not in beside.env, "what would make a launcher in it take itself for a task"


def test_a_program_in_it_does_not_take_the_ranks_place(scene: Scene) -> None:
    scene.tell("rank_started", rank=2, local_rank=0, pid=os.getpid())
    beside = find_beside(scene.run, launch=0, node=1, rank=2)
    absent = {"MASTER_ADDR", "MASTER_PORT", "GANGLINE_LAUNCH", "GANGLINE_CHECKPOINT_DIR", "TORCHELASTIC_ERROR_FILE"}
    assert absent.isdisjoint(beside.env)
    assert parse_context(beside.env).run_dir is None, "nothing is written among the run's own numbers"
    assert beside.env["GANGLINE_SHELL"] == "1"


def test_python_in_it_finds_gangline_as_the_rank_does(scene: Scene) -> None:
    write_injected(injected := scene.run.launch(0).path / "injected")
    scene.tell("rank_started", rank=2, local_rank=0, pid=os.getpid())
    env = find_beside(scene.run, launch=0, node=1, rank=2).env
    code = "import gangline, os, sys; print(gangline.current().rank, os.environ.get('PYTHONPATH'), sys.path[-1])"
    without = str(Path(sys.base_prefix, "bin", "python3"))
    said = subprocess.run([without, "-c", code], env=env, capture_output=True, text=True, check=False)
    rank, path, last = said.stdout.split()
    assert (rank, path, last) == ("2", "None", str(injected / "offered")), said.stderr


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ([], "`llama-7k3q` has not started yet"),
        ([("rank_started", {"pid": 2**22 + 1})], "does not run any more"),
        (
            [("rank_started", {"pid": os.getpid()}), ("rank_exited", {"exit_code": 3, "signal": None})],
            "Rank 3 of `llama-7k3q` does not run any more: it ended with exit code 3.",
        ),
        (
            [("rank_started", {"pid": os.getpid()}), ("rank_exited", {"exit_code": None, "signal": 9})],
            "Rank 3 of `llama-7k3q` does not run any more: it ended with signal 9.",
        ),
    ],
)
def test_beside_no_rank_there_is_none(scene: Scene, told: list[tuple[str, dict[str, Any]]], words: str) -> None:
    for kind, keys in told:
        scene.tell(kind, rank=3, **keys)
    with pytest.raises(Conflict) as refused:
        find_beside(scene.run, launch=0, node=1, rank=3)
    assert words in str(refused.value)


def test_where_no_agent_lives_it_is_said(scene: Scene, capfd: pytest.CaptureFixture[str]) -> None:
    scene.tell("rank_started", rank=3, local_rank=1, pid=os.getpid())
    write_text(scene.run.launch(0).lock(1), f"{os.getpid()}\n")  # the number was given away since
    call = [str(scene.run.path), "--launch", "0", "--node", "1", "--rank", "3"]
    assert run_shell(call) == Conflict.exit_code
    assert "Node 1 of `llama-7k3q` does not run here any more. Its agent is not on" in capfd.readouterr().err
    assert run_shell([*call, "echo"]) == InvalidRequest.exit_code


def test_a_command_takes_its_place(scene: Scene) -> None:
    scene.tell("rank_started", rank=3, local_rank=1, pid=os.getpid())
    call = [sys.executable, "-m", "gangline.agent", "shell", str(scene.run.path), "--launch", "0", "--node", "1"]

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*call, "--rank", "3", "--", *words], capture_output=True, text=True, check=False)

    ran = run("sh", "-c", 'pwd; echo "$0:$RANK"; exit 7', "a  b")
    assert (ran.returncode, ran.stdout, ran.stderr) == (7, f"{scene.run.code}\na  b:3\n", "")
    missing = run("no-such-program")
    assert (missing.returncode, missing.stderr) == (127, "gangline: there is no program `no-such-program`\n")
