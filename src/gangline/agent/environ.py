"""The environment contract of a rank: the same on every backend, and byte for byte. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gangline.agent.launchspec import LaunchSpec, Shape
from gangline.agent.leaking import VISIBILITY_VARIABLES, scrub
from gangline.agent.strategies import rules_of
from gangline.rundir.layout import RunDir

__all__ = ["AttemptTerms", "render_rank_environment", "render_run_environment"]

_VISIBILITY = {"nvidia": "CUDA_VISIBLE_DEVICES", "amd": "HIP_VISIBLE_DEVICES"}


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptTerms:
    """What the leader has settled for all ranks of one attempt."""

    attempt: int
    shape: Shape
    master_addr: str
    master_port: int
    resume: str = ""
    """Absolute path of the checkpoint to start from, or ""."""
    cluster: Sequence[str] = ()
    """`address:port` of every port that nodes have set aside for the strategy, by node in order."""
    addresses: Sequence[str] = ()
    """At which others reach each node, in order."""


def render_rank_environment(
    launch: LaunchSpec,
    terms: AttemptTerms,
    rank: int,
    *,
    base: Mapping[str, str],
    run_dir: str,
    node_cpus: int,
) -> dict[str, str]:
    """The whole environment of one rank.

    Args:
        base: environment of the agent; scrubbed here.
        node_cpus: CPUs that the ranks of this node may share, >= 1.
    """
    env = {**_without_devices(scrub(base), launch), **_recorder(launch, terms, run_dir), **launch.env}
    env.update(_place(terms.shape, rank))
    env.update(_rendezvous(launch, terms, rank, run_dir=run_dir))
    env.update(render_run_environment(launch, terms, run_dir=run_dir))
    env["GANGLINE_NODE"] = str(terms.shape.node_of(rank))
    env.update(_devices(launch, terms.shape.node_of(rank)))
    env.update(rules_of(launch.strategy).environment(launch, terms, rank))
    env.setdefault("OMP_NUM_THREADS", str(_threads(launch, node_cpus)))
    if launch.unbuffered:
        env["PYTHONUNBUFFERED"] = "1"
    return env


def _recorder(launch: LaunchSpec, terms: AttemptTerms, run_dir: str) -> Mapping[str, str]:
    """Where NCCL writes its record of the last collectives, which it keeps anyway."""
    if launch.device_kind != "nvidia" or launch.watch.hang_timeout_s <= 0:
        return {}
    attempt = RunDir(Path(run_dir)).attempt(terms.attempt)
    return {
        "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": str(attempt.nccl_record()),
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": str(attempt.nccl_pipe()),
    }


def _place(shape: Shape, rank: int) -> dict[str, str]:
    place, local_rank = divmod(rank, shape.procs_per_node)
    num_nodes = len(shape.nodes)
    numbers = {
        "RANK": rank,
        "LOCAL_RANK": local_rank,
        "WORLD_SIZE": shape.world_size,
        "LOCAL_WORLD_SIZE": shape.procs_per_node,
        "NODE_RANK": place,
        "GROUP_RANK": place,
        "GROUP_WORLD_SIZE": num_nodes,
        "NNODES": num_nodes,
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": shape.world_size,
    }
    return {name: str(number) for name, number in numbers.items()}


def _rendezvous(launch: LaunchSpec, terms: AttemptTerms, rank: int, *, run_dir: str) -> dict[str, str]:
    return {
        "MASTER_ADDR": terms.master_addr,
        "MASTER_PORT": str(terms.master_port),
        "TORCHELASTIC_RUN_ID": launch.run_id,
        "TORCHELASTIC_RESTART_COUNT": str(terms.attempt),
        "TORCHELASTIC_MAX_RESTARTS": str(launch.restarts.max_restarts),
        "TORCHELASTIC_ERROR_FILE": str(RunDir(Path(run_dir)).attempt(terms.attempt).recorded_error(rank)),
    }


def render_run_environment(launch: LaunchSpec, terms: AttemptTerms, *, run_dir: str) -> dict[str, str]:
    """What every process of an attempt knows of its run."""
    return {
        "GANGLINE_RUN_ID": launch.run_id,
        "GANGLINE_RUN_NAME": launch.run_name,
        "GANGLINE_LAUNCH": str(launch.launch),
        "GANGLINE_ATTEMPT": str(terms.attempt),
        "GANGLINE_RUN_DIR": run_dir,
        "GANGLINE_RESUME": terms.resume,
        "GANGLINE_CHECKPOINT_DIR": launch.checkpoint.path or "",
        "GANGLINE_KEEP_LAST": str(launch.checkpoint.keep_last),
        "GANGLINE_BRANCH_ATTEMPT": str(launch.branch_attempt),
    }


def _without_devices(base: dict[str, str], launch: LaunchSpec) -> dict[str, str]:
    """Where ranks are told what they may use, no other variable may take some of that away again."""
    if launch.device_kind not in _VISIBILITY:
        return base
    return {name: value for name, value in base.items() if name not in VISIBILITY_VARIABLES}


def _devices(launch: LaunchSpec, node: int) -> dict[str, str]:
    """Every rank of a node sees all of the node's devices, and picks by LOCAL_RANK, as under torchrun."""
    variable = _VISIBILITY.get(launch.device_kind)
    if variable is None:
        return {}
    # The ids are those of nvidia-smi, which counts by bus address; CUDA would count the fastest first.
    order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"} if variable == "CUDA_VISIBLE_DEVICES" else {}
    return {variable: ",".join(launch.devices_of(node)), **order}


def _threads(launch: LaunchSpec, node_cpus: int) -> int:
    return launch.cpus_per_rank or max(1, node_cpus // launch.procs_per_node)
