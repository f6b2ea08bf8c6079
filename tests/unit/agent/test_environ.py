from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from gangline.agent.environ import AttemptTerms, render_rank_environment
from gangline.agent.launchspec import LaunchSpec, Shape
from gangline.agent.leaking import scrub
from gangline.domain.spec import Strategy

TERMS = AttemptTerms(
    attempt=4,
    shape=Shape((0, 1), 2),
    master_addr="10.0.0.1",
    master_port=20001,
    resume="/ckpt/step",
    cluster=("a:1", "b:2"),
)


def environment(
    launch: LaunchSpec, rank: int = 3, *, node_cpus: int = 8, base: dict[str, str] | None = None
) -> dict[str, str]:
    return render_rank_environment(launch, TERMS, rank, base=base or {}, run_dir="/run", node_cpus=node_cpus)


def test_the_contract_is_complete(make_launch: Callable[..., LaunchSpec]) -> None:
    assert environment(make_launch()) == {
        "RANK": "3",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "4",
        "LOCAL_WORLD_SIZE": "2",
        "NODE_RANK": "1",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
        "NNODES": "2",
        "ROLE_RANK": "3",
        "ROLE_WORLD_SIZE": "4",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "20001",
        "TORCHELASTIC_RUN_ID": "llama-7k3q",
        "TORCHELASTIC_RESTART_COUNT": "4",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_ERROR_FILE": "/run/attempts/4/rank-00003.record.json",
        "GANGLINE_RUN_ID": "llama-7k3q",
        "GANGLINE_RUN_NAME": "llama",
        "GANGLINE_LAUNCH": "1",
        "GANGLINE_ATTEMPT": "4",
        "GANGLINE_RUN_DIR": "/run",
        "GANGLINE_RESUME": "/ckpt/step",
        "GANGLINE_CHECKPOINT_DIR": "/ckpt",
        "GANGLINE_KEEP_LAST": "3",
        "GANGLINE_BRANCH_ATTEMPT": "0",
        "GANGLINE_NODE": "1",
        "OMP_NUM_THREADS": "4",
        "PYTHONUNBUFFERED": "1",
    }


def test_what_a_scheduler_meant_for_the_agent_does_not_leak() -> None:
    base = {"PATH": "/bin", "SLURM_PROCID": "1", "PMI_RANK": "0", "OMPI_COMM_WORLD_RANK": "1", "RANK": "9"}
    base |= {"MASTER_PORT": "1", "GANGLINE_HOME": "/h", "TF_CONFIG": "{}", "HYDRA_FULL_ERROR": "1", "RANKING": "kept"}
    assert scrub(base) == {"PATH": "/bin", "HYDRA_FULL_ERROR": "1", "RANKING": "kept"}


def test_the_spec_goes_over_the_base_and_the_contract_over_the_spec(make_launch: Callable[..., LaunchSpec]) -> None:
    launch = make_launch(env={"A": "spec", "RANK": "99", "SLURM_X": "on purpose", "OMP_NUM_THREADS": "7"})
    env = environment(launch, base={"A": "base", "B": "base"})
    assert (env["A"], env["B"], env["RANK"], env["SLURM_X"]) == ("spec", "base", "3", "on purpose")
    assert env["OMP_NUM_THREADS"] == "7"


def test_values_are_not_touched(make_launch: Callable[..., LaunchSpec]) -> None:
    odd = "a=b \n'\"$X `y` \\ \udce9"
    assert environment(make_launch(env={"ODD": odd}))["ODD"] == odd


@pytest.mark.parametrize(("cpus", "expected"), [(1, "1"), (8, "4"), (9, "4")])
def test_threads_share_the_cpus_of_the_node(make_launch: Callable[..., LaunchSpec], cpus: int, expected: str) -> None:
    assert environment(make_launch(), node_cpus=cpus)["OMP_NUM_THREADS"] == expected


def test_reserved_cpus_decide_the_threads(make_launch: Callable[..., LaunchSpec]) -> None:
    assert environment(make_launch(cpus_per_rank=6))["OMP_NUM_THREADS"] == "6"


def test_buffering_can_be_kept(make_launch: Callable[..., LaunchSpec]) -> None:
    assert "PYTHONUNBUFFERED" not in environment(make_launch(unbuffered=False))


