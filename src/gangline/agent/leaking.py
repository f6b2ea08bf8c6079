"""Variables that a scheduler or a launcher meant for one process alone. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["VISIBILITY_VARIABLES", "scrub"]

VISIBILITY_VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
    "ZE_AFFINITY_MASK",
)
"""By which schedulers and vendors say what a process may use; some schedulers set those of all vendors."""
_LEAKING_PREFIXES = (
    "SLURM_",
    "SLURMD_",
    "SBATCH_",
    "SRUN_",
    "SALLOC_",
    "SPANK_",
    "PMI_",
    "PMIX_",
    "OMPI_",
    "PRTE_",
    "PALS_",
    "FLUX_",
    "MPI_LOCAL",
    "MV2_COMM_WORLD_",
    "TORCHELASTIC_",
    "GANGLINE_",
    "ROLE_",
)
_LEAKING_NAMES = frozenset(
    {
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "NODE_RANK",
        "GROUP_RANK",
        "GROUP_WORLD_SIZE",
        "NNODES",
        "MASTER_ADDR",
        "MASTER_PORT",
        "TF_CONFIG",
        "JAX_COORDINATOR_ADDRESS",
        "JAX_NUM_PROCESSES",
        "JAX_PROCESS_ID",
        "JAX_LOCAL_DEVICE_IDS",
        "HYDRA_CONTROL_FD",
        "HYDI_CONTROL_FD",
    }
)
_KEPT_NAMES = frozenset({"SLURM_CONF"})
"""Where the scheduler is configured: nothing of a job, and without it its commands may not work."""


def scrub(base: Mapping[str, str]) -> dict[str, str]:
    """The agent's own environment without what a scheduler or another launcher meant for it alone."""
    return {
        name: value
        for name, value in base.items()
        if name in _KEPT_NAMES or not (name in _LEAKING_NAMES or name.startswith(_LEAKING_PREFIXES))
    }
