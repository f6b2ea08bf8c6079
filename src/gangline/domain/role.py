"""The variables by which a program would take a rank's place in its gang; one beside the rank has none of them."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["leave_out_role"]

_OF_THE_ROLE = frozenset(
    {
        "GANGLINE_CHECKPOINT_DIR",
        "GANGLINE_LAUNCH",
        "GANGLINE_RESUME",
        "JAX_COORDINATOR_ADDRESS",
        "MASTER_ADDR",
        "MASTER_PORT",
        "RAY_ADDRESS",
        "RAY_AUTH_TOKEN",
        "TF_CONFIG",
        "TORCHELASTIC_ERROR_FILE",
    }
)
_RECORDS = "TORCH_NCCL_"


def leave_out_role(env: Mapping[str, str]) -> dict[str, str]:
    """A rank's variables without those. Pure.

    Without `GANGLINE_LAUNCH`, no agent takes what was left running for one of its own.
    """
    return {name: value for name, value in env.items() if name not in _OF_THE_ROLE and not name.startswith(_RECORDS)}
