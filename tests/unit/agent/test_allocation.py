"""What a scheduler's environment says of a node, and what an agent makes of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gangline.agent.allocation import Allocation, adopt_allocation, find_program, read_allocation
from gangline.agent.environ import AttemptTerms, render_rank_environment
from gangline.agent.launchspec import LaunchSpec
from gangline.agent.leaking import scrub

ON_SLURM = {
    "SLURMD_NODENAME": "node07",
    "CUDA_VISIBLE_DEVICES": "2,3",
    "ROCR_VISIBLE_DEVICES": "2,3",
    "GPU_DEVICE_ORDINAL": "2,3",
    "SLURM_JOB_GPUS": "2,3",
    "GANGLINE_JOB_END": "1800000000",
    "GANGLINE_NOTICE_S": "90",
}


def there(*paths: str) -> Callable[[Path], bool]:
    return lambda path: str(path) in paths


def test_all_that_slurm_says_is_taken() -> None:
    given = read_allocation(ON_SLURM, exists=there("/dev/nvidiactl"))
    assert given == Allocation(
        host="node07", devices=("2", "3"), device_kind="nvidia", end=1_800_000_000.0, notice_s=90.0
    )


def test_without_a_scheduler_nothing_is_given() -> None:
    assert read_allocation({"PATH": "/bin", "GANGLINE_JOB_END": ""}, exists=there()) == Allocation()


def test_amd_is_known_by_its_device() -> None:
    assert read_allocation(ON_SLURM, exists=there("/dev/kfd")).device_kind == "amd"


@pytest.mark.parametrize("value", ["", "NoDevFiles", "-1"])
def test_no_devices_are_none(value: str) -> None:
    assert read_allocation({"CUDA_VISIBLE_DEVICES": value, "SLURM_JOB_GPUS": "1"}, exists=there()).devices == ()


def test_names_of_mig_devices_are_kept() -> None:
    env = {"CUDA_VISIBLE_DEVICES": "MIG-1a, MIG-2b"}
    assert read_allocation(env, exists=there()).devices == ("MIG-1a", "MIG-2b")


def test_numbers_of_the_machine_count_anew_where_others_are_hidden() -> None:
    env = {"SLURM_JOB_GPUS": "4,5"}
    seen = there("/dev/nvidiactl", "/dev/nvidia4", "/dev/nvidia5")
    assert read_allocation(env, exists=seen).devices == ("4", "5")
    assert read_allocation(env, exists=there("/dev/nvidiactl", "/dev/nvidia0")).devices == ("0", "1")


def test_a_node_takes_its_own_devices(make_launch: Callable[..., LaunchSpec]) -> None:
    launch = replace(make_launch(), devices=((), ()), device_kind="")
    given = read_allocation(ON_SLURM, exists=there("/dev/nvidiactl"))
    assert adopt_allocation(launch, 1, given).devices == ((), ("2", "3"))
    handed_out = replace(launch, devices=(("0",), ("1",)), device_kind="nvidia")
    assert adopt_allocation(handed_out, 1, given) is handed_out


def test_an_elastic_gang_is_as_large_as_its_job(make_launch: Callable[..., LaunchSpec]) -> None:
    elastic = replace(make_launch(), nodes=4, min_nodes=2)
    given = read_allocation({"GANGLINE_NODES": "3"}, exists=there())
    assert adopt_allocation(elastic, 0, given).nodes == 3
    assert adopt_allocation(replace(elastic, min_nodes=None), 0, given).nodes == 4
    assert adopt_allocation(elastic, 0, Allocation(nodes=1)).nodes == 4


@pytest.mark.parametrize(("kind", "variable"), [("nvidia", "CUDA_VISIBLE_DEVICES"), ("amd", "HIP_VISIBLE_DEVICES")])
def test_ranks_see_them_through_one_variable(make_launch: Callable[..., LaunchSpec], kind: str, variable: str) -> None:
    launch = replace(make_launch(), devices=((), ("2", "3")), device_kind=kind)
    terms = AttemptTerms(attempt=0, shape=launch.shape(), master_addr="a", master_port=1)
    env = render_rank_environment(launch, terms, 3, base=ON_SLURM, run_dir="/run", node_cpus=1)
    assert {name: env[name] for name in env if "VISIBLE" in name or "ORDINAL" in name} == {variable: "2,3"}


def test_where_slurm_is_configured_is_no_secret_of_the_job() -> None:
    base = {"SLURM_CONF": "/etc/x", "SLURM_JOB_ID": "1", "SBATCH_PARTITION": "p", "SRUN_DEBUG": "3", "PMIX_RANK": "0"}
    assert scrub(base) == {"SLURM_CONF": "/etc/x"}


def test_a_program_is_found_as_a_shell_would(tmp_path: Path) -> None:
    (tmp_path / "python3").mkdir()
    tool = tmp_path / "bin" / "python3"
    tool.parent.mkdir()
    tool.write_text("")
    env = {"PATH": f"{tmp_path}:{tmp_path}/bin"}
    assert find_program("python3", env) == "python3", "it cannot be executed"
    tool.chmod(0o755)
    assert find_program("python3", env) == str(tool)
    assert find_program("/opt/python", env) == "/opt/python"
