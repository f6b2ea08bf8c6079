"""An existing batch script under an agent: its interpreter, its environment, its own logs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gangline.agent.batchscript import (
    expand_pattern,
    find_script_fault,
    link_logs,
    read_job_shape,
    render_batch_argv,
    render_batch_environment,
)
from gangline.agent.environ import AttemptTerms
from gangline.agent.launchspec import LaunchSpec

JOB = {"SLURM_JOB_ID": "123", "SLURM_JOB_NAME": "old", "SLURM_NTASKS": "8", "USER": "me", "SLURMD_NODENAME": "n1.x"}


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "old.sbatch").write_text("#!/bin/bash -l\ntrue\n")
    return tmp_path


def launch_of(make_launch: Callable[..., LaunchSpec], **batch: str) -> LaunchSpec:
    return replace(make_launch(), nodes=1, procs_per_node=1, batch={"script": "old.sbatch", **batch}, env={"X": "1"})


def test_the_interpreter_is_that_of_the_first_line(script: Path) -> None:
    argv = render_batch_argv({"script": "./old.sbatch"}, ("a b",), script)
    assert argv == ["/bin/bash", "-l", f"{script}/old.sbatch", "a b"]


def test_it_sees_its_job_and_no_contract_of_a_rank(make_launch: Callable[..., LaunchSpec]) -> None:
    launch = launch_of(make_launch, name="nightly")
    terms = AttemptTerms(attempt=1, shape=launch.shape(), master_addr="a", master_port=1)
    base = {**JOB, "GANGLINE_JOB_END": "1", "CUDA_VISIBLE_DEVICES": "2"}
    env = render_batch_environment(launch, terms, base=base, run_dir="/run", workdir=Path("/run/code"))
    assert env["SLURM_NTASKS"] == "8"
    assert (env["SLURM_SUBMIT_DIR"], env["SLURM_JOB_NAME"]) == ("/run/code", "nightly")
    assert (env["CUDA_VISIBLE_DEVICES"], env["X"], env["GANGLINE_ATTEMPT"]) == ("2", "1", "1")
    assert env.keys().isdisjoint({"RANK", "WORLD_SIZE", "MASTER_ADDR", "OMP_NUM_THREADS", "GANGLINE_JOB_END"})


@pytest.mark.parametrize(
    ("pattern", "path"),
    [("%x-%j.out", "old-123.out"), ("%5j_%u_%N.%t", "00123_me_n1.0"), ("100%%/%q", "100%/%q"), ("plain", "plain")],
)
def test_patterns_of_paths_are_expanded(pattern: str, path: str) -> None:
    assert expand_pattern(pattern, JOB) == path


def test_its_own_log_leads_to_that_of_the_rank(make_launch: Callable[..., LaunchSpec], script: Path) -> None:
    launch, log = launch_of(make_launch, output="logs/%j.out", error="taken.err"), script / "rank.log"
    log.write_text("hello")
    (script / "taken.err").write_text("of somebody")
    assert link_logs(launch, JOB, script, log) == [f"{script}/logs/123.out"]
    assert (script / "logs" / "123.out").read_text() == "hello"
    assert (script / "taken.err").read_text() == "of somebody"
    assert link_logs(launch, JOB, script, log) == [f"{script}/logs/123.out"], "the next attempt has a log of its own"


def test_what_is_missing_is_told(script: Path) -> None:
    assert find_script_fault({"script": "old.sbatch"}, script) == ""
    assert "none.sbatch" in find_script_fault({"script": "none.sbatch"}, script)
    assert "/nowhere" in find_script_fault({"script": "old.sbatch", "chdir": "/nowhere"}, script)


@pytest.mark.parametrize(
    ("nodes", "tasks", "machines", "count"),
    [
        ("node01", {"SLURM_TASKS_PER_NODE": "4"}, ["node01"], 4),
        ("node[01-02]", {"SLURM_TASKS_PER_NODE": "2(x2)"}, ["node01", "node02"], 4),
        ("n[9-11,20],head", {"SLURM_TASKS_PER_NODE": "8(x3),1(x2)"}, ["n9", "n10", "n11", "n20", "head"], 26),
        ("r[1-2]n[01-02]", {"SLURM_NTASKS": "3"}, ["r1n01", "r1n02", "r2n01", "r2n02"], 3),
        ("gpu[a,b-c]x", {}, ["gpuax", "gpub-cx"], 2),
    ],
)
def test_what_the_scheduler_gave_is_read(nodes: str, tasks: dict[str, str], machines: list[str], count: int) -> None:
    assert read_job_shape({"SLURM_JOB_NODELIST": nodes, **tasks}) == {"machines": machines, "tasks": count}


def test_elsewhere_it_has_no_shape() -> None:
    assert read_job_shape({"SLURM_TASKS_PER_NODE": "2"}) == {}