@pytest.mark.parametrize(
    ("kind", "devices", "variable", "value"),
    [
        ("nvidia", (("0", "1"), ("2", "3")), "CUDA_VISIBLE_DEVICES", "2,3"),
        ("amd", (("0",), ("5",)), "HIP_VISIBLE_DEVICES", "5"),
        ("nvidia", ((), ()), "CUDA_VISIBLE_DEVICES", ""),
    ],
)
def test_ranks_see_the_devices_of_their_node(
    make_launch: Callable[..., LaunchSpec], kind: str, devices: tuple[tuple[str, ...], ...], variable: str, value: str
) -> None:
    env = environment(make_launch(device_kind=kind, devices=devices))
    assert env[variable] == value
    assert env.get("CUDA_DEVICE_ORDER") == ("PCI_BUS_ID" if kind == "nvidia" else None)


def test_a_pool_without_devices_leaves_visibility_alone(make_launch: Callable[..., LaunchSpec]) -> None:
    assert "CUDA_VISIBLE_DEVICES" not in environment(make_launch())


CONTRACT_ONLY = ["ddp", "fsdp", "deepspeed", "accelerate", "lightning", "none"]


@pytest.mark.parametrize("strategy", CONTRACT_ONLY)
def test_strategies_that_read_what_torchrun_sets_get_that_and_no_more(
    make_launch: Callable[..., LaunchSpec], strategy: str
) -> None:
    """DeepSpeed reads RANK, LOCAL_RANK, WORLD_SIZE and MASTER_*, Accelerate LOCAL_WORLD_SIZE too; Lightning knows a
    process of torchrun's by TORCHELASTIC_RUN_ID and reads GROUP_RANK.
    """
    env = [environment(make_launch(strategy=Strategy(strategy)), rank) for rank in range(4)]
    assert [(one["RANK"], one["LOCAL_RANK"], one["GROUP_RANK"], one["NODE_RANK"]) for one in env] == [
        ("0", "0", "0", "0"),
        ("1", "1", "0", "0"),
        ("2", "0", "1", "1"),
        ("3", "1", "1", "1"),
    ]
    same = {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "llama-7k3q"}
    same |= {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "20001"}
    assert all(same.items() <= one.items() for one in env)
    assert not any({"TF_CONFIG", "JAX_PROCESS_ID", "JAX_COORDINATOR_ADDRESS"} & one.keys() for one in env)


def test_jax_gets_its_coordinator(make_launch: Callable[..., LaunchSpec]) -> None:
    env = [environment(make_launch(strategy=Strategy.JAX), rank) for rank in range(4)]
    assert {one["JAX_COORDINATOR_ADDRESS"] for one in env} == {"10.0.0.1:20001"}
    assert {one["JAX_NUM_PROCESSES"] for one in env} == {"4"}
    assert [one["JAX_PROCESS_ID"] for one in env] == ["0", "1", "2", "3"]
    assert "JAX_LOCAL_DEVICE_IDS" not in env[0]


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        ((("0", "1"), ("4", "5")), ["0", "1", "0", "1"]),
        ((("0", "1", "2", "3"), ("0", "1", "2", "3")), ["0,1", "2,3", "0,1", "2,3"]),
        ((("3",), ("3",)), ["0", "0", "0", "0"]),
    ],
)
def test_each_process_of_jax_takes_its_share_of_the_devices(
    make_launch: Callable[..., LaunchSpec], devices: tuple[tuple[str, ...], ...], expected: list[str]
) -> None:
    launch = make_launch(strategy=Strategy.JAX, device_kind="nvidia", devices=devices)
    assert [environment(launch, rank)["JAX_LOCAL_DEVICE_IDS"] for rank in range(4)] == expected


def test_tensorflow_gets_its_cluster(make_launch: Callable[..., LaunchSpec]) -> None:
    terms = replace(TERMS, cluster=("a:1", "a:2", "b:1", "b:2"))
    launch = make_launch(strategy=Strategy.TENSORFLOW)
    found = [
        json.loads(render_rank_environment(launch, terms, rank, base={}, run_dir="/run", node_cpus=8)["TF_CONFIG"])
        for rank in range(4)
    ]
    workers = {"worker": ["a:1", "a:2", "b:1", "b:2"]}
    assert found == [{"cluster": workers, "task": {"type": "worker", "index": rank}} for rank in range(4)]
